"""What a chunk's partitions are to hold: the job's rows, or those and rows of the base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters
from lakehouse_backfill.adapters.spark.failures import translated
from lakehouse_backfill.adapters.spark.names import full_name
from lakehouse_backfill.adapters.spark.staging import carrying, lineage, merging
from lakehouse_backfill.core.planning import modes
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.composed import Counts
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.predicate import Predicate
from lakehouse_backfill.domain.scope import Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Composed:
    """Rows to write, some of which may lie outside the chunk; what was counted on the way.

    `outside_rows`: rows of the job outside the chunk that `rows` does not hold any more.
    """

    rows: DataFrame
    counts: Counts = field(default_factory=Counts)
    outside_rows: int = 0


class Composing:
    """Puts chunks together; reads the base at the planned snapshot, writes nothing."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    @contextmanager
    def composed(
        self, plan: Plan, scope: Scope, output: DataFrame, target: StructType
    ) -> Iterator[Composed]:
        """Give what the scope's partitions are to hold, for as long as the block runs.

        What is counted is counted before anything is written. Raises ChecksFailed for changes that
        contradict each other or the base, Unsupported for a base that cannot be carried over.
        """
        job = output
        if plan.resolved.contract.lineage_columns:
            job = lineage.with_lineage(output, plan, scope, target)
        predicate = carrying.predicate_in(plan, target)
        if predicate is None and not modes.is_merge(plan):
            yield Composed(job)
            return
        # Computed once: what is counted must be what is written.
        job = job.persist()
        try:
            if predicate is not None:
                yield self._repaired(plan, scope, job, target, predicate)
            else:
                with merging.merged(self._spark, self._catalog, plan, scope, job, target) as done:
                    yield Composed(done.rows, done.counts, done.outside_rows)
        finally:
            job.unpersist()

    def _repaired(
        self, plan: Plan, scope: Scope, job: DataFrame, target: StructType, predicate: Predicate
    ) -> Composed:
        """The job's rows that the predicate names, beside the base's that it does not name."""
        from pyspark.sql import functions as F

        inside, named = filters.inside(partitions.ranges(scope)), carrying.named(predicate)
        base = carrying.base_rows(self._spark, self._catalog, plan, scope, target)
        kept = base.where(~named)
        with translated("counting the rows that the row predicate does not name"):
            stray = job.agg(F.count(F.when(inside & ~named, F.lit(1)))).collect()[0][0]
            carried = kept.count()
        rows = job.where(named | ~inside).unionByName(kept)
        return Composed(rows, Counts(carried_rows=carried, stray_rows=stray))

    def counted(self, table: str, snapshot_id: int) -> Counts:
        """Read from the snapshot of a chunk what was counted when it was written."""
        with translated(f"reading the snapshots of {table}"):
            snapshots = self._spark.table(f"{full_name(self._catalog, table)}.`snapshots`")
            found = snapshots.where(f"snapshot_id = {int(snapshot_id)}").select("summary").collect()
        return Counts.from_properties(found[0]["summary"] or {}) if found else Counts()
