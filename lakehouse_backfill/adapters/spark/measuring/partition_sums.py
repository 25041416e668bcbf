"""Checksums, measures and totals by partition, from one pass over the rows of all frames.

Also compares these totals with totals of the sources.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.domain.checks import CheckResult, MeasurePoint, MeasureTotal
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.partitions import ScopeField
from lakehouse_backfill.domain.serialization import show_amount, to_json_value
from lakehouse_backfill.errors import ConfigError

#: Iceberg's metadata column: the path of the file that a row was read from.
FILE_COLUMN = "_file"
_SIDE = "lhb_side"
_LABEL = "lhb_label"
_HASH = "lhb_hash"
_FILE = "lhb_file"
_VALUE = "lhb_value_"
_ROWS = "lhb_rows_all"
#: The state of rows without a value of the counted column.
NULL_STATE = "null"
#: Maximum number of groups by partition, file and state on the driver.
MAX_GROUPS = 200_000
#: Digits for totals: sums and products of Spark's decimals (38 digits) must not be rounded.
_DECIMAL_DIGITS = 100


@dataclass(frozen=True)
class PartitionSums:
    """The contents of one frame by label: rows, checksums, and measures by the totals' names.

    Partitions without rows are omitted. `file_checksums` has checksums by label and file.
    """

    checksums: dict[str, Checksum] = field(default_factory=dict)
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    file_checksums: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    row_counts: Counter[str] = field(default_factory=Counter)

    def add_group(self, label: str, row: Row, checksum: Checksum, values: dict[str, Any]) -> None:
        """Add a group of rows of a partition: those of a file and of the same states."""
        _add_to(self.checksums, label, checksum)
        if row[_FILE] is not None:
            _add_to(self.file_checksums, (label, row[_FILE]), checksum)
        sums = self.measures.setdefault(label, {})
        for name, value in values.items():
            _add_to(sums, name, value)
        self.row_counts[label] += row[_ROWS]


def _add_to(sums: dict[Any, Any], key: Any, value: Any) -> None:
    """Add a value exactly; None stands for no value."""
    before = sums.get(key)
    with localcontext() as exact:
        exact.prec = _DECIMAL_DIGITS
        if before is None:
            sums[key] = value
        elif value is not None:
            sums[key] = before + value


def sum_partitions(
    frames: Mapping[str, DataFrame],
    by: ScopeField,
    ignore: Sequence[str] = (),
    measures: Sequence[Measure] = (),
    with_files: Collection[str] = (),
    unhashed: Collection[str] = (),
) -> dict[str, PartitionSums]:
    """Compute checksums and measures by partition, of each named frame, in one job.

    `ignore` lists columns that are excluded from checksums. A column that a frame lacks has no
    value in it. Frames named in `with_files` must be read directly from a table: their checksums
    are also kept by file. For frames named in `unhashed` only measures are computed.
    """
    if not frames:
        return {}
    shapes = {name: row_hash.shape_digest(frame.schema, ignore) for name, frame in frames.items()}
    narrowed = []
    for name, frame in frames.items():
        hashed, file = F.lit(None).cast("bigint"), F.lit(None).cast("string")
        if name not in unhashed:
            # Computed here once, not in each aggregate.
            hashed = row_hash.row_hash_column(frame.schema, ignore)
        if name in with_files:
            file = quoted_column(FILE_COLUMN)
        keys = F.lit(name).alias(_SIDE), dataframes.raw_label(by).alias(_LABEL), file.alias(_FILE)
        inputs = [_measure_input(frame, each, at) for at, each in enumerate(measures)]
        narrowed.append(frame.select(*keys, hashed.alias(_HASH), *inputs))
    rows = reduce(lambda one, other: one.unionAll(other), narrowed)
    sums = [
        (F.sum if each.sum else F.count_if)(quoted_column(f"{_VALUE}{at}")).alias(f"{_VALUE}{at}")
        for at, each in enumerate(measures)
        if not each.counts_by
    ]
    states = [f"{_VALUE}{at}" for at, measure in enumerate(measures) if measure.counts_by]
    grouped = rows.groupBy(_SIDE, _LABEL, _FILE, *states).agg(
        *row_hash.hash_aggregates(quoted_column(_HASH)), F.count(F.lit(1)).alias(_ROWS), *sums
    )
    sums_by_name = {name: PartitionSums() for name in frames}
    for row in _collect_state_groups(grouped, measures) if states else grouped.collect():
        checksum = row_hash.to_checksum(row.asDict(), shapes[row[_SIDE]])
        values = dict(_group_value(row, measure, at) for at, measure in enumerate(measures))
        label = dataframes.format_label(by, row[_LABEL])
        sums_by_name[row[_SIDE]].add_group(label, row, checksum, values)
    return sums_by_name


def _collect_state_groups(grouped: DataFrame, measures: Sequence[Measure]) -> list[Row]:
    """Collect groups by state; raise ConfigError when a column has too many distinct values."""
    groups = grouped.limit(MAX_GROUPS + 1).collect()
    if len(groups) > MAX_GROUPS:
        names = ", ".join(each.counts_by for each in measures if each.counts_by)
        raise ConfigError(
            f"counts by {names}: more than {MAX_GROUPS:,} groups in the run's partitions",
            fix="count by a column of few values, e.g. a state",
        )
    return groups


def _group_value(row: Row, measure: Measure, at: int) -> tuple[str, Any]:
    """Return the name of a total and a group's contribution to it."""
    value = row[f"{_VALUE}{at}"]
    if not measure.counts_by:
        return measure.name, value
    return state_total_name(measure, state_text(value)), row[_ROWS]


def state_text(value: Any) -> str:
    """Return the state of a counted value; the text `null` differs from the missing value."""
    if value is None:
        return NULL_STATE
    text = str(value)
    return f"={text}" if text == NULL_STATE or text.startswith("=") else text


def _measure_input(frame: DataFrame, measure: Measure, at: int) -> Column:
    name = measure.sum or measure.count or measure.counts_by or ""
    value = quoted_column(name) if name in frame.columns else F.lit(None)
    if measure.counts_by:
        value = value.cast("string")
    elif not measure.sum:
        value = value.isNotNull()
    return value.alias(f"{_VALUE}{at}")


#: By partition label, then by the name of the total: values.
ValuesByLabel = Mapping[str, Mapping[str, Any]]
#: Maximum number of differing partitions in a text.
_MAX_PARTITIONS_NAMED = 3


def total_by_measure(
    measures: tuple[Measure, ...],
    labels: tuple[str, ...],
    old: ValuesByLabel | None,
    new: ValuesByLabel | None,
) -> tuple[MeasureTotal, ...]:
    """Add up the partitions of both sides (None: the side does not exist), measure by measure.

    Points are in the order of `labels`; a partition without rows has no value. A measure that
    counts values has one total per value on either side, which is 0 in partitions without it.
    """
    return tuple(
        MeasureTotal(
            name=name,
            old=_side_total(measure, name, old),
            new=_side_total(measure, name, new),
            series=tuple(_point(name, label, old or {}, new or {}) for label in labels),
            of=measure.name if measure.counts_by else None,
        )
        for measure in measures
        for name in _total_names(measure, old or {}, new or {})
    )


def _total_names(measure: Measure, *sides: ValuesByLabel) -> list[str]:
    if not measure.counts_by:
        return [measure.name]
    start = state_total_name(measure, "")
    names = {name for side in sides for values in side.values() for name in values}
    return sorted(name for name in names if name.startswith(start))


def earlier_values(
    measures: tuple[Measure, ...], history: PartitionSums
) -> dict[str, dict[str, Any]]:
    """Return rows and measures of earlier partitions: by label, then by the total's name."""
    names = [name for each in measures for name in _total_names(each, history.measures)]
    return {
        label: {"rows": history.row_counts[label]}
        | {name: _decimal_as_text(values.get(name, 0)) for name in names}
        for label, values in history.measures.items()
    }


def state_total_name(measure: Measure, state: str) -> str:
    """Return the name of the total of one counted value."""
    return f"{measure.name}: {state}"


def check_source_total(total: SourceTotal, ours: Any, theirs: Any) -> CheckResult:
    """Compare a total of the candidate with that of a source; NaN and infinities never match."""
    return CheckResult(
        name=f"{total.measure} of the candidate equals {total.sum or 'rows'} of {total.source}",
        group="reconciliation",
        passed=_is_close(ours, theirs, total.tolerance),
        detail=f"candidate {show_amount(ours)}, source {show_amount(theirs)}",
        observed=to_json_value(ours),
        limit=to_json_value(theirs),
    )


def check_source_partitions(
    total: SourceTotal,
    ours: Sequence[MeasureTotal],
    theirs: Mapping[tuple[str, str], Any],
) -> CheckResult:
    """Compare each partition of the candidate with the source's rows of that partition.

    `ours` has the totals of the measure, one per counted value; `theirs` has values by partition
    and the same names. A name that one side lacks counts as 0.
    """
    mine = {
        (point.partition, measured.name): point.new
        for measured in ours
        for point in measured.series
    }
    labels = {label for label, _ in mine}
    other = {cell: value for cell, value in theirs.items() if cell[0] in labels}
    differing = [
        cell for cell in sorted({*mine, *other})
        if not _is_close(_parse_decimal(mine.get(cell)), other.get(cell), total.tolerance)
    ]  # fmt: skip
    compared = f"{len(labels):,} partitions compared, {len({at for at, _ in differing}):,} differ"
    details = [
        f"{label}, {name}: candidate {show_amount(mine.get((label, name)))}, "
        f"source {show_amount(other.get((label, name)))}"
        for label, name in differing[:_MAX_PARTITIONS_NAMED]
    ]
    details += (
        [f"and {len(differing) - _MAX_PARTITIONS_NAMED} more"]
        if len(differing) > _MAX_PARTITIONS_NAMED
        else []
    )
    column = total.sum or (f"rows by {total.counts_by}" if total.counts_by else "rows")
    return CheckResult(
        name=f"{total.measure} of each partition equals {column} of {total.source}",
        group="reconciliation",
        passed=not differing,
        detail="; ".join([compared, *details]),
        observed=len(differing),
        limit=0,
    )


def _parse_decimal(value: Any) -> Any:
    """Convert a text to a decimal: totals have decimals as text."""
    return Decimal(value) if isinstance(value, str) else value


def _is_close(ours: Any, theirs: Any, tolerance: float) -> bool:
    if not all(math.isfinite(value or 0) for value in (ours, theirs)):
        return False
    with localcontext() as exact:
        exact.prec = _DECIMAL_DIGITS
        mine, other = (Decimal(str(value or 0)) for value in (ours, theirs))
        return abs(mine - other) <= abs(other) * Decimal(str(tolerance))


def _point(name: str, label: str, *sides: ValuesByLabel) -> MeasurePoint:
    old, new = (
        _decimal_as_text(side[label].get(name, 0)) if label in side else None for side in sides
    )
    return MeasurePoint(partition=label, old=old, new=new)


def _side_total(measure: Measure, name: str, side: ValuesByLabel | None) -> Any:
    if side is None:
        return None
    sums: dict[str, Any] = {} if measure.sum else {name: 0}
    for values in side.values():
        _add_to(sums, name, values.get(name))
    return _decimal_as_text(sums.get(name))


def _decimal_as_text(value: Any) -> Any:
    """Convert a decimal to a text: JSON has no exact decimals."""
    return to_json_value(value) if isinstance(value, Decimal) else value
