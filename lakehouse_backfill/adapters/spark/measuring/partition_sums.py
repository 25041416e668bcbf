"""Checksums, measures and totals by partition, from one pass over the rows of all frames.

Also compares these totals with totals of the sources.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import reduce
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.domain.checks import CheckResult, MeasurePoint, MeasureTotal
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.partitions import ScopeField
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row


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
    """The contents of one frame by label: checksums, and measures in the requested order.

    Partitions without rows are omitted. `file_checksums` has checksums by label and file.
    """

    checksums: dict[str, Checksum] = field(default_factory=dict)
    measures: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    file_checksums: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    row_counts: dict[str, int] = field(default_factory=dict)

    def add_group(
        self, label: str, file: str | None, checksum: Checksum, values: list[Any]
    ) -> None:
        """Add a file's part of a partition; None: the file is unknown."""
        if file is not None:
            file_sum = self.file_checksums.get((label, file))
            self.file_checksums[label, file] = checksum if file_sum is None else file_sum + checksum
        partition_sum = self.checksums.get(label)
        self.checksums[label] = checksum if partition_sum is None else partition_sum + checksum
        sums = self.measures.get(label)
        self.measures[label] = tuple(values if sums is None else map(_plus, sums, values))


def sum_partitions(
    frames: Mapping[str, DataFrame],
    by: ScopeField,
    ignore: Sequence[str] = (),
    measures: Sequence[Measure] = (),
    told: Collection[str] = (),
    unhashed: Collection[str] = (),
) -> dict[str, PartitionSums]:
    """Compute checksums and measures by partition, of each named frame, in one job.

    `ignore` lists columns that are excluded from checksums. A column that a frame lacks has no
    value in it. Frames named in `told` must be read directly from a table: their checksums are
    also kept by file. For frames named in `unhashed` only measures are computed.
    """
    from pyspark.sql import functions as F

    if not frames:
        return {}
    shapes = {name: row_hash.shape_digest(frame.schema, ignore) for name, frame in frames.items()}
    narrowed = [
        _narrow(name, frame, by, measures, *_hash_and_file(name, frame, ignore, told, unhashed))
        for name, frame in frames.items()
    ]
    rows = reduce(lambda one, other: one.unionAll(other), narrowed)
    sums = [_sum_column(each, at) for at, each in enumerate(measures) if not each.counts_by]
    states = [f"{_VALUE}{at}" for at, measure in enumerate(measures) if measure.counts_by]
    grouped = rows.groupBy(_SIDE, _LABEL, _FILE, *states).agg(
        *row_hash.hash_aggregates(quoted_column(_HASH)), F.count(F.lit(1)).alias(_ROWS), *sums
    )
    sums_by_name = {name: PartitionSums() for name in frames}
    for row in _collect_state_groups(grouped, measures) if states else grouped.collect():
        checksum = row_hash.to_checksum(row.asDict(), shapes[row[_SIDE]])
        values = [_group_value(row, measure, at) for at, measure in enumerate(measures)]
        side, label = sums_by_name[row[_SIDE]], dataframes.format_label(by, row[_LABEL])
        side.add_group(label, row[_FILE], checksum, values)
        side.row_counts[label] = side.row_counts.get(label, 0) + row[_ROWS]
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


def _group_value(row: Row, measure: Measure, at: int) -> Any:
    """Return a group's contribution to a measure: a number, or the rows of one state."""
    value = row[f"{_VALUE}{at}"]
    if not measure.counts_by:
        return value
    return Counter({state_text(value): row[_ROWS]})


def state_text(value: Any) -> str:
    """Return the state of a counted value; the text `null` differs from the missing value."""
    if value is None:
        return NULL_STATE
    text = str(value)
    return f"={text}" if text == NULL_STATE or text.startswith("=") else text


def _hash_and_file(
    name: str,
    frame: DataFrame,
    ignore: Sequence[str],
    told: Collection[str],
    unhashed: Collection[str],
) -> tuple[Column, Column]:
    """Return the columns with row hash and file path; null where they are not requested."""
    from pyspark.sql import functions as F

    no_hash, no_file = F.lit(None).cast("bigint"), F.lit(None).cast("string")
    return (
        no_hash if name in unhashed else row_hash.row_hash_column(frame.schema, ignore),
        quoted_column(FILE_COLUMN) if name in told else no_file,
    )


def _narrow(
    name: str,
    frame: DataFrame,
    by: ScopeField,
    measures: Sequence[Measure],
    hashed: Column,
    file: Column,
) -> DataFrame:
    """Select the columns to group; the hash is computed here once, not in each aggregate."""
    from pyspark.sql import functions as F

    values = [
        _measure_input(frame, each).alias(f"{_VALUE}{at}") for at, each in enumerate(measures)
    ]
    side, label = F.lit(name).alias(_SIDE), dataframes.raw_label(by).alias(_LABEL)
    return frame.select(side, label, file.alias(_FILE), hashed.alias(_HASH), *values)


def _plus(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    with localcontext() as exact:
        exact.prec = _DECIMAL_DIGITS
        return one + other


def _measure_input(frame: DataFrame, measure: Measure) -> Column:
    from pyspark.sql import functions as F

    name = measure.sum or measure.count or measure.counts_by or ""
    value = quoted_column(name) if name in frame.columns else F.lit(None)
    if measure.counts_by:
        return value.cast("string")
    return value if measure.sum else value.isNotNull()


def _sum_column(measure: Measure, at: int) -> Column:
    from pyspark.sql import functions as F

    value = quoted_column(f"{_VALUE}{at}")
    return (F.sum(value) if measure.sum else F.count_if(value)).alias(f"{_VALUE}{at}")


#: By partition label: the values of all measures.
ValuesByLabel = Mapping[str, tuple[Any, ...]]
#: Maximum number of differing partitions in a text.
_MAX_PARTITIONS_NAMED = 3


def total_by_measure(
    measures: tuple[Measure, ...],
    labels: tuple[str, ...],
    old: ValuesByLabel | None,
    new: ValuesByLabel | None,
) -> tuple[MeasureTotal, ...]:
    """Add up the partitions of both sides (None: the side does not exist), measure by measure.

    Points are in the order of `labels`; a partition without rows has no value.
    """
    totals: list[MeasureTotal] = []
    for at, measure in enumerate(measures):
        if measure.counts_by:
            totals += _totals_by_state(measure, at, labels, old, new)
        else:
            totals.append(_measure_total(measure.name, measure, at, labels, old, new))
    return tuple(totals)


def earlier_values(
    measures: tuple[Measure, ...], history: PartitionSums
) -> dict[str, dict[str, Any]]:
    """Return rows and measures of earlier partitions: by label, then by the total's name."""
    states = {
        at: {state for values in history.measures.values() for state in values[at]}
        for at, measure in enumerate(measures)
        if measure.counts_by
    }
    values_by_label: dict[str, dict[str, Any]] = {}
    for label, values in history.measures.items():
        numbers: dict[str, Any] = {"rows": history.row_counts[label]}
        for at, measure in enumerate(measures):
            if at in states:
                numbers |= {state_total_name(measure, s): values[at][s] for s in states[at]}
            else:
                numbers[measure.name] = _decimal_as_text(values[at])
        values_by_label[label] = numbers
    return values_by_label


def state_total_name(measure: Measure, state: str) -> str:
    """Return the name of the total of one counted value."""
    return f"{measure.name}: {state}"


def _totals_by_state(
    measure: Measure,
    at: int,
    labels: tuple[str, ...],
    old: ValuesByLabel | None,
    new: ValuesByLabel | None,
) -> list[MeasureTotal]:
    """Return one total per value on either side; 0 for a partition with rows but not this value."""
    sides = (old, new)
    states = {state for side in sides for values in (side or {}).values() for state in values[at]}
    totals = []
    for state in sorted(states):
        old_values, new_values = (
            None if side is None else {label: (row[at][state],) for label, row in side.items()}
            for side in sides
        )
        total = _measure_total(
            state_total_name(measure, state), measure, 0, labels, old_values, new_values
        )
        totals.append(total.model_copy(update={"of": measure.name}))
    return totals


def _measure_total(
    name: str,
    measure: Measure,
    at: int,
    labels: tuple[str, ...],
    old: ValuesByLabel | None,
    new: ValuesByLabel | None,
) -> MeasureTotal:
    return MeasureTotal(
        name=name,
        old=_side_total(measure, at, old),
        new=_side_total(measure, at, new),
        series=tuple(
            MeasurePoint(partition=label, old=_point(old, label, at), new=_point(new, label, at))
            for label in labels
        ),
    )


def check_source_total(total: SourceTotal, ours: Any, theirs: Any) -> CheckResult:
    """Compare a total of the candidate with that of a source; NaN and infinities never match."""
    return CheckResult(
        name=f"{total.measure} of the candidate equals {total.sum or 'rows'} of {total.source}",
        group="reconciliation",
        passed=_is_close(ours, theirs, total.tolerance),
        detail=f"candidate {to_json_value(ours)}, source {to_json_value(theirs)}",
        observed=to_json_value(ours),
        limit=to_json_value(theirs),
    )


def check_source_partitions(
    total: SourceTotal,
    ours: Sequence[MeasureTotal],
    theirs: Mapping[str, Mapping[str, Any]],
) -> CheckResult:
    """Compare each partition of the candidate with the source's rows of that partition.

    `ours` has the totals of the measure, one per counted value; `theirs` has values by partition,
    then by the same names. A name that one side lacks counts as 0.
    """
    mine = {
        (point.partition, measured.name): point.new
        for measured in ours
        for point in measured.series
    }
    labels = {label for label, _ in mine}
    other = {
        (label, name): value
        for label, values in theirs.items() if label in labels for name, value in values.items()
    }  # fmt: skip
    differing = [
        cell for cell in sorted({*mine, *other})
        if not _is_close(_parse_decimal(mine.get(cell)), other.get(cell), total.tolerance)
    ]  # fmt: skip
    compared = f"{len(labels)} partitions compared, {len({at for at, _ in differing})} differ"
    details = [
        f"{label}, {name}: candidate {to_json_value(mine.get((label, name)))}, "
        f"source {to_json_value(other.get((label, name)))}"
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


def _point(side: ValuesByLabel | None, label: str, at: int) -> Any:
    return _decimal_as_text(side[label][at]) if side is not None and label in side else None


def _side_total(measure: Measure, at: int, side: ValuesByLabel | None) -> Any:
    if side is None:
        return None
    values = [values[at] for values in side.values() if values[at] is not None]
    return _decimal_as_text(_exact_sum(values)) if values or not measure.sum else None


def _exact_sum(values: Iterable[Any]) -> Any:
    with localcontext() as exact:
        exact.prec = _DECIMAL_DIGITS
        return sum(values)


def _decimal_as_text(value: Any) -> Any:
    """Convert a decimal to a text: JSON has no exact decimals."""
    return to_json_value(value) if isinstance(value, Decimal) else value
