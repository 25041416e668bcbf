"""Checksums, measures and totals by partition, from one pass over the rows of all frames.

Also compares these totals with totals of the sources.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal, localcontext
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.core.validation.partition_totals import (
    MAX_GROUPS,
    state_text,
    state_total_name,
)
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.comparison.partition_sums import DECIMAL_DIGITS, PartitionSums
from lakehouse_backfill.domain.contract import Measure, SourceTotal
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
        sums_by_name[row[_SIDE]].add_group(label, row[_FILE], row[_ROWS], checksum, values)
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


def _measure_input(frame: DataFrame, measure: Measure, at: int) -> Column:
    name = measure.sum or measure.count or measure.counts_by or ""
    value = quoted_column(name) if name in frame.columns else F.lit(None)
    if measure.counts_by:
        value = value.cast("string")
    elif not measure.sum:
        value = value.isNotNull()
    return value.alias(f"{_VALUE}{at}")


#: Maximum number of differing partitions in a text.
_MAX_PARTITIONS_NAMED = 3


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
        exact.prec = DECIMAL_DIGITS
        mine, other = (Decimal(str(value or 0)) for value in (ours, theirs))
        return abs(mine - other) <= abs(other) * Decimal(str(tolerance))
