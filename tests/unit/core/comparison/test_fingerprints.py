"""Fingerprints: what is stored, and what a diff does with it."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.approval.decisions import VALIDATION
from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.comparison.diff import TableSides, reconcile
from lakehouse_backfill.core.comparison.fingerprints import KnownChecksums
from lakehouse_backfill.core.publication.publication import PUBLICATION
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.comparison.checksums import Checksum, FileFingerprint
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import ChecksFailed, NotAllowed, NotFound, Tampered
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.control import FakeEvidence
from tests.support.fakes.files import FakeStoredFiles
from tests.support.fakes.lake import DAY, FakeLake
from tests.support.fakes.steps import accepted_run, state_of, world

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
    assert found == KnownChecksums()
    assert fingerprints.complete_checksums(found, {("b", "x"): Checksum.empty(SHAPE)}) == {}


@pytest.mark.req("Q4")
@pytest.mark.parametrize("listed", [{"rows": 9}, {"size_bytes": 99}])
def test_a_table_that_lists_a_known_file_with_other_numbers_is_named(listed) -> None:
    with pytest.raises(Tampered, match="1 is not what was hashed: its table says"):
        fingerprints.sum_known_checksums([live("1", **listed)], by_path(known("1", 1)), "ab")


@pytest.mark.req("Q4")
@pytest.mark.parametrize(("label", "marks"), [("a", (1, 2)), ("b", (1,))])
def test_a_file_with_other_rows_than_its_table_says_is_named(label, marks) -> None:
    found = fingerprints.sum_known_checksums([live("1")], {}, "ab")
    with pytest.raises(Tampered, match=f"1 holds {10 * len(marks)} rows of {label}, its table"):
        fingerprints.newly_read_files(found, {(label, "1"): total(*marks)})


@pytest.mark.req("Q4")
def test_a_known_file_that_was_read_again_has_the_rows_it_had() -> None:
    fingerprints.require_same_rows(known("1", 1), live("1"), total(1))
    with pytest.raises(Tampered, match="known were"):
        fingerprints.require_same_rows(known("1", 1), live("1"), total(2))


@pytest.mark.req("Q4")
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
            fingerprints.select_unstored((), [one, bad])


NOW = TableRef(table=PRODUCT)


def _without_engine(found: Context) -> Context:
    def compute() -> Any:
        raise AssertionError("an engine was asked for")

    return dataclasses.replace(found, compute=compute)


@pytest.mark.req("Q4")
def test_reconciling_reads_each_file_once_and_then_starts_no_engine() -> None:
    where = lake()
    compute = FakeCompute(where)
    found = context(where, compute)
    before = TableRef(table=PRODUCT, at="1")
    where.write(PRODUCT, "2020-01-02", "new-2")
    first = reconcile(found, TableSides(before, NOW))
    assert [row.partition for row in first if not row.equal] == ["2020-01-02"]
    # The other files are the same ones.
    days = tuple(f"2020-01-0{number}" for number in range(1, 6))
    assert compute.scanned == [(PRODUCT, days), (PRODUCT, days[1:2])]
    assert reconcile(_without_engine(found), TableSides(before, NOW)) == first


def test_who_may_not_keep_fingerprints_still_gets_the_answer() -> None:
    class ReadOnly(FakeEvidence):
        def record_fingerprints(self, found: Any) -> None:
            raise NotAllowed("the control tables are read-only here")

    found = context(lake(), evidence=ReadOnly())
    assert all(row.equal for row in reconcile(found, TableSides(NOW, NOW)))


@pytest.mark.req("Q4")
def test_what_is_to_be_accepted_is_read_and_the_base_only_until_it_is_known() -> None:
    where = lake()
    compute, store = FakeCompute(where), FakeStoredFiles(where)
    found = context(where, compute, stored_files=store)
    first = accepted_run(found, declared())
    days = ("2020-01-02", "2020-01-03")
    known = {*(f"old-{number}" for number in range(1, 5)), *(f"{first}/{day}" for day in days)}
    beyond, shadow = ("2020-01-01", "2020-01-04"), found.runs.plan(first).shadow_table
    assert sorted(compute.scanned) == sorted([(PRODUCT, beyond), (PRODUCT, days), (shadow, days)])
    assert {one.path for one in found.evidence.fingerprint_rows} == set(store.reads) == known
    publish(found, first, "bob")
    compute.scanned.clear()

    # Its base is what was accepted before: known since then.
    second = accepted_run(found, declared())
    assert compute.scanned == [(found.runs.plan(second).shadow_table, days)]
    made = {f"{second}/{day}" for day in days}
    assert sorted(store.reads) == sorted(known | made)
    assert [row.old_checksum for row in _judged(found, second).balances] == [
        row.new_checksum for row in _judged(found, first).balances
    ]


def _judged(found: Context, run_id: str) -> ValidationResult:
    stored = found.evidence.newest(run_id, VALIDATION)
    return ValidationResult.model_validate(stored[1])


@pytest.mark.req("Q4")
def test_of_a_file_that_is_gone_nothing_is_kept() -> None:
    where = lake()
    store = FakeStoredFiles(where, gone={"old-2"})
    found = context(where, stored_files=store)
    with pytest.raises(NotFound, match="old-2 is gone"):
        _kept(found, where)
    assert found.evidence.fingerprint_rows == []


@pytest.mark.req("Q4")
def test_a_known_file_that_is_read_again_and_has_other_rows_is_named() -> None:
    where, found = world()
    _kept(found, where)
    row = found.evidence.fingerprint_rows[0]
    edited = row.checksum.model_copy(update={"total": row.checksum.total ^ 1})
    found.evidence.fingerprint_rows[0] = row.model_copy(update={"checksum": edited})
    with pytest.raises(Tampered, match=f"{row.path} is not what was hashed"):
        _kept(found, where)


def _kept(found: Context, where: FakeLake) -> None:
    """Read two days of the product whatever is known, and keep what was read."""
    head = where.tables[PRODUCT].head
    scope = Scope(field=DAY, partitions=("2020-01-01", "2020-01-02"))
    state = fingerprints.look_up_fingerprints(found, PRODUCT, head, scope, rely=False)
    read = found.compute().measuring.by_file(PRODUCT, head, scope)
    fingerprints.record_fingerprints(found, [(state, read)], None)


@pytest.mark.req("Q4")
def test_publishing_holds_the_files_that_readers_see_against_what_was_accepted() -> None:
    found = context(lake())
    run_id = accepted_run(found, declared())
    publish(_without_engine(found), run_id, "bob")
    (_, document) = found.evidence.newest(run_id, PUBLICATION)
    assert document["verified"] == {
        "name": "what is published is what was accepted",
        "passed": True,
        "detail": "2 partitions equal, by their files",
    }


@pytest.mark.req("Q4", "U14")
def test_a_publication_of_other_rows_than_were_accepted_is_named_and_the_way_back_said() -> None:
    class Wrong(FakeLake):
        def adopt(self, request: Any) -> Any:
            swap = super().adopt(request)
            self.tables[request.target].contents[-1]["2020-01-02"] = frozenset({"old-2"})
            return swap

    found = context(Wrong(lake().tables))
    resume = {"name": "resume", "on": "after_publish", "command": ["resume"]}
    run_id = accepted_run(found, declared(contract=contract(hooks=[resume])))
    with pytest.raises(ChecksFailed, match="2020-01-02 differ") as failed:
        publish(found, run_id, "bob")
    assert failed.value.state == f"version 1 of {PRODUCT} is published, and readers see it"
    assert failed.value.fix == f"lakehouse-backfill rollback {PRODUCT} --to 0 --reason TEXT"
    assert state_of(found, run_id) is RunState.PUBLISHED
    assert [name for name, _ in found.hooks.calls] == ["resume"]
    for _ in range(2):
        with pytest.raises(ChecksFailed, match="2020-01-02 differ"):
            publish(found, run_id, "bob")
