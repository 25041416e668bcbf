"""Totals of sources by the product's partitions, beside those of the candidate (Q4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.adapters.spark import labels
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.measuring import measured
from lakehouse_backfill.adapters.spark.measuring.partition_sums import state_text
from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.adapters.spark.staging.inputs import PinnedInputs, find_pin
from lakehouse_backfill.core.validation.reasonable import measure_totals
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import ColumnType, Scope, ScopeField
from lakehouse_backfill.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ICEBERG_TYPES: dict[str, ColumnType] = {
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "string": "string",
}
_LABEL, _STATE, _VALUE = "lhb_label", "lhb_state", "lhb_value_"
_TIMES = ("date", "timestamp", "timestamptz")


class _SourceGrouping(NamedTuple):
    """What is grouped in one pass over a source."""

    source: str
    partition: str
    counts_by: str | None


class SourceSums:
    """Adds up pinned sources by partition, each grouping in one job."""

    def __init__(self, inputs: PinnedInputs) -> None:
        self._inputs = inputs

    def judged(
        self,
        plan: Plan,
        wanted: tuple[SourceTotal, ...],
        measures: tuple[Measure, ...],
        totals: tuple[MeasureTotal, ...],
    ) -> dict[SourceTotal, CheckResult]:
        """Compare the totals by partition with those of the candidate; raises ConfigError."""
        by_reading: dict[_SourceGrouping, list[SourceTotal]] = {}
        for total in wanted:
            if total.partition is not None:
                reading = _SourceGrouping(total.source, total.partition, total.counts_by)
                by_reading.setdefault(reading, []).append(total)
        by_name = {measure.name: measure for measure in measures}
        found: dict[SourceTotal, CheckResult] = {}
        for reading, group in by_reading.items():
            sums = self._sums(plan, reading, group, by_name)
            for total in group:
                ours = measure_totals(total.measure, totals)
                found[total] = measured.check_source_partitions(total, ours, sums[total])
        return found

    def _sums(
        self,
        plan: Plan,
        reading: _SourceGrouping,
        wanted: list[SourceTotal],
        measures: dict[str, Measure],
    ) -> dict[SourceTotal, dict[str, dict[str, Any]]]:
        """Give the sums of each total by partition, then by the total's name."""
        frame = self._inputs.whole(find_pin(plan, reading.source))
        of_source = _source_scope_field(plan.resolved.scope.field, frame, reading)
        rows = self._inputs.restricted(
            find_pin(plan, reading.source), frame,
            partitions.scope_row_ranges(Scope(field=of_source, partitions=plan.resolved.scope.partitions)),
        )  # fmt: skip
        by = [labels.raw_label(of_source).alias(_LABEL)]
        if reading.counts_by:
            by.append(quoted_column(reading.counts_by).cast("string").alias(_STATE))
        sums = [
            _source_total_aggregate(each).alias(f"{_VALUE}{at}") for at, each in enumerate(wanted)
        ]
        found: dict[SourceTotal, dict[str, dict[str, Any]]] = {each: {} for each in wanted}
        with spark_errors(f"adding up {reading.source} by {reading.partition}"):
            grouped = rows.groupBy(*by).agg(*sums).collect()
        for row in grouped:
            label = labels.format_label(of_source, row[_LABEL])
            for at, total in enumerate(wanted):
                name = total.measure
                if reading.counts_by:
                    name = measured.state_total_name(measures[name], state_text(row[_STATE]))
                found[total].setdefault(label, {})[name] = row[f"{_VALUE}{at}"]
        return found


def _source_scope_field(
    target: ScopeField, frame: DataFrame, reading: _SourceGrouping
) -> ScopeField:
    """Give the source's column as the product's partition field: a day may come as an instant."""
    field = next((f for f in frame.schema.fields if f.name == reading.partition), None)
    if field is None:
        raise NotFound(
            f"{reading.source} has no column {reading.partition}, which says the partition",
            fix="name a column of the source in source_totals.partition",
        )
    kind, transform = _ICEBERG_TYPES.get(field.dataType.typeName()), target.transform
    if target.type == "date" and transform == "identity" and kind in _TIMES and kind != "date":
        transform = "day"
    is_alike = kind == target.type or {kind, target.type} <= {"int", "long"}
    if kind is None or not (is_alike or (kind in _TIMES and target.type in _TIMES)):
        raise ConfigError(
            f"{reading.source}.{reading.partition} is {field.dataType.simpleString()}, and "
            f"partitions are of {target.column}, which is {target.type}",
            fix="name a column of the source that holds the same values",
            field="source_totals.partition",
        )
    return ScopeField(column=reading.partition, transform=transform, type=kind)


def _source_total_aggregate(total: SourceTotal) -> Column:
    from pyspark.sql import functions as F

    return F.sum(quoted_column(total.sum)) if total.sum else F.count(F.lit(1))
