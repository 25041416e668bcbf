"""Watermark policies: which input rows of a stateful job are late, and what becomes of them.

Whether a row is late follows from rows of the pinned input alone, never from the chunk that reads
it: any cut into chunks judges each row in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import is_true, quoted_column
from lakehouse_backfill.core.planning.inputs.read_windows import TIME_TYPES
from lakehouse_backfill.domain.partitions import ScopeField
from lakehouse_backfill.domain.stateful.declaration import LATE_COLUMN, Stateful, Watermark
from lakehouse_backfill.errors import ConfigError

_ARRIVAL, _MARK, _LATEST = "lhb_arrival", "lhb_mark", "lhb_latest"
#: Types without an order, alone or inside of another type.
_UNORDERED = ("map", "variant", "interval", "geometry", "geography")


class Cut(NamedTuple):
    """The column by which a source is cut, and the unit of the partitions: hour, day, month, year.

    A row's own partition is that of its value there.
    """

    column: str
    unit: str

    @staticmethod
    def of(column: str, field: ScopeField) -> Cut:
        """Return the cut of a source for partitions of time."""
        return Cut(column, "day" if field.transform == "identity" else field.transform)


def has_order(kind: DataType) -> bool:
    """Return whether rows can be sorted by a column of the type."""
    if isinstance(kind, ArrayType):
        return has_order(kind.elementType)
    if isinstance(kind, StructType):
        return all(has_order(field.dataType) for field in kind.fields)
    return kind.typeName() not in _UNORDERED


def with_late_marks(
    declared: Stateful, frame: DataFrame, cut: Cut, whole: Callable[[], DataFrame]
) -> DataFrame | None:
    """Return the rows with a column that is true for late ones; None: no row can be late.

    `cut` says of which partition a row is; `whole` reads the declared range of the source, by whose
    rows, in order of arrival, the watermark moves.
    """
    mark = declared.watermark
    if mark.policy == "by_time_partition":
        is_late = _is_before_partition(frame, str(mark.event_time), cut)
    elif mark.policy in ("bounded_disorder", "corrections_for_late_facts"):
        frame, is_late = _behind_watermark(mark, frame, whole())
    else:
        return None
    return frame.withColumn(LATE_COLUMN, is_true(is_late)).drop(_ARRIVAL, _MARK)


def apply_policy(declared: Stateful, frame: DataFrame, marked: DataFrame | None) -> DataFrame:
    """Return the rows as the job gets them; `marked`: with the marks of late ones, if any can be.

    Late rows are left out, or stay with their mark. Rows that are to be in order of event time come
    sorted by it within each key, and then by all other columns that have an order.
    """
    if marked is not None:
        if declared.late == "correct":
            return marked
        return marked.where(~quoted_column(LATE_COLUMN)).drop(LATE_COLUMN)
    mark = declared.watermark
    if mark.policy != "sort_by_event_time_in_key" or mark.event_time is None:
        return frame
    _require_columns(frame, mark.event_time, *declared.state.key)
    keys = [quoted_column(name) for name in declared.state.key]
    first = {*declared.state.key, mark.event_time}
    others = [
        quoted_column(field.name)
        for field in frame.schema.fields
        if field.name not in first and has_order(field.dataType)
    ]
    ordered = frame.repartition(*keys)
    return ordered.sortWithinPartitions(*keys, quoted_column(mark.event_time), *others)


def _is_before_partition(frame: DataFrame, name: str, cut: Cut) -> Column:
    """Build the condition that a column of time is before the start of the row's own partition.

    It is null for a row without a time. Sessions are in UTC, as partitions are.
    """
    _require_columns(frame, name)
    kind = dataframes.iceberg_type(frame.schema, name)
    if kind not in TIME_TYPES:
        raise ConfigError(
            f"stateful.watermark.event_time {name} is {kind}",
            fix="name a date or timestamp column",
        )
    start = F.date_trunc(cut.unit, quoted_column(cut.column).cast("timestamp"))
    if kind == "date":
        return quoted_column(name) < start.cast("date")
    return quoted_column(name).cast("timestamp") < start


def _behind_watermark(
    mark: Watermark, frame: DataFrame, whole: DataFrame
) -> tuple[DataFrame, Column]:
    """Return the rows with the watermark when they arrived, and whether they are behind it.

    The watermark is the latest event of all rows that arrived before, less the disorder; rows that
    arrived at one time have the same.
    """
    event, arrival = str(mark.event_time), str(mark.arrival)
    _require_columns(frame, event, arrival)
    latest = whole.groupBy(quoted_column(arrival).alias(_ARRIVAL)).agg(
        F.max(quoted_column(event).cast("timestamp")).alias(_LATEST)
    )
    before = Window.orderBy(_ARRIVAL).rowsBetween(Window.unboundedPreceding, -1)
    marks = latest.select(_ARRIVAL, F.max(_LATEST).over(before).alias(_MARK))
    joined = frame.join(marks, quoted_column(arrival) == quoted_column(_ARRIVAL), "left")
    bound = quoted_column(_MARK) - F.expr(f"INTERVAL {int(mark.disorder_s or 0)} SECONDS")
    return joined, quoted_column(event).cast("timestamp") < bound


def _require_columns(frame: DataFrame, *names: str) -> None:
    if missing := [name for name in names if name not in frame.columns]:
        raise ConfigError(
            f"the source of the watermark has no column {', '.join(missing)}",
            state="nothing was written",
            fix="correct stateful.watermark, and stateful.state.key",
        )
