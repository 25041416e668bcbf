"""What a chunk's partitions are to hold: the job's rows, or those and rows of the base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quoted_table_name
from lakehouse_backfill.adapters.spark.staging import carrying, lineage, merging
from lakehouse_backfill.core.planning import modes
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.composed import ChunkCounts
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.predicate import RowPredicate
from lakehouse_backfill.domain.scope import Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class ComposedChunk:
    """Rows to write, some of which may lie outside the chunk; what was counted on the way.

    `outside_rows`: rows of the job outside the chunk that `rows` does not hold any more.
    """

    rows: DataFrame
    counts: ChunkCounts = field(default_factory=ChunkCounts)
    outside_rows: int = 0


class ChunkComposer:
    """Puts chunks together; reads the base at the planned snapshot, writes nothing."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    @contextmanager
    def composed(
        self, plan: Plan, scope: Scope, output: DataFrame, target: StructType
    ) -> Iterator[ComposedChunk]:
        """Give what the scope's partitions are to hold, for as long as the block runs.

        What is counted is counted before anything is written. Raises ChecksFailed for changes that
        contradict each other or the base, Unsupported for a base that cannot be carried over.
        """
        job = output
        if plan.resolved.contract.lineage_columns:
            job = lineage.add_lineage_columns(output, plan, scope, target)
        predicate = carrying.typed_row_predicate(plan, target)
        if predicate is None and not modes.is_merge(plan):
            yield ComposedChunk(job)
            return
        # Computed once: what is counted must be what is written.
        job = job.persist()
        try:
            if predicate is not None:
                yield self._repaired(plan, scope, job, target, predicate)
            else:
                with merging.merge_changes(
                    self._spark, self._catalog, plan, scope, job, target
                ) as done:
                    yield ComposedChunk(done.rows, done.counts, done.outside_rows)
        finally:
            job.unpersist()

    def _repaired(
        self, plan: Plan, scope: Scope, job: DataFrame, target: StructType, predicate: RowPredicate
    ) -> ComposedChunk:
        """The job's rows that the predicate names, beside the base's that it does not name."""
        from pyspark.sql import functions as F

        inside, named = (
            filters.is_in_ranges(partitions.scope_row_ranges(scope)),
            carrying.matches_predicate(predicate),
        )
        base = carrying.read_base_rows(self._spark, self._catalog, plan, scope, target)
        kept = base.where(~named)
        with spark_errors("counting the rows that the row predicate does not name"):
            stray = job.agg(F.count(F.when(inside & ~named, F.lit(1)))).collect()[0][0]
            carried = kept.count()
        rows = job.where(named | ~inside).unionByName(kept)
        return ComposedChunk(rows, ChunkCounts(carried_rows=carried, stray_rows=stray))

    def counted(self, table: str, snapshot_id: int) -> ChunkCounts:
        """Read from the snapshot of a chunk what was counted when it was written."""
        with spark_errors(f"reading the snapshots of {table}"):
            snapshots = self._spark.table(f"{quoted_table_name(self._catalog, table)}.`snapshots`")
            found = snapshots.where(f"snapshot_id = {int(snapshot_id)}").select("summary").collect()
        return ChunkCounts.from_properties(found[0]["summary"] or {}) if found else ChunkCounts()
