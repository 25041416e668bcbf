"""What is known of files adds up to partitions, or says what must be read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.comparison.fingerprints import KnownChecksums
from lakehouse_backfill.domain.diff import Checksum, FileFingerprint
from lakehouse_backfill.domain.table import LiveFile
from lakehouse_backfill.errors import Tampered

SHAPE = "5" * 64
NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)


def total(*marks: int) -> Checksum:
    found = Checksum.empty(SHAPE)
    for mark in marks:
        found = found + Checksum(rows=10, xor=mark, total=mark, shape=SHAPE)
    return found


def live(path: str, label: str | None = "a", **changes: Any) -> LiveFile:
    fields = {"path": path, "spec_id": 0, "partition": label, "rows": 10, "size_bytes": 100}
    return LiveFile(**(fields | changes))


def known(path: str, mark: int, **changes: Any) -> FileFingerprint:
    fields: dict[str, Any] = {
        "path": path, "table": "s.t", "reading": "r", "partition": "a", "size_bytes": 100,
        "checksum": total(mark), "sha256": f"sha of {path}", "run_id": None, "at": NOON,
    }  # fmt: skip
    return FileFingerprint(**(fields | changes))


def by_path(*found: FileFingerprint) -> dict[str, FileFingerprint]:
    return {one.path: one for one in found}


@pytest.mark.req("Q4")
def test_partitions_of_known_files_are_sums_and_need_no_reading() -> None:
    files = [live("1"), live("2"), live("3", "b"), live("4", "elsewhere")]
    three = (known("1", 1), known("2", 2), known("3", 4, partition="b"))
    found = fingerprints.sum_known_checksums(files, by_path(*three), "ab")
    assert found == KnownChecksums(checksums={"a": total(1, 2), "b": total(4)})
    assert fingerprints.complete_checksums(found, {}) == {"a": total(1, 2), "b": total(4)}


@pytest.mark.req("Q4")
def test_of_a_partition_with_a_new_file_only_that_one_is_hashed() -> None:
    new = live("2")
    found = fingerprints.sum_known_checksums([live("1"), new], by_path(known("1", 1)), "ab")
    assert found == KnownChecksums({}, ("a",), frozenset({"1"}), {"a": total(1)}, {"2": new})
    assert fingerprints.complete_checksums(found, {("a", "2"): total(8)}) == {"a": total(1, 8)}
    assert fingerprints.newly_read_files(found, {("a", "2"): total(8)}) == {"2": (new, total(8))}


@pytest.mark.req("Q4")
@pytest.mark.parametrize(
    "other",
    [
        pytest.param([live("2", deletes=("d1",))], id="a delete file hides rows"),
        pytest.param([live("2", "2013", spans=("a", "z"))], id="a file of a coarser spec"),
        pytest.param([live("1")], id="a file that is listed twice"),
    ],
)
def test_a_partition_that_files_do_not_tell_is_read_whole(other: list[LiveFile]) -> None:
    found = fingerprints.sum_known_checksums(
        [live("1"), *other], by_path(known("1", 1), known("2", 2)), "ab"
    )
    assert found == KnownChecksums(unread=("a",))
    # What is read there is no fingerprint: rows are hidden, missing or doubled.
    read = {("a", "1"): total(1), ("a", "2"): total(7)}
    assert fingerprints.newly_read_files(found, read) == {}
    assert fingerprints.complete_checksums(found, read) == {"a": total(1, 7)}


@pytest.mark.req("Q4")
def test_a_file_that_lies_in_another_partition_now_is_not_known_there() -> None:
    # A file may lack the columns of its partition: under another one it reads as other rows.
    moved = live("1", "b")
    found = fingerprints.sum_known_checksums([moved], by_path(known("1", 1)), "ab")
    assert found == KnownChecksums(unread=("b",), to_hash={"1": moved})
    there = known("1", 7, partition="b")
    rows = [known("1", 1), there, known("1", 9, reading="q"), known("2", 2)]
    assert fingerprints.match_fingerprints([moved], rows, "r") == {"1": there}
    assert fingerprints.select_unstored([known("1", 1)], [there, there]) == (there,)
    with pytest.raises(Tampered, match="rows "):
        fingerprints.select_unstored([known("1", 1), there], [known("1", 8, partition="b")])


def test_files_and_partitions_without_rows_are_left_out() -> None:
    found = fingerprints.sum_known_checksums([live("1", rows=0)], {}, "ab")
    assert (found, fingerprints.complete_checksums(found, {("b", "x"): Checksum.empty(SHAPE)})) == (
        KnownChecksums(),
        {},
    )


@pytest.mark.req("Q4", "D5")
@pytest.mark.parametrize("listed", [{"rows": 9}, {"size_bytes": 99}])
def test_a_table_that_lists_a_known_file_with_other_numbers_is_named(
    listed: dict[str, int],
) -> None:
    with pytest.raises(Tampered, match="1 is not what was hashed: its table says"):
        fingerprints.sum_known_checksums([live("1", **listed)], by_path(known("1", 1)), "ab")


@pytest.mark.req("Q4", "D5")
@pytest.mark.parametrize(("label", "marks"), [("a", (1, 2)), ("b", (1,))])
def test_a_file_with_other_rows_than_its_table_says_is_named(
    label: str, marks: tuple[int, ...]
) -> None:
    found = fingerprints.sum_known_checksums([live("1")], {}, "ab")
    with pytest.raises(Tampered, match=f"1 holds {10 * len(marks)} rows of {label}, its table"):
        fingerprints.newly_read_files(found, {(label, "1"): total(*marks)})


@pytest.mark.req("Q4", "D5")
def test_a_known_file_that_was_read_again_has_the_rows_it_had() -> None:
    fingerprints.require_same_rows(known("1", 1), live("1"), total(1))
    with pytest.raises(Tampered, match="known were"):
        fingerprints.require_same_rows(known("1", 1), live("1"), total(2))


@pytest.mark.req("Q4", "D5")
def test_what_is_stored_is_not_stored_again_and_never_contradicted() -> None:
    one, again = known("1", 1), known("1", 1, table="s.other", run_id="bf-2")
    other = known("1", 9, reading="of another schema")
    assert fingerprints.select_unstored([one], [again, other, other]) == (other,)
    for bad, said in (
        (known("1", 2), "rows "),
        (known("1", 1, sha256="x"), "SHA-256 x"),
        (known("1", 9, reading="of another schema", size_bytes=7), "SHA-256"),
    ):
        with pytest.raises(Tampered, match=said):
            fingerprints.select_unstored([one], [bad])
        with pytest.raises(Tampered, match=said):
            fingerprints.deduplicate_fingerprints([one, bad])
