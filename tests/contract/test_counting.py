"""How many values partitions hold, from what files say of themselves: the same as reading them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.types import StringType

from lakehouse_backfill.adapters.local.scan import PinnedCounts, count_rows
from lakehouse_backfill.core.validation.anomalies import rows_by_partition, values_by_partition
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import RowRange
from tests.support.lakes.tables import TARGET, Kit, field_of, row

FIRST, SECOND = "2024-01-30", "2024-02-01"
LINES, REGIONS = Measure(name="lines", count="id"), Measure(name="regions", count="region")


@pytest.fixture
def kit(kit: Kit) -> Kit:
    kit.create(("d", "month"))
    kit.append(row(1, FIRST), row(2, FIRST, region=None), row(3, SECOND))
    kit.append(row(4, FIRST, region=None))
    return kit


@pytest.mark.req("Q4")
def test_files_say_how_many_values_they_hold_of_the_columns_asked_for(kit: Kit) -> None:
    by_month = field_of("d", "month")
    files = kit.tables.files(TARGET, kit.head(), by_month, ("id", "region", "nowhere"))
    assert sorted((f.partition or "", f.values["id"], f.values["region"]) for f in files) == [
        ("2024-01", 1, 0), ("2024-01", 2, 1), ("2024-02", 1, 1),
    ]  # fmt: skip
    assert all(set(file.values) == {"id", "region"} for file in files)
    assert all(file.values == {} for file in kit.tables.files(TARGET, kit.head(), by_month))


@pytest.mark.req("Q4", "Q9")
def test_values_of_partitions_are_added_up_where_every_file_says_them(kit: Kit) -> None:
    files = kit.tables.files(TARGET, kit.head(), field_of("d", "month"), ("id", "region"))
    months = ("2024-01", "2024-02", "2024-03")
    found = values_by_partition(months, files, (LINES, REGIONS))
    assert found == {"2024-01": (3, 1), "2024-02": (1, 1)}
    assert values_by_partition(("2024-02",), files, (LINES,)) == {"2024-02": (1,)}
    assert rows_by_partition(months[:2], files, (LINES, REGIONS), found or {}) == {
        "2024-01": {"rows": 3, "lines": 3, "regions": 1},
        "2024-02": {"rows": 1, "lines": 1, "regions": 1},
    }
    assert values_by_partition(months, files, (Measure(name="sum", sum="id"),)) is None
    assert values_by_partition(months, files, (Measure(name="by", counts_by="region"),)) is None


@pytest.mark.req("Q4")
def test_deletes_coarser_files_and_files_without_numbers_have_to_be_read(kit: Kit) -> None:
    by_day = kit.tables.files(TARGET, kit.head(), field_of("d", "day"), ("id",))
    assert values_by_partition((FIRST,), by_day, (LINES,)) is None
    assert values_by_partition(("2024-05-01",), by_day, (LINES,)) == {}
    files = kit.tables.files(TARGET, kit.head(), field_of("d", "month"), ("id",))
    hidden = [file.model_copy(update={"deletes": ("d.parquet",)}) for file in files]
    assert values_by_partition(("2024-02",), hidden, (LINES,)) is None


@pytest.mark.req("Q4")
def test_of_a_column_that_came_later_files_say_nothing(kit: Kit) -> None:
    kit.evolve(lambda change: change.add_column("late", StringType()))
    files = kit.tables.files(TARGET, kit.head(), field_of("d", "month"), ("late",))
    late = (Measure(name="late", count="late"),)
    assert values_by_partition(("2024-01",), files, late) is None


@pytest.mark.req("Q4", "P2")
def test_rows_of_a_pinned_snapshot_are_counted_as_without_cache_and_manifests_are_read_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.append(row(5, None), row(6, SECOND), row(7, "2024-03-05"))
    head, pinned = kit.head(), PinnedCounts(kit.catalog)
    days = [date(2024, month, day) for month in (1, 2, 3, 4) for day in (1, 5)]
    pairs = [(lower, upper) for lower in days for upper in days if lower < upper]
    spans = [RowRange("d", *pair) for pair in pairs]
    asked: list[tuple[RowRange, ...]] = [
        (), *((span,) for span in spans), (RowRange("d", is_null=True),),
        (spans[0], RowRange("d", is_null=True)), (RowRange("d", days[-1], None),),
    ]  # fmt: skip
    expected = [count_rows(kit.catalog, TARGET, head, rows) for rows in asked]
    assert {None, 0, 7} < set(expected)
    assert [pinned.count(TARGET, head, rows) for rows in asked] == expected
    kit.append(row(8, FIRST))
    reads: list[str] = []
    through = ManifestFile.fetch_manifest_entry

    def noted(manifest: ManifestFile, *given: Any, **named: Any) -> Any:
        reads.append(manifest.manifest_path)
        return through(manifest, *given, **named)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", noted)
    months = [RowRange("d", *pair) for pair in pairs if {one.day for one in pair} == {1}]
    assert None not in [pinned.count(TARGET, head, (month,)) for month in months]
    assert reads == []
    assert pinned.count(TARGET, kit.head(), ()) == 8
