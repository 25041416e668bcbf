"""Which delete files apply to which data files, and which go when files are swapped."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.typedef import Record

from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import plan_swap
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import ScopeFiles

PATH_ID = 2147483546
_KINDS = {
    "data": DataFileContent.DATA,
    "position": DataFileContent.POSITION_DELETES,
    "equality": DataFileContent.EQUALITY_DELETES,
}


def entry(
    path: str,
    kind: str = "data",
    number: int | None = 1,
    partition: tuple[Any, ...] = (1,),
    spec_id: int = 0,
    names: tuple[str, str] | None = None,
    rows: int = 10,
) -> ManifestEntry:
    file = DataFile.from_args(
        content=_KINDS[kind], file_path=path, file_format=FileFormat.PARQUET,
        partition=Record(*partition), record_count=rows, file_size_in_bytes=1,
        lower_bounds={PATH_ID: names[0].encode()} if names else None,
        upper_bounds={PATH_ID: names[1].encode()} if names else None,
    )  # fmt: skip
    file.spec_id = spec_id
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=1, sequence_number=number,
        file_sequence_number=number, data_file=file,
    )  # fmt: skip


def live(*entries: ManifestEntry) -> dict[str, ManifestEntry]:
    return {each.data_file.file_path: each for each in entries}


APPLIES = {
    "position delete that came later": (entry("d", "position", 2), True),
    "position delete of the same commit": (entry("d", "position", 1), True),
    "position delete from before": (entry("d", "position", 0), False),
    "position delete of another partition": (entry("d", "position", 2, (2,)), False),
    "position delete of another spec": (entry("d", "position", 2, spec_id=1), False),
    "position delete that names it": (entry("d", "position", 2, names=("a", "z")), True),
    "position delete that names others": (entry("d", "position", 2, names=("g", "z")), False),
    "cut bounds that may name it": (entry("d", "position", 2, names=("f", "fj")), True),
    "one that names it alone, elsewhere": (
        entry("d", "position", 2, (9,), 3, names=("file", "file")), True,
    ),
    "equality delete that came later": (entry("d", "equality", 2), True),
    "equality delete of the same commit": (entry("d", "equality", 1), False),
    "equality delete of all partitions": (entry("d", "equality", 2, (), 7), True),
    "equality delete of another partition": (entry("d", "equality", 2, (2,)), False),
}  # fmt: skip


@pytest.mark.req("U11")
@pytest.mark.parametrize(("delete", "applies"), APPLIES.values(), ids=APPLIES)
def test_a_delete_file_applies_as_the_format_says(delete: ManifestEntry, applies: bool) -> None:
    content = ScopeFiles(live(entry("file")), live(delete))
    assert content.deletes_by_file == {"file": frozenset({"d"} if applies else ())}


@pytest.mark.req("U11")
def test_nothing_that_is_there_applies_to_what_is_about_to_be_committed() -> None:
    content = ScopeFiles(live(entry("file", number=None)), live(entry("d", "position", 99)))
    assert content.deletes_by_file == {"file": frozenset()}


@pytest.mark.req("U11", "U12")
def test_delete_files_go_when_no_file_that_they_apply_to_stays() -> None:
    now = ScopeFiles(
        live(entry("a"), entry("b")),
        live(
            entry("of a", "position", 2, names=("a", "a")),
            entry("of both", "position", 2),
            entry("stale", "position", 0),
            entry("everywhere", "equality", 2, (), 7),
        ),
    )

    some = plan_swap(now, live(entry("b"), entry("new", number=None)))
    every = plan_swap(now, live(entry("new", number=None)))

    assert set(some.removed) == {"a", "of a", "stale"}
    assert set(every.removed) == {"a", "b", "of a", "of both", "stale"}
    assert (set(some.added), some.ambiguous, every.ambiguous) == ({"new"}, {}, {})


@pytest.mark.req("U12")
def test_a_file_that_comes_back_beside_deletes_that_may_name_it_is_ambiguous() -> None:
    now = ScopeFiles(
        live(entry("b", number=5)),
        live(entry("of both", "position", 7), entry("everywhere", "equality", 1, (), 7)),
    )
    found = plan_swap(now, live(entry("b", number=5), entry("a", number=3)))
    # By its number the equality delete does not apply; an engine that ignores numbers applies it.
    assert found.ambiguous == {"a": frozenset({"of both", "everywhere"})}


@pytest.mark.parametrize(
    ("delete", "rows"),
    [
        (entry("d", "position", 2, rows=3), (7, 10)),
        (entry("d", "position", 0, rows=3), (10, 10)),
        (entry("d", "position", 2, rows=30), (0, 10)),
        (entry("d", "equality", 2, rows=3), (0, 10)),
    ],
    ids=["hides three", "stale", "names rows twice", "hides by value"],
)
def test_rows_that_readers_see_are_known_within_bounds(delete, rows) -> None:
    assert ScopeFiles(live(entry("file")), live(delete)).row_count_range == rows


def test_each_listing_of_a_file_is_kept_with_the_deletes_that_apply_to_it() -> None:
    first, second, third = (entry("file", number=number) for number in (1, 3, 5))
    other, delete = entry("other", number=1), entry("d", "position", 3)
    content = ScopeFiles(deletes=live(delete))
    content.add_data([first, other])
    content.add_data([second, third])
    hidden = frozenset({"d"})
    assert content.data == {"file": third, "other": other}
    found = [(path, each.sequence_number, names) for path, each, names in content.listings]
    assert sorted(found) == [
        ("file", 1, hidden), ("file", 3, hidden), ("file", 5, frozenset()), ("other", 1, hidden)
    ]  # fmt: skip
