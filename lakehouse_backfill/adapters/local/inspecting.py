"""Looks at inputs and chunks of few rows in this process: Spark takes longer to begin."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.adapters.local.diff.layout import choose_layout, label_files
from lakehouse_backfill.adapters.local.parquet import read_file_columns
from lakehouse_backfill.adapters.local.scan import SnapshotScan, filter_of_ranges, plan_scan
from lakehouse_backfill.core.planning import resolve
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.partitions import Chunk, RowRange, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkFacts, Period
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Of so many rows the columns that are looked at fit into any process, and Spark gains nothing.
MAX_LOCAL_ROWS = 2_000_000
#: Types whose values Arrow tells apart as Spark does: not so floats (-0.0, NaN) and nested ones.
_EXACT_KEY_TYPES = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)


class LocalInspector:
    """What `spark.inspecting` counts, counted by Arrow.

    Raises Unsupported where there are too many rows, or where Arrow may count otherwise.
    """

    def __init__(self, catalog: Catalog, most_rows: int = MAX_LOCAL_ROWS) -> None:
        self._catalog = catalog
        self._max_rows = most_rows

    def periods(self, of: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Label the hours, days or months of which an input holds a row, where the run reads it."""
        pin = next((pin for pin in of.resolved.sources if pin.name == name), None)
        if pin is None or pin.range is None:
            raise Unsupported(f"{name} has no range")
        column = pin.range.column
        kind = next((each.type for each in pin.columns if each.name == column), "")
        if kind not in resolve.TIME_TYPES:
            raise Unsupported(f"{column} holds no times, as far as the plan tells")
        if (kind, unit) == ("date", "hour"):
            raise Unsupported(f"{column} holds dates, which have no hours")
        field = ScopeField.model_validate({"column": column, "transform": unit, "type": kind})
        rows = resolve.window_row_ranges(
            kind, column, *resolve.window_to_read(pin, of.resolved.scope)
        )
        side = self._plan_small_scan(pin.table, pin.snapshot_id, rows)
        found: set[str] = set()
        for table in read_file_columns(side, side.tasks, [column]):
            found |= set(_rows_by_label(_keep_in_ranges(table[column], rows), field))
        return tuple(sorted(found))

    def chunk(self, of: Plan, chunk: Chunk, snapshot_id: int | None) -> ChunkFacts:
        """Count the rows that the shadow holds of a chunk, and look at their keys."""
        if snapshot_id is None:
            raise Unsupported("a head is looked at by Spark")
        field, key = of.resolved.scope.field, of.resolved.contract.key
        scope = Scope(field=field, partitions=chunk.partitions)
        rows = partitions.scope_row_ranges(scope)
        side = self._plan_small_scan(of.shadow_table, snapshot_id, rows)
        how = choose_layout(SnapshotScan(side.name), side, scope)
        tasks = [piece.task for piece in label_files(side, how, scope)]
        names = list(dict.fromkeys((*key, field.column)))
        parts = read_file_columns(
            side, tasks, names, None if how.is_partition_aligned else filter_of_ranges(rows)
        )
        held = _concat_decoded(parts, side.schema.select(*names).as_arrow())
        return ChunkFacts(
            rows=dict(_rows_by_label(held[field.column], field)),
            null_keys={name: held[name].null_count for name in key if held[name].null_count},
            duplicate_keys=_count_duplicate_keys(held, key),
        )

    def _plan_small_scan(
        self, table: str, snapshot_id: int, rows: tuple[RowRange, ...]
    ) -> SnapshotScan:
        side = plan_scan(self._catalog, table, snapshot_id, rows)
        count = sum(task.file.record_count for task in side.tasks)
        if count > self._max_rows:
            raise Unsupported(f"{count} rows are more than {self._max_rows}")
        return side


def _concat_decoded(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Put the files' columns together, none as a dictionary."""
    plain = pa.schema([pa.field(each.name, each.type) for each in schema])
    return pa.concat_tables([plain.empty_table(), *(part.cast(plain) for part in parts)])


def _keep_in_ranges(values: pa.ChunkedArray, rows: tuple[RowRange, ...]) -> pa.ChunkedArray:
    """Keep the values of one range; nulls lie in none."""
    for each in rows:
        lower, upper = (pa.scalar(bound, values.type) for bound in (each.lower, each.upper))
        is_in = pc.and_(pc.greater_equal(values, lower), pc.less(values, upper))
        values = values.filter(is_in)
    return values


def _rows_by_label(values: pa.ChunkedArray, field: ScopeField) -> Counter[str]:
    """Count values by the partition that they belong to."""
    if field.transform != "identity":
        values = pc.floor_temporal(values, unit=field.transform)
    found: Counter[str] = Counter()
    for each in pc.value_counts(values).to_pylist():
        found[partitions.partition_label(field, each["values"])] += each["counts"]
    return found


def _count_duplicate_keys(held: pa.Table, key: tuple[str, ...]) -> int:
    """Count the keys that stand more than once; nulls are equal to each other."""
    if not key:
        return 0
    others = [name for name in key if not any(test(held[name].type) for test in _EXACT_KEY_TYPES)]
    if others:
        raise Unsupported(f"keys of {', '.join(others)} are compared by Spark")
    counted = held.select(key).group_by(list(key)).aggregate([([], "count_all")])
    return int(pc.sum(pc.greater(counted["count_all"], 1)).as_py() or 0)
