"""Partitions that are measured in this process, by the values of their rows: no JVM."""

from __future__ import annotations

from functools import reduce
from operator import add

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.local.measuring import LocalMeasurer
from lakehouse_backfill.adapters.local.row_hash import checksum_of, row_hashes, shape_of
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from tests.support.lakes.tables import TARGET, Kit, Row, field_of, row

FIRST, SECOND, THIRD = "2024-01-30", "2024-01-31", "2024-02-01"
ROWS = (row(1, FIRST), row(2, FIRST, region=None), row(3, SECOND), row(4, THIRD), row(5, None))


def checksum(kit: Kit, *rows: Row) -> Checksum:
    """What rows of the kit's table are, hashed without reading a file."""
    schema = kit.live.load_table(TARGET).schema().as_arrow()
    columns = [[each[name] for each in rows] for name in schema.names]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    plain = pa.schema([(field.name, field.type) for field in schema])
    hashes = row_hashes(pa.RecordBatch.from_arrays(arrays, schema=plain))
    return checksum_of(hashes, shape_of(plain))


def summed(kit: Kit, field: ScopeField, *labels: str) -> dict[str, Checksum]:
    """The checksums of partitions, added up over their files."""
    scope = Scope(field=field, partitions=labels)
    by_file = LocalMeasurer(kit.catalog).by_file(TARGET, kit.head() or 0, scope)
    return {
        label: reduce(add, [one for (of, _), one in by_file.items() if of == label])
        for label in {label for label, _ in by_file}
    }


@pytest.mark.req("Q4")
@pytest.mark.parametrize("by", [("d", "identity"), ("d", "month"), ("id", "bucket[3]")])
def test_rows_count_in_the_partition_of_their_values_whatever_files_they_lie_in(
    kit: Kit, by: tuple[str, str]
) -> None:
    kit.create(by)
    kit.append(*ROWS[:2])
    kit.append(*ROWS[2:])
    by_day = summed(kit, field_of("d"), FIRST, THIRD, "null", "2024-03-01")
    assert by_day == {
        FIRST: checksum(kit, *ROWS[:2]), THIRD: checksum(kit, ROWS[3]),
        "null": checksum(kit, ROWS[4]),
    }  # fmt: skip
    by_month = summed(kit, field_of("d", "month"), "2024-01")
    assert by_month == {"2024-01": checksum(kit, *ROWS[:3])}
    whole = ScopeField(column="*", transform="table", type="string")
    assert summed(kit, whole, "all") == {"all": checksum(kit, *ROWS)}


@pytest.mark.req("Q4")
def test_measures_and_checksums_are_of_the_snapshots_that_are_named(kit: Kit) -> None:
    kit.create(("d", "month"))
    kit.append(*ROWS[:3])
    before, scope = kit.head(), Scope(field=field_of("d", "month"), partitions=("2024-01",))
    kit.append(row(6, SECOND, region="US"))
    wanted = (Measure(name="ids", sum="id"), Measure(name="by_region", counts_by="region"))
    found = LocalMeasurer(kit.catalog).measure(
        (TARGET, before), (TARGET, kit.head()), scope, wanted, ("v",)
    )
    assert {total.name: (total.old, total.new) for total in found.totals} == {
        "ids": (6, 12), "by_region: EU": (2, 2), "by_region: US": (0, 1),
        "by_region: null": (1, 1),
    }  # fmt: skip
    assert [one["2024-01"].rows for one in (found.old, found.new)] == [3, 4]
    assert len(found.old_files) == 1
    assert len(found.new_files) == 2
