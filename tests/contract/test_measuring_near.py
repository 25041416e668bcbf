"""Partitions that are measured in this process, by the values of their rows: no JVM."""

from __future__ import annotations

import json
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse_backfill.adapters.local.measuring.measuring import LocalMeasurer
from lakehouse_backfill.adapters.local.row_hash import checksum_of, row_hashes, shape_of
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.errors import Unsupported
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
@pytest.mark.parametrize("regions", [("EU",), ("null", "EU"), ("null",)], ids="-".join)
def test_rows_of_other_tuples_do_not_count_whatever_files_they_lie_in(
    kit: Kit, regions: tuple[str, ...]
) -> None:
    kit.create(("d", "identity"))
    rows = row(1, FIRST, region="EU"), row(2, FIRST, region=None), row(3, FIRST, region="US")
    kit.append(*rows)
    only = Scope(field=field_of("region"), partitions=regions)
    field = field_of("d").model_copy(update={"only": (only,)})
    named = [one for one in rows if (one["region"] or "null") in regions]
    assert summed(kit, field, FIRST) == {FIRST: checksum(kit, *named)}


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


@pytest.mark.req("Q4")
def test_columns_are_read_whatever_their_order_in_the_table_and_their_use(kit: Kit) -> None:
    kit.create(("d", "month"))
    kit.append(row(1, FIRST), row(2, SECOND, region=None))
    kit.append(row(3, "2023-12-31"))
    place, measures = (TARGET, kit.head()), (Measure(name="ids", sum="id"),)
    scope = Scope(field=field_of("d", "month"), partitions=("2024-01",))
    measurer = LocalMeasurer(kit.catalog)
    by_file = measurer.by_file(TARGET, kit.head() or 0, scope, ("d",))
    assert [one.rows for one in by_file.values()] == [2]
    for ignore in ((), ("id",), ("d",)):
        found = measurer.measure(
            place, place, scope, measures, ignore, old_is_known=True, earlier=("2023-12",)
        )
        assert [(total.old, total.new) for total in found.totals] == [(3, 3)]
        assert found.earlier == {"2023-12": {"rows": 1, "ids": 3}}


def add_column(kit: Kit, field: dict[str, Any]) -> None:
    """Add a column to the schema of all snapshots, as another engine does in format 3."""
    path = Path(kit.live.load_table(TARGET).metadata_location.removeprefix("file://"))
    stored = json.loads(path.read_text())
    stored["schemas"][0]["fields"].append({"id": 6, "name": "w", "type": "binary"} | field)
    stored |= {"format-version": 3, "last-column-id": 6, "next-row-id": 0}
    path.write_text(json.dumps(stored))


@pytest.mark.req("Q4")
@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ({"required": False, "initial-default": "0a0b"}, "default values of w are filled in"),
        ({"required": True}, "ResolveError"),
    ],
    ids=["default value", "not in the file"],
)
def test_what_pyiceberg_reads_otherwise_or_not_at_all_is_left_to_spark(
    kit: Kit, field: dict[str, Any], problem: str
) -> None:
    kit.create()
    kit.append(row(1, FIRST))
    add_column(kit, field)
    scope = Scope(field=field_of("d"), partitions=(FIRST,))
    measurer, head = LocalMeasurer(kit.catalog), kit.head() or 0
    with pytest.raises(Unsupported, match=problem):
        measurer.by_file(TARGET, head, scope)
    assert len(measurer.by_file(TARGET, head, scope, ("w",))) == 1


@pytest.mark.req("Q4")
def test_timestamps_of_files_that_were_not_written_for_iceberg_are_left_to_spark(kit: Kit) -> None:
    kit.create()
    kit.append(row(1, FIRST))
    table = kit.live.load_table(TARGET)
    with table.transaction() as change:
        mapping = table.schema().name_mapping.model_dump_json()
        change.set_properties({"schema.name-mapping.default": mapping})
    scope = Scope(field=field_of("d"), partitions=(FIRST,))
    measurer, head = LocalMeasurer(kit.catalog), kit.head() or 0
    with pytest.raises(Unsupported, match="added as they are"):
        measurer.by_file(TARGET, head, scope)
    assert len(measurer.by_file(TARGET, head, scope, ("ts",))) == 1


@pytest.mark.req("Q4")
def test_days_that_have_no_label_are_left_to_spark(kit: Kit) -> None:
    kit.create()
    kit.append(row(1, FIRST), row(2, SECOND))
    (task,) = kit.live.load_table(TARGET).scan().plan_files()
    path = task.file.file_path.removeprefix("file://")
    rows = pq.read_table(path)
    far = pa.array([19_752, 4_000_000], pa.int32()).view(pa.date32())
    pq.write_table(rows.set_column(1, rows.schema.field("d"), far), path)
    scope = Scope(field=field_of("d"), partitions=(FIRST,))
    with pytest.raises(Unsupported, match="outside of the years 1 to 9999"):
        LocalMeasurer(kit.catalog).by_file(TARGET, kit.head() or 0, scope)


@pytest.mark.req("Q4")
def test_many_bytes_and_many_counted_values_are_left_to_spark(kit: Kit) -> None:
    kit.create()
    kit.append(row(1, FIRST, v="a" * 1_000), row(2, FIRST), row(3, FIRST, v="new"))
    place, states = (TARGET, kit.head()), (Measure(name="states", counts_by="v"),)
    scope = Scope(field=field_of("d"), partitions=(FIRST,))
    for limits, problem in (
        ({"max_bytes": 300}, "bytes are more than 300"), ({"max_groups": 5}, "6 groups"),
    ):  # fmt: skip
        with pytest.raises(Unsupported, match=problem):
            LocalMeasurer(kit.catalog, **limits).measure(place, place, scope, states)
    found = LocalMeasurer(kit.catalog, max_groups=6).measure(place, place, scope, states)
    assert [total.new for total in found.totals] == [1, 1, 1]
