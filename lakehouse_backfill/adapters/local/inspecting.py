"""Inspection of small inputs and chunks in this process with Arrow, as Spark inspects large ones.

Starting Spark takes longer than reading so few rows here. Rows that break rules are counted here
only where Arrow counts just as Spark does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.adapters.local.diff.layout import (
    choose_layout,
    label_files,
    partition_values_of,
)
from lakehouse_backfill.adapters.local.file_metrics import told_bounds, told_nulls
from lakehouse_backfill.adapters.local.parquet import map_files, stream_file_columns
from lakehouse_backfill.adapters.local.row_hash import repeated_hashes, table_hashes
from lakehouse_backfill.adapters.local.scan import (
    SnapshotScan,
    added_files,
    filter_of_ranges,
    plan_scan,
    require_few,
    stored_bytes,
)
from lakehouse_backfill.core.planning.inputs.read_windows import (
    TIME_TYPES,
    window_row_ranges,
    window_to_read,
)
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import (
    Greater,
    Matches,
    NotNull,
    OneOf,
    RowRule,
    Unique,
    Within,
    columns_of,
)
from lakehouse_backfill.domain.partitions import Chunk, RowRange, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkFacts, Period
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.compute import Frame, Inspecting

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask

#: Yields the rows of a file in batches, with these columns.
_Stream = Callable[["FileScanTask", list[str]], Iterator[pa.Table]]
#: Of an input, one column of so many rows is read here.
MAX_LOCAL_ROWS = 2_000_000
#: Values (rows times inspected columns) of a chunk. They are read in batches; what is held of all
#: rows, the hashes of keys, is 8 bytes a row. Spark shuffles the keys, which takes it longer.
MAX_LOCAL_VALUES = 32_000_000
#: Bytes of these values as they are stored: a batch of long texts takes all memory, and a far
#: store sends all of them here.
MAX_LOCAL_BYTES = 512 * 2**20
#: Types whose values Arrow distinguishes as Spark does. Floats (-0.0, NaN) and nested types differ.
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
    """Computes with Arrow what the Spark inspector computes.

    Raises Unsupported where there are too many rows, or where Arrow may count differently.
    """

    def __init__(
        self,
        catalog: Catalog,
        max_rows: int = MAX_LOCAL_ROWS,
        max_values: int = MAX_LOCAL_VALUES,
        max_bytes: int = MAX_LOCAL_BYTES,
    ) -> None:
        """Set up; `max_rows`: of an input, `max_values` and `max_bytes` in files: of a chunk."""
        self._catalog = catalog
        self._max_rows, self._max_values, self._max_bytes = max_rows, max_values, max_bytes

    def periods(self, of: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Return the hours, days or months that hold a row, within the range that the run reads."""
        pin = next((pin for pin in of.resolved.sources if pin.name == name), None)
        if pin is None or pin.range is None:
            raise Unsupported(f"{name} has no range")
        column = pin.range.column
        kind = next((each.type for each in pin.columns if each.name == column), "")
        if kind not in TIME_TYPES:
            raise Unsupported(f"{column} holds no times, as far as the plan tells")
        if (kind, unit) == ("date", "hour"):
            raise Unsupported(f"{column} holds dates, which have no hours")
        field = ScopeField.model_validate({"column": column, "transform": unit, "type": kind})
        rows = window_row_ranges(kind, column, *window_to_read(pin, of.resolved.scope))
        side = plan_scan(self._catalog, pin.table, pin.snapshot_id, rows)
        require_few(_rows_of(side), self._max_rows, "rows")
        labels: set[str] = set()
        for task in side.tasks:
            for part in stream_file_columns(side, task, [column]):
                labels |= set(_rows_by_label(_keep_in_ranges(part[column], rows), field))
        return tuple(sorted(labels))

    def chunk(
        self, of: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...] = ()
    ) -> ChunkFacts:
        """Count a chunk's rows in the shadow, its null and duplicate keys, and broken rules."""
        facts, broken = self.count_chunk(of, chunk, snapshot_id, rules)
        if None in broken:
            raise Unsupported("some rules are counted by Spark")
        return facts.model_copy(update={"broken": broken})

    def count_chunk(
        self, of: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...]
    ) -> tuple[ChunkFacts, tuple[int | None, ...]]:
        """Return the facts, and the rows that break each rule; None where Spark must count."""
        if snapshot_id is None:
            raise Unsupported("a head is looked at by Spark")
        field, key = of.resolved.scope.field, of.resolved.contract.key
        if field.path:
            raise Unsupported("rows of partitions by a struct's field are counted by Spark")
        scope = Scope(field=field, partitions=chunk.partitions)
        rows = partitions.scope_row_ranges(scope)
        # Other chunks by key stand beside it: its commit added its rows, and none of theirs.
        is_part = chunk.keys is not None
        side = plan_scan(self._catalog, of.shadow_table, snapshot_id, rows)
        side = added_files(side) if is_part else side
        layout = choose_layout(SnapshotScan(side.name), side, scope)
        tasks = [piece.task for piece in label_files(side, layout, scope)]
        first = side.schema.fields[0].name if side.table else field.column
        of_all = _Counting(field, key, rules, first if field.is_whole_table else field.column)
        is_whole = layout.is_partition_aligned and not field.only
        wanted = None if is_whole else filter_of_ranges(rows)
        work = [(task, of_all.told(side, task) if is_whole else {}) for task in tasks]
        read = [(task, of_all.without(told).names) for task, told in work]
        values = sum(task.file.record_count * len(names) for task, names in read)
        require_few(values, self._max_values, "values")
        stored = sum(stored_bytes(side, task, names) for task, names in read)
        require_few(stored, self._max_bytes, "bytes")

        def stream(task: FileScanTask, names: list[str]) -> Iterator[pa.Table]:
            return stream_file_columns(side, task, names, wanted)

        return _count_files(work, stream, of_all)


def _rows_of(side: SnapshotScan) -> int:
    """Return how many rows the files of a side hold."""
    return sum(task.file.record_count for task in side.tasks)


@dataclass(frozen=True)
class _Counting:
    """What is counted in a chunk: partitions, the key, and rules."""

    field: ScopeField
    key: tuple[str, ...]
    rules: tuple[RowRule, ...]
    #: The column that says which partition a row is of.
    placing: str

    @property
    def names(self) -> list[str]:
        """The columns to read."""
        of_rules = (name for rule in self.rules for name in columns_of(rule))
        return list(dict.fromkeys((*self.key, self.placing, *of_rules)))

    def told(self, side: SnapshotScan, task: FileScanTask) -> dict[RowRule, int]:
        """Return the rows of a file that break rules, where the file itself says how many."""
        found = {rule: _told_breaking(side, task, rule) for rule in self.rules}
        return {rule: count for rule, count in found.items() if count is not None}

    def without(self, told: Collection[RowRule]) -> _Counting:
        """Return what is left to be counted."""
        return replace(self, rules=tuple(rule for rule in self.rules if rule not in told))

    @property
    def unique(self) -> set[tuple[str, ...]]:
        """The columns whose values, together, occur once."""
        columns = {(rule.column,) for rule in self.rules if isinstance(rule, Unique)}
        return columns | ({self.key} if self.key else set())


@dataclass
class _Counts:
    """What was counted so far. The hashes of keys, eight bytes each, are those of all rows."""

    labels: Counter[str] = dataclass_field(default_factory=Counter)
    nulls: Counter[str] = dataclass_field(default_factory=Counter)
    broken: dict[RowRule, int | None] = dataclass_field(default_factory=dict)
    hashes: dict[tuple[str, ...], bytearray] = dataclass_field(default_factory=dict)

    def add_batch(self, rows: pa.Table, of: _Counting) -> None:
        """Count the rows; raises Unsupported for keys that Arrow may not tell apart as Spark."""
        _require_exact_keys(rows, of.key)
        self.add(
            _Counts(
                Counter(_count_by_label(rows, of.field)),
                Counter({name: rows[name].null_count for name in of.key}),
                {
                    rule: count_breaking(rows, rule)
                    for rule in of.rules
                    if not isinstance(rule, Unique)
                },
                {key: bytearray(table_hashes(rows.select(key)).tobytes()) for key in of.unique},
            )
        )

    def add(self, other: _Counts) -> None:
        """Add what was counted in other rows."""
        self.labels.update(other.labels)
        self.nulls.update(other.nulls)
        for rule, count in other.broken.items():
            before = self.broken.get(rule, 0)
            self.broken[rule] = None if before is None or count is None else before + count
        for key, hashes in other.hashes.items():
            self.hashes.setdefault(key, bytearray()).extend(hashes)


def _told_breaking(side: SnapshotScan, task: FileScanTask, rule: RowRule) -> int | None:
    """Return how many rows of a file break a rule, by its metrics; None: its rows say so alone."""
    if isinstance(rule, NotNull):
        return told_nulls(side, task, rule.column)
    if not isinstance(rule, Within) or rule.of_length:
        return None
    bounds = told_bounds(side, task, rule.column)
    if bounds is None:
        return None
    # Whatever lies between two values that a range holds, it holds, too.
    return 0 if count_breaking(pa.table({rule.column: bounds}), rule) == 0 else None


def _count_files(
    work: Sequence[tuple[FileScanTask, dict[RowRule, int]]], stream: _Stream, of: _Counting
) -> tuple[ChunkFacts, tuple[int | None, ...]]:
    """Return the facts of a chunk, and the rows that break each rule; None where Spark must count.

    `work` are the files, with what each says of rules itself. Memory holds a batch of each file
    that is read, and the hashes of keys.
    """
    told_of = {id(task): told for task, told in work}
    tasks = [task for task, _ in work]

    def count(task: FileScanTask) -> _Counts:
        told = told_of[id(task)]
        left, counts = of.without(told), _Counts(broken=dict(told))
        for rows in stream(task, left.names):
            counts.add_batch(rows, left)
        return counts

    total = _Counts()
    for counts in map_files(count, tasks):
        total.add(counts)
    unique = of.without([rule for rule in of.rules if not isinstance(rule, Unique)]).names
    again = (rows for task in tasks for rows in stream(task, unique))
    repeated = _rows_that_repeat(total.hashes, again)
    for rule in of.rules:
        if isinstance(rule, Unique):
            held = repeated.get((rule.column,))
            total.broken[rule] = 0 if held is None else count_breaking(held, rule)
    facts = ChunkFacts(
        rows=dict(total.labels),
        null_keys={name: count for name, count in total.nulls.items() if count},
        duplicate_keys=_count_duplicate_keys(repeated[of.key]) if of.key in repeated else 0,
    )
    return facts, tuple(total.broken.get(rule, 0) for rule in of.rules)


#: Rows with repeated keys that are held to be counted; so many are a fault of the job.
_MAX_REPEATED_ROWS = 200_000


def _rows_that_repeat(
    hashes: dict[tuple[str, ...], bytearray], batches: Iterator[pa.Table]
) -> dict[tuple[str, ...], pa.Table]:
    """Return the keys of rows whose hash occurs more than once; no key without such rows.

    Keys that differ may have one hash, so their values are to be compared. The batches are read
    only where a hash repeats. Raises Unsupported for too many rows.
    """
    of_key = {key: repeated_hashes(each) for key, each in hashes.items()}
    of_key = {key: repeated for key, repeated in of_key.items() if len(repeated)}
    found: dict[tuple[str, ...], list[pa.Table]] = {key: [] for key in of_key}
    count = 0
    for rows in batches if of_key else ():
        for key, repeated in of_key.items():
            is_repeated = np.isin(table_hashes(rows.select(key)), repeated)
            found[key].append(rows.select(key).filter(pa.array(is_repeated)))
            count += found[key][-1].num_rows
        if count > _MAX_REPEATED_ROWS:
            raise Unsupported(f"more than {_MAX_REPEATED_ROWS:,} rows of repeated keys")
    return {key: pa.concat_tables(parts) for key, parts in found.items()}


def _keep_in_ranges(values: pa.ChunkedArray, rows: tuple[RowRange, ...]) -> pa.ChunkedArray:
    """Keep the values inside all of the ranges; nulls are dropped."""
    for row_range in rows:
        for bound, keeps in ((row_range.lower, pc.greater_equal), (row_range.upper, pc.less)):
            if bound is not None:
                values = values.filter(keeps(values, pa.scalar(bound, values.type)))
    return values.drop_null()


def _count_by_label(rows: pa.Table, field: ScopeField) -> dict[str, int]:
    """Count rows by partition; partitions without rows are left out."""
    if field.is_whole_table:
        return {partitions.WHOLE_TABLE_LABEL: rows.num_rows} if rows.num_rows else {}
    return dict(_rows_by_label(rows[field.column], field))


def _rows_by_label(values: pa.ChunkedArray, field: ScopeField) -> Counter[str]:
    """Count values by the partition that they belong to."""
    counts: Counter[str] = Counter()
    for count in pc.value_counts(partition_values_of(values, field)).to_pylist():
        counts[partitions.partition_label(field, count["values"])] += count["counts"]
    return counts


def _require_exact_keys(rows: pa.Table, key: tuple[str, ...]) -> None:
    """Raise Unsupported for a key with values that Arrow may not tell apart as Spark does."""
    inexact = [name for name in key if not any(test(rows[name].type) for test in _EXACT_KEY_TYPES)]
    if inexact:
        raise Unsupported(f"keys of {', '.join(inexact)} are compared by Spark")


def _count_duplicate_keys(keys: pa.Table) -> int:
    """Count the keys that occur more than once; nulls are equal to each other."""
    counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    return int(pc.sum(pc.greater(counted["count_all"], 1)).as_py() or 0)


class SparkCounts(Inspecting, Protocol):
    """Counts many rows, also the broken rules of a chunk alone."""

    def broken(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...]
    ) -> tuple[int, ...]:
        """Count the rows of a chunk in the shadow that break each rule."""
        ...


class InspectingBySize(Inspecting):
    """Both give the same numbers; to begin takes Spark longer than counting few rows."""

    def __init__(self, near: LocalInspector, spark: SparkCounts) -> None:
        self._near = near
        self._spark = spark

    def periods(self, plan: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Label the hours, days or months of which an input holds a row, where the run reads it."""
        with suppress(Unsupported):
            return self._near.periods(plan, name, unit)
        return self._spark.periods(plan, name, unit)

    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...] = ()
    ) -> ChunkFacts:
        """Count the rows of a chunk, and look at its keys; Spark counts the rules left over."""
        try:
            facts, broken = self._near.count_chunk(plan, chunk, snapshot_id, rules)
        except Unsupported:
            return self._spark.chunk(plan, chunk, snapshot_id, rules)
        left = tuple(rule for rule, rows in zip(rules, broken, strict=True) if rows is None)
        counted = iter(self._spark.broken(plan, chunk, snapshot_id, left) if left else ())
        whole = tuple(next(counted) if rows is None else rows for rows in broken)
        return facts.model_copy(update={"broken": whole})

    def breaking(self, frame: Frame, rules: tuple[RowRule, ...]) -> tuple[int, tuple[int, ...]]:
        """Count the rows of a frame of Spark, and those that break each of the rules."""
        return self._spark.breaking(frame, rules)


#: Java's `.` and `$` stop at each of these, RE2's do not.
_LINE_ENDS = "[\n\r\u0085\u2028\u2029]"


def count_breaking(rows: pa.Table, rule: RowRule) -> int | None:
    """Return how many rows break a rule; None where Arrow may count otherwise than Spark."""
    if isinstance(rule, NotNull):
        return int(rows[rule.column].null_count)
    if isinstance(rule, Unique):
        return _count_repeated(rows, rule.column)
    try:
        condition = _condition(rows, rule)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return None if condition is None else int(pc.sum(pc.invert(condition)).as_py() or 0)


def _condition(rows: pa.Table, rule: RowRule) -> Any:
    values = rows[rule.column]
    match rule:
        case OneOf():
            return _is_one_of(values, rule)
        case Matches():
            return _is_match(values, rule)
        case Greater():
            others = rows[rule.other]
            if _holds_nan(values) or _holds_nan(others):
                return None
            return (pc.greater_equal if rule.or_equal else pc.greater)(values, others)
        case Within():
            return _is_within(pc.utf8_length(values) if rule.of_length else values, rule)
        case _:
            return None


def _is_one_of(values: pa.ChunkedArray, rule: OneOf) -> Any:
    if pa.types.is_integer(values.type):
        values = values.cast(pa.int64())
    found = pc.is_in(values, value_set=pa.array(rule.values, values.type))
    # `is_in` says false of null; a null breaks no rule.
    found = pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))
    return pc.invert(found) if rule.is_excluded else found


def _is_match(values: pa.ChunkedArray, rule: Matches) -> Any:
    if pc.any(pc.match_substring_regex(values, _LINE_ENDS)).as_py():
        return None
    found = pc.match_substring_regex(values, rule.pattern)
    return pc.invert(found) if rule.is_excluded else found


def _is_within(values: pa.ChunkedArray, rule: Within) -> Any:
    # Spark takes NaN for greater than every number, Arrow for not comparable.
    if _holds_nan(values):
        return None
    conditions = []
    if rule.low is not None:
        above = pc.greater if rule.is_low_excluded else pc.greater_equal
        conditions.append(above(values, _bound(rule.low, values.type)))
    if rule.high is not None:
        below = pc.less if rule.is_high_excluded else pc.less_equal
        conditions.append(below(values, _bound(rule.high, values.type)))
    return conditions[0] if len(conditions) == 1 else pc.and_kleene(*conditions)


def _bound(value: Any, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(value) if isinstance(value, (int, float)) else pa.scalar(value, kind)


def _holds_nan(values: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())


def _count_repeated(rows: pa.Table, column: str) -> int:
    counted = rows.select([column]).group_by(column).aggregate([([], "count_all")])
    is_repeated = pc.and_(pc.greater(counted["count_all"], 1), pc.is_valid(counted[column]))
    return int(pc.sum(counted["count_all"].filter(is_repeated)).as_py() or 0)
