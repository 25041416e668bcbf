"""Reads snapshots for the gates: the Measuring port, with totals of sources (Q4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import (
    apply_schema_change,
    quoted_column,
    spark_errors,
)
from lakehouse_backfill.adapters.spark.measuring import partition_sums
from lakehouse_backfill.adapters.spark.measuring.partition_sums import (
    FILE_COLUMN,
    PartitionSums,
    state_text,
    sum_partitions,
)
from lakehouse_backfill.adapters.spark.session.write_guard import run_concurrently
from lakehouse_backfill.adapters.spark.staging.merge import matches_predicate
from lakehouse_backfill.adapters.spark.staging.transform import PinnedInputs, find_pin
from lakehouse_backfill.core.validation.gates import measure_totals
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import ColumnType, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.table import SchemaChange
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.ports.compute import MeasuredSides

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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
    """The source and columns of one grouping; one pass computes it."""

    source: str
    partition: str
    counts_by: str | None


class SourceSums:
    """Totals of pinned sources by partition; one job per grouping."""

    def __init__(self, inputs: PinnedInputs) -> None:
        self._inputs = inputs

    def check_totals(
        self,
        plan: Plan,
        wanted: tuple[SourceTotal, ...],
        measures: tuple[Measure, ...],
        totals: tuple[MeasureTotal, ...],
    ) -> dict[SourceTotal, CheckResult]:
        """Compare totals by partition with those of the candidate (Q4); raises ConfigError."""
        by_reading: dict[_SourceGrouping, list[SourceTotal]] = {}
        for total in wanted:
            if total.partition is not None:
                reading = _SourceGrouping(total.source, total.partition, total.counts_by)
                by_reading.setdefault(reading, []).append(total)
        by_name = {measure.name: measure for measure in measures}
        results: dict[SourceTotal, CheckResult] = {}
        for reading, group in by_reading.items():
            sums = self._sums(plan, reading, group, by_name)
            for total in group:
                ours = measure_totals(total.measure, totals)
                results[total] = partition_sums.check_source_partitions(total, ours, sums[total])
        return results

    def _sums(
        self,
        plan: Plan,
        reading: _SourceGrouping,
        wanted: list[SourceTotal],
        measures: dict[str, Measure],
    ) -> dict[SourceTotal, dict[str, dict[str, Any]]]:
        """Return the sums of each total by partition, then by the total's name."""
        frame = self._inputs.read_whole(find_pin(plan, reading.source))
        of_source = _source_scope_field(plan.resolved.scope.field, frame, reading)
        rows = self._inputs.restrict_to_ranges(
            find_pin(plan, reading.source),
            frame,
            partitions.scope_row_ranges(
                Scope(field=of_source, partitions=plan.resolved.scope.partitions)
            ),
        )
        by = [dataframes.raw_label(of_source).alias(_LABEL)]
        if reading.counts_by:
            by.append(quoted_column(reading.counts_by).cast("string").alias(_STATE))
        sums = [
            _source_total_aggregate(each).alias(f"{_VALUE}{at}") for at, each in enumerate(wanted)
        ]
        sums_by_total: dict[SourceTotal, dict[str, dict[str, Any]]] = {each: {} for each in wanted}
        with spark_errors(f"adding up {reading.source} by {reading.partition}"):
            grouped = rows.groupBy(*by).agg(*sums).collect()
        for row in grouped:
            label = dataframes.format_label(of_source, row[_LABEL])
            for at, total in enumerate(wanted):
                name = total.measure
                if reading.counts_by:
                    name = partition_sums.state_total_name(measures[name], state_text(row[_STATE]))
                sums_by_total[total].setdefault(label, {})[name] = row[f"{_VALUE}{at}"]
        return sums_by_total


def _source_scope_field(
    target: ScopeField, frame: DataFrame, reading: _SourceGrouping
) -> ScopeField:
    """Return the source's column as partition field; an instant may stand for the product's day."""
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


_OLD, _NEW, _EARLIER = "old", "new", "earlier"


class SparkMeasuring:
    """Checksums, totals and frames of exact snapshots; writes nothing."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._inputs = PinnedInputs(spark, catalog)

    def checksums(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        beside: RowPredicate | None = None,
    ) -> dict[str, Checksum]:
        """Return the checksum of each partition of the scope; partitions without rows are omitted.

        No snapshot means no rows. With `beside`, only rows that the predicate does not match count.
        """
        frames = self._open_sides({_NEW: (table, snapshot_id)}, scope)
        if beside is not None:
            frames = {
                side: frame.where(~matches_predicate(beside)) for side, frame in frames.items()
            }
        with spark_errors(f"measuring {table}"):
            return sum_partitions(frames, scope.field, ignore).get(_NEW, PartitionSums()).checksums

    def by_file(
        self,
        table: str,
        snapshot_id: int,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        skip: frozenset[str] = frozenset(),
    ) -> dict[tuple[str, str], Checksum]:
        """Return checksums by label and path: of each file's rows in each partition of the scope.

        Deleted rows and rows of files in `skip` do not count. Rows of skipped files are not hashed,
        but Iceberg reads them when their partition has other files.
        """
        frame = dataframes.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
        if skip:
            frame = frame.where(~quoted_column(FILE_COLUMN).isin(sorted(skip)))
        with spark_errors(f"measuring {table}"):
            return sum_partitions({_NEW: frame}, scope.field, ignore, (), [_NEW])[
                _NEW
            ].file_checksums

    def measure(
        self,
        old: tuple[str, int | None],
        new: tuple[str, int | None],
        scope: Scope,
        measures: tuple[Measure, ...],
        ignore: tuple[str, ...] = (),
        change: SchemaChange = (),
        *,
        old_is_known: bool = False,
        old_measures: Mapping[str, tuple[Any, ...]] | None = None,
        earlier: tuple[str, ...] = (),
    ) -> MeasuredSides:
        """Compute checksums and declared measures of the scope on both sides, in one job.

        The same job sums measures and rows of `earlier` partitions of the old side. A side without
        snapshot has no total; a side without rows has counts of 0. With `old_is_known` the old side
        is not hashed, and not read when its measures are known too.
        """
        sides = {_OLD: old, _NEW: new}
        is_unread = old_is_known and (not measures or old_measures is not None)
        frames = self._open_sides(sides, scope, change, [_OLD] if is_unread else [])
        # A derived frame has no file column: the old side has one only without a schema change.
        with_files = [side for side in frames if side == _NEW or not (change or old_is_known)]
        unhashed = [_OLD] if old_is_known else []
        if earlier and measures:
            earlier_scope = Scope(field=scope.field, partitions=earlier)
            frames[_EARLIER] = self._open_sides({_OLD: old}, earlier_scope, change)[_OLD]
            unhashed.append(_EARLIER)
        with spark_errors(f"measuring {old[0]}, {new[0]}"):
            sums = sum_partitions(frames, scope.field, ignore, measures, with_files, unhashed)
        by_side = {side: sums.get(side, PartitionSums()) for side in sides}
        return MeasuredSides(
            old={} if old_is_known else by_side[_OLD].checksums,
            new=by_side[_NEW].checksums,
            old_files=by_side[_OLD].file_checksums,
            new_files=by_side[_NEW].file_checksums,
            earlier=partition_sums.earlier_values(measures, sums.get(_EARLIER, PartitionSums())),
            totals=partition_sums.total_by_measure(
                measures,
                scope.partitions,
                None if old[1] is None else _known_or_read(old_measures, by_side[_OLD]),
                None if new[1] is None else by_side[_NEW].measures,
            ),
        )

    def source_totals(
        self,
        plan: Plan,
        wanted: tuple[SourceTotal, ...],
        measures: tuple[Measure, ...],
        totals: tuple[MeasureTotal, ...] = (),
    ) -> tuple[CheckResult, ...]:
        """Compare totals of the whole candidate with those of whole sources (Q4).

        Each table is read once. For totals by partition only the sources are read, in the run's
        partitions.
        """
        by_partition = SourceSums(self._inputs).check_totals(plan, wanted, measures, totals)
        whole = tuple(total for total in wanted if total.partition is None)
        results = (
            dict(zip(whole, self._whole_totals(plan, whole, measures), strict=True)) | by_partition
        )
        return tuple(results[total] for total in wanted)

    def _whole_totals(
        self, plan: Plan, wanted: tuple[SourceTotal, ...], measures: tuple[Measure, ...]
    ) -> tuple[CheckResult, ...]:
        if not wanted:
            return ()
        by_name = {measure.name: measure for measure in measures}
        candidate = dataframes.read_table(self._spark, self._catalog, plan.shadow_table, None)
        ours = [by_name[total.measure] for total in wanted]
        with run_concurrently(
            lambda: _collect_aggregates(candidate, [_measure_aggregate(each) for each in ours])
        ) as summing:
            theirs = self._whole_source_totals(plan, wanted)
        return tuple(
            partition_sums.check_source_total(total, own, other)
            for total, own, other in zip(wanted, summing.result(), theirs, strict=True)
        )

    def output(self, plan: Plan) -> DataFrame:
        """Return the restated partitions of the shadow, for the suites."""
        scope = plan.resolved.scope
        return dataframes.read_scope(self._spark, self._catalog, plan.shadow_table, None, scope)

    def input(self, plan: Plan, name: str) -> DataFrame:
        """Return one pinned input within its range, for the suites."""
        return self._inputs.read_declared_range(find_pin(plan, name))

    def distinct(self, plan: Plan, name: str, column: str) -> list[Any]:
        """Return the distinct non-null values of an input's column, for suite parameters."""
        return self._distinct_values(self.input(plan, name), column)

    def _distinct_values(self, frame: DataFrame, name: str) -> list[Any]:
        value = quoted_column(name)
        with spark_errors(f"reading the values of {name}"):
            values = frame.where(value.isNotNull()).select(value.alias("v")).distinct()
            return sorted((row["v"] for row in values.collect()), key=repr)

    def _open_sides(
        self,
        sides: dict[str, tuple[str, int | None]],
        scope: Scope,
        change: SchemaChange = (),
        without: Collection[str] = (),
    ) -> dict[str, DataFrame]:
        """Read the sides that have a snapshot; apply the schema change to the old one."""
        frames = {
            side: dataframes.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
            for side, (table, snapshot_id) in sides.items()
            if snapshot_id is not None and side not in without
        }
        if _OLD in frames:
            frames[_OLD] = apply_schema_change(frames[_OLD], change)
        return frames

    def _whole_source_totals(self, plan: Plan, wanted: tuple[SourceTotal, ...]) -> list[Any]:
        totals: list[Any] = [None] * len(wanted)
        for source in dict.fromkeys(total.source for total in wanted):
            positions = [at for at, total in enumerate(wanted) if total.source == source]
            frame = self._inputs.read_whole(find_pin(plan, source))
            aggregates = [_source_total_aggregate(wanted[at]) for at in positions]
            sums = _collect_aggregates(frame, aggregates)
            for at, value in zip(positions, sums, strict=True):
                totals[at] = value
        return totals


def _known_or_read(
    given: Mapping[str, tuple[Any, ...]] | None, read: PartitionSums
) -> partition_sums.ValuesByLabel:
    return read.measures if given is None else given


def _collect_aggregates(frame: DataFrame, aggregates: list[Column]) -> list[Any]:
    named = [each.alias(f"m{at}") for at, each in enumerate(aggregates)]
    with spark_errors("comparing totals with the sources"):
        return list(frame.agg(*named).collect()[0])


def _measure_aggregate(measure: Measure) -> Column:
    from pyspark.sql import functions as F

    return (
        F.sum(quoted_column(measure.sum))
        if measure.sum
        else F.count(quoted_column(measure.count or ""))
    )
