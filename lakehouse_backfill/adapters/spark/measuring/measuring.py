"""Reads snapshots for the gates: the Measuring port, with totals of sources (Q4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import (
    SparkTables,
    apply_schema_change,
    quoted_column,
)
from lakehouse_backfill.adapters.spark.measuring import partition_sums
from lakehouse_backfill.adapters.spark.measuring.partition_sums import FILE_COLUMN, sum_partitions
from lakehouse_backfill.adapters.spark.pinned_inputs import PinnedInputs, find_pin
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.session.write_guard import run_concurrently
from lakehouse_backfill.adapters.spark.staging.compose import DeletedRowFilter
from lakehouse_backfill.adapters.spark.staging.masks import (
    MaskRepetition,
    SecretReader,
    count_misshapen,
    refuse_secret,
)
from lakehouse_backfill.adapters.spark.staging.merge import matches_predicate
from lakehouse_backfill.core.validation.gates import measure_totals
from lakehouse_backfill.core.validation.partition_totals import (
    measured_sides,
    state_text,
    state_total_name,
)
from lakehouse_backfill.domain.catch_up import ExcludedRows
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.comparison.partition_sums import NO_ROWS
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.guards.privacy import MaskedColumn, MaskSources
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import Scope, ScopeField, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.ports.compute import MeasuredSides

_LABEL, _STATE, _VALUE = "lhb_label", "lhb_state", "lhb_value_"
_TIMES = ("date", "timestamp", "timestamptz")


class _SourceGrouping(NamedTuple):
    """The source and columns of one grouping; one pass computes it."""

    source: str
    partition: str
    counts_by: str | None


def _source_scope_field(
    target: ScopeField, frame: DataFrame, reading: _SourceGrouping
) -> ScopeField:
    """Return the source's column as partition field; an instant may stand for the product's day."""
    if reading.partition not in frame.columns:
        raise NotFound(
            f"{reading.source} has no column {reading.partition}, which says the partition",
            fix="name a column of the source in source_totals.partition",
        )
    kind = dataframes.iceberg_type(frame.schema, reading.partition)
    transform = target.transform
    if target.type == "date" and transform == "identity" and kind in _TIMES and kind != "date":
        transform = "day"
    is_alike = kind == target.type or {kind, target.type} <= {"int", "long"}
    if kind is None or not (is_alike or (kind in _TIMES and target.type in _TIMES)):
        raise ConfigError(
            f"{reading.source}.{reading.partition} is "
            f"{frame.schema[reading.partition].dataType.simpleString()}, and partitions are of "
            f"{target.column}, which is {target.type}",
            fix="name a column of the source that holds the same values",
            field="source_totals.partition",
        )
    return ScopeField(column=reading.partition, transform=transform, type=kind)


def _source_total_aggregate(total: SourceTotal) -> Column:
    return F.sum(quoted_column(total.sum)) if total.sum else F.count(F.lit(1))


_OLD, _NEW, _EARLIER = "old", "new", "earlier"


class SparkMeasuring:
    """Checksums, totals and frames of exact snapshots; writes nothing."""

    def __init__(self, tables: SparkTables, secret: SecretReader = refuse_secret) -> None:
        """Set up; `secret` returns that of a plan's masks."""
        self._tables = tables
        self._secret = secret
        self._inputs = PinnedInputs(tables)

    def checksums(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        beside: RowPredicate | None = None,
        without: ExcludedRows | None = None,
    ) -> dict[str, Checksum]:
        """Return the checksum of each partition of the scope; partitions without rows are omitted.

        No snapshot means no rows. With `beside`, only rows that the predicate does not match count;
        with `without`, only rows that no tombstone or deletion names.
        """
        if snapshot_id is None:
            return {}
        frame = self._tables.read_scope(table, snapshot_id, scope)
        if beside is not None:
            frame = frame.where(~matches_predicate(beside))
        if without is not None:
            frame = DeletedRowFilter(self._tables).drop_excluded(frame, without)
        with spark_errors(f"measuring {table}"):
            return sum_partitions({_NEW: frame}, scope.field, ignore)[_NEW].checksums

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
        frame = self._tables.read_scope(table, snapshot_id, scope)
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
        is_unread = old_is_known and (not measures or old_measures is not None)
        frames = {}
        if old[1] is not None and not is_unread:
            frames[_OLD] = self._read_old(old, scope, change)
        if new[1] is not None:
            frames[_NEW] = self._tables.read_scope(*new, scope)
        # A derived frame has no file column: the old side has one only without a schema change.
        with_files = [side for side in frames if side == _NEW or not (change or old_is_known)]
        unhashed = [_OLD] if old_is_known else []
        if earlier and measures:
            earlier_scope = Scope(field=scope.field, partitions=earlier)
            frames[_EARLIER] = self._read_old(old, earlier_scope, change)
            unhashed.append(_EARLIER)
        with spark_errors(f"measuring {old[0]}, {new[0]}"):
            sums = sum_partitions(frames, scope.field, ignore, measures, with_files, unhashed)
        return measured_sides(
            measures, scope, sums.get(_OLD, NO_ROWS), sums.get(_NEW, NO_ROWS),
            sums.get(_EARLIER, NO_ROWS),
            has_old=old[1] is not None, has_new=new[1] is not None,
            old_is_known=old_is_known, old_measures=old_measures,
        )  # fmt: skip

    def _read_old(
        self, old: tuple[str, int | None], scope: Scope, change: SchemaChange
    ) -> DataFrame:
        return apply_schema_change(self._tables.read_scope(*old, scope), change)

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
        by_name = {measure.name: measure for measure in measures}
        whole = [total for total in wanted if total.partition is None]
        results = self._check_whole(plan, whole, by_name) if whole else {}
        by_reading: dict[_SourceGrouping, list[SourceTotal]] = {}
        for total in wanted:
            if total.partition is not None:
                reading = _SourceGrouping(total.source, total.partition, total.counts_by)
                by_reading.setdefault(reading, []).append(total)
        for reading, group in by_reading.items():
            sums = self._partition_sums(plan, reading, group, by_name)
            for total in group:
                ours = measure_totals(total.measure, totals)
                results[total] = partition_sums.check_source_partitions(total, ours, sums[total])
        return tuple(results[total] for total in wanted)

    def _check_whole(
        self, plan: Plan, wanted: list[SourceTotal], measures: dict[str, Measure]
    ) -> dict[SourceTotal, CheckResult]:
        candidate = self._tables.read(plan.shadow_table, None)
        ours = [measures[total.measure] for total in wanted]
        aggregates = [
            F.sum(quoted_column(each.sum)) if each.sum else F.count(quoted_column(each.count or ""))
            for each in ours
        ]
        with run_concurrently(lambda: _collect_aggregates(candidate, aggregates)) as summing:
            theirs = self._whole_source_totals(plan, wanted)
        return {
            total: partition_sums.check_source_total(total, own, theirs[total])
            for total, own in zip(wanted, summing.result(), strict=True)
        }

    def _whole_source_totals(self, plan: Plan, wanted: list[SourceTotal]) -> dict[SourceTotal, Any]:
        totals: dict[SourceTotal, Any] = {}
        for source in dict.fromkeys(total.source for total in wanted):
            group = [total for total in wanted if total.source == source]
            frame = self._inputs.read_whole(find_pin(plan, source))
            sums = _collect_aggregates(frame, [_source_total_aggregate(each) for each in group])
            totals |= dict(zip(group, sums, strict=True))
        return totals

    def _partition_sums(
        self,
        plan: Plan,
        reading: _SourceGrouping,
        wanted: list[SourceTotal],
        measures: dict[str, Measure],
    ) -> dict[SourceTotal, dict[tuple[str, str], Any]]:
        """Return the sums of each total by partition and the total's name."""
        pin = find_pin(plan, reading.source)
        frame = self._inputs.read_whole(pin)
        of_source = _source_scope_field(plan.resolved.scope.field.whole, frame, reading)
        scope = Scope(field=of_source, partitions=plan.resolved.scope.partitions)
        rows = self._tables.restrict_to_ranges(pin.table, frame, scope_row_ranges(scope))
        by = [dataframes.raw_label(of_source).alias(_LABEL)]
        if reading.counts_by:
            by.append(quoted_column(reading.counts_by).cast("string").alias(_STATE))
        sums = [
            _source_total_aggregate(each).alias(f"{_VALUE}{at}") for at, each in enumerate(wanted)
        ]
        sums_by_total: dict[SourceTotal, dict[tuple[str, str], Any]] = {each: {} for each in wanted}
        with spark_errors(f"adding up {reading.source} by {reading.partition}"):
            grouped = rows.groupBy(*by).agg(*sums).collect()
        for row in grouped:
            label = dataframes.format_label(of_source, row[_LABEL])
            for at, total in enumerate(wanted):
                name = total.measure
                if reading.counts_by:
                    name = state_total_name(measures[name], state_text(row[_STATE]))
                sums_by_total[total][label, name] = row[f"{_VALUE}{at}"]
        return sums_by_total

    def masked(
        self, plan: Plan, snapshot_id: int | None, sources: MaskSources
    ) -> tuple[MaskedColumn, ...]:
        """Count, in the shadow's partitions of the run, what masks did not make."""
        scope, contract = plan.resolved.scope, plan.resolved.contract

        def read_input(name: str) -> DataFrame:
            return self._inputs.read_for_scope(find_pin(plan, name), scope)

        def read_stored(labels: tuple[str, ...]) -> DataFrame:
            part = scope.model_copy(update={"partitions": labels})
            return self._tables.read_scope(plan.shadow_table, snapshot_id, part)

        again = MaskRepetition(contract, sources, self._secret, read_input, read_stored)
        raw: dict[str, list[DataFrame]] = {}
        for column, places in sources.raw.items():
            for name, origin in places if again.covers(column) is None else ():
                frame = read_input(name)
                if isinstance(frame.schema[origin].dataType, StringType):
                    raw.setdefault(column, []).append(frame.select(quoted_column(origin)))
        with spark_errors("verifying masks"):
            stored = read_stored(scope.partitions)
            found = count_misshapen(stored, contract.masked_columns, raw)
            return tuple(map(again.compare, found))

    def frame(self, table: str, snapshot_id: int | None, scope: Scope | None) -> DataFrame:
        """Return the rows of a table at a snapshot, all or by scope, for the suites."""
        if scope is None:
            return self._tables.read(table, snapshot_id)
        return self._tables.read_scope(table, snapshot_id, scope)

    def input(self, plan: Plan, name: str) -> DataFrame:
        """Return one pinned input within its range, for the suites."""
        return self._inputs.read_declared_range(find_pin(plan, name))

    def distinct(self, plan: Plan, name: str, column: str) -> list[Any]:
        """Return the distinct non-null values of an input's column, for suite parameters."""
        value = quoted_column(column)
        frame = self.input(plan, name)
        with spark_errors(f"reading the values of {column}"):
            values = frame.where(value.isNotNull()).select(value.alias("v")).distinct()
            return sorted((row["v"] for row in values.collect()), key=repr)


def _collect_aggregates(frame: DataFrame, aggregates: list[Column]) -> list[Any]:
    named = [each.alias(f"m{at}") for at, each in enumerate(aggregates)]
    with spark_errors("comparing totals with the sources"):
        return list(frame.agg(*named).collect()[0])
