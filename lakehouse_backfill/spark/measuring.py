"""Reads snapshots for the gates: the Measuring port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse_backfill.model.checks import CheckResult
from lakehouse_backfill.model.checksum import Checksum
from lakehouse_backfill.model.contract import Measure, SourceTotal
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.predicate import Predicate
from lakehouse_backfill.model.schema_change import SchemaChange
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.ports.compute import Measured
from lakehouse_backfill.spark import measured, readers
from lakehouse_backfill.spark.carrying import named
from lakehouse_backfill.spark.evolving import as_changed
from lakehouse_backfill.spark.failures import translated
from lakehouse_backfill.spark.inputs import Inputs, pin_named
from lakehouse_backfill.spark.names import column
from lakehouse_backfill.spark.partition_sums import Sums, partition_sums
from lakehouse_backfill.spark.together import beside

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_OLD, _NEW = "old", "new"


class SparkMeasuring:
    """Checksums, totals and frames of exact snapshots."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._inputs = Inputs(spark, catalog)

    def checksums(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        beside: Predicate | None = None,
    ) -> dict[str, Checksum]:
        """Checksum of each partition of the scope; partitions without rows are left out.

        No snapshot: no rows. With `beside`: only of the rows that the predicate does not name.
        """
        sides = {_NEW: (table, snapshot_id)}
        return self._sums(sides, scope, (), ignore, beside)[_NEW].checksums

    def measure(
        self,
        old: tuple[str, int | None],
        new: tuple[str, int | None],
        scope: Scope,
        measures: tuple[Measure, ...],
        ignore: tuple[str, ...] = (),
        change: SchemaChange = (),
    ) -> Measured:
        """Checksums and declared measures of the scope's partitions on both sides, in one job.

        A side without snapshot has no total at all; one without rows has counts of 0.
        """
        found = self._sums({_OLD: old, _NEW: new}, scope, measures, ignore, change=change)
        return Measured(
            old=found[_OLD].checksums,
            new=found[_NEW].checksums,
            totals=measured.totals(
                measures,
                scope.partitions,
                None if old[1] is None else found[_OLD].measures,
                None if new[1] is None else found[_NEW].measures,
            ),
        )

    def source_totals(
        self, plan: Plan, wanted: tuple[SourceTotal, ...], measures: tuple[Measure, ...]
    ) -> tuple[CheckResult, ...]:
        """Whole-candidate totals against whole-source totals (Q4); each table is read once."""
        by_name = {measure.name: measure for measure in measures}
        candidate = readers.read(self._spark, self._catalog, plan.shadow_table, None)
        ours = [by_name[total.measure] for total in wanted]
        with beside(lambda: _aggregated(candidate, [_aggregate(each) for each in ours])) as summing:
            theirs = self._of_sources(plan, wanted)
        return tuple(
            measured.against_source(total, mine, other)
            for total, mine, other in zip(wanted, summing.result(), theirs, strict=True)
        )

    def output(self, plan: Plan) -> DataFrame:
        """The restated partitions of the shadow, for the suites."""
        scope = plan.resolved.scope
        return readers.read_scope(self._spark, self._catalog, plan.shadow_table, None, scope)

    def input(self, plan: Plan, name: str) -> DataFrame:
        """One pinned input within its range, for the suites."""
        return self._inputs.declared(pin_named(plan, name))

    def distinct(self, plan: Plan, name: str, column: str) -> list[Any]:
        """Distinct non-null values of a column of a pinned input, for suite parameters."""
        return self._distinct(self.input(plan, name), column)

    def _distinct(self, frame: DataFrame, name: str) -> list[Any]:
        value = column(name)
        with translated(f"reading the values of {name}"):
            found = frame.where(value.isNotNull()).select(value.alias("v")).distinct()
            return sorted((row["v"] for row in found.collect()), key=repr)

    def _sums(
        self,
        sides: dict[str, tuple[str, int | None]],
        scope: Scope,
        measures: tuple[Measure, ...],
        ignore: tuple[str, ...],
        beside: Predicate | None = None,
        change: SchemaChange = (),
    ) -> dict[str, Sums]:
        frames = {
            side: readers.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
            for side, (table, snapshot_id) in sides.items()
            if snapshot_id is not None
        }
        if _OLD in frames:
            frames[_OLD] = as_changed(frames[_OLD], change)
        if beside is not None:
            frames = {side: frame.where(~named(beside)) for side, frame in frames.items()}
        with translated(f"measuring {', '.join(table for table, _ in sides.values())}"):
            found = partition_sums(frames, scope.field, ignore, measures)
        return {side: found.get(side, Sums()) for side in sides}

    def _of_sources(self, plan: Plan, wanted: tuple[SourceTotal, ...]) -> list[Any]:
        found: list[Any] = [None] * len(wanted)
        for source in dict.fromkeys(total.source for total in wanted):
            places = [at for at, total in enumerate(wanted) if total.source == source]
            frame = self._inputs.whole(pin_named(plan, source))
            sums = _aggregated(frame, [_of_source(wanted[at]) for at in places])
            for at, value in zip(places, sums, strict=True):
                found[at] = value
        return found


def _aggregated(frame: DataFrame, aggregates: list[Column]) -> list[Any]:
    named = [each.alias(f"m{at}") for at, each in enumerate(aggregates)]
    with translated("comparing totals with the sources"):
        return list(frame.agg(*named).collect()[0])


def _of_source(total: SourceTotal) -> Column:
    from pyspark.sql import functions as F

    return F.sum(column(total.sum)) if total.sum else F.count(F.lit(1))


def _aggregate(measure: Measure) -> Column:
    from pyspark.sql import functions as F

    return F.sum(column(measure.sum)) if measure.sum else F.count(column(measure.count or ""))
