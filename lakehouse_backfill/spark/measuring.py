"""Reads snapshots for the gates: the Measuring port."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.model.checks import CheckResult, MeasureTotal
from lakehouse_backfill.model.checksum import Checksum
from lakehouse_backfill.model.contract import Measure, SourceTotal
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.spark import readers
from lakehouse_backfill.spark.failures import translated
from lakehouse_backfill.spark.inputs import Inputs, pin_named
from lakehouse_backfill.spark.names import column
from lakehouse_backfill.spark.partition_sums import partition_checksums

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Total = int | float | str | None


class SparkMeasuring:
    """Checksums, totals and frames of exact snapshots."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._inputs = Inputs(spark, catalog)

    def checksums(
        self, table: str, snapshot_id: int | None, scope: Scope, ignore: tuple[str, ...] = ()
    ) -> dict[str, Checksum]:
        """Checksum of each partition of the scope; partitions without rows are left out.

        No snapshot: no rows.
        """
        if snapshot_id is None:
            return {}
        frame = readers.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
        with translated(f"measuring {table}"):
            return partition_checksums(frame, scope, ignore)

    def totals(
        self,
        old: tuple[str, int | None],
        new: tuple[str, int | None],
        scope: Scope,
        measures: tuple[Measure, ...],
    ) -> tuple[MeasureTotal, ...]:
        """The declared measures over the scope's partitions, on both sides."""
        if not measures:
            return ()
        sides: list[list[Total]] = []
        for table, snapshot_id in (old, new):
            if snapshot_id is None:  # The table does not exist, or nothing was ever written to it.
                sides.append([None] * len(measures))
                continue
            frame = readers.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
            sides.append(self._totals(frame, measures))
        return tuple(
            MeasureTotal(name=measure.name, old=before, new=after)
            for measure, before, after in zip(measures, *sides, strict=True)
        )

    def source_totals(
        self, plan: Plan, wanted: tuple[SourceTotal, ...], measures: tuple[Measure, ...]
    ) -> tuple[CheckResult, ...]:
        """Whole-candidate totals against whole-source totals (Q4)."""
        by_name = {measure.name: measure for measure in measures}
        return tuple(self._source_total(plan, total, by_name[total.measure]) for total in wanted)

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

    def _totals(self, frame: DataFrame, measures: tuple[Measure, ...]) -> list[Total]:
        columns = [_aggregate(measure).alias(f"m{at}") for at, measure in enumerate(measures)]
        with translated("summing the measures"):
            return [_plain(value) for value in frame.agg(*columns).collect()[0]]

    def _source_total(self, plan: Plan, total: SourceTotal, measure: Measure) -> CheckResult:
        from pyspark.sql import functions as F

        candidate = readers.read(self._spark, self._catalog, plan.shadow_table, None)
        source = self._inputs.whole(pin_named(plan, total.source))
        value = F.sum(column(total.sum)) if total.sum else F.count(F.lit(1))
        with translated(f"comparing {measure.name} with {total.source}"):
            ours = candidate.agg(_aggregate(measure)).collect()[0][0]
            theirs = source.agg(value).collect()[0][0]
        allowed = abs(Decimal(str(theirs or 0))) * Decimal(str(total.tolerance))
        distance = abs(Decimal(str(ours or 0)) - Decimal(str(theirs or 0)))
        return CheckResult(
            name=f"{measure.name} of the candidate equals {total.sum or 'rows'} of {total.source}",
            group="reconciliation",
            passed=distance <= allowed,
            detail=f"candidate {_plain(ours)}, source {_plain(theirs)}",
            observed=_plain(ours),
            limit=_plain(theirs),
        )


def _aggregate(measure: Measure) -> Column:
    from pyspark.sql import functions as F

    return F.sum(column(measure.sum)) if measure.sum else F.count(column(measure.count or ""))


def _plain(value: Any) -> Total:
    """Decimals as text: JSON has no exact ones."""
    return str(value) if isinstance(value, Decimal) else value
