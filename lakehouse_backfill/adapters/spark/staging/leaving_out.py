"""Rows that must not be written: those that tombstones name, and those deleted on the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters, readers
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.adapters.spark.staging.composing import ComposedChunk
from lakehouse_backfill.core.planning import catching_up
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Erasure, ExcludedRows, TombstonePin
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.scope import Chunk, Scope, ScopeField

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: True in rows to leave out; never null.
EXCLUDED_COLUMN = "lhb_left_out"


class DeletedRowFilter:
    """Marks rows by joins with what names them; each name stands once, so no row is doubled."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def marked(self, frame: DataFrame, left_out: ExcludedRows) -> DataFrame:
        """Give the frame with the column that says which rows are to be left out."""
        from pyspark.sql import functions as F

        marks: list[str] = []
        for number, pin in enumerate(left_out.tombstones):
            if pin.snapshot_id is not None:
                marks.append(f"{EXCLUDED_COLUMN}_t{number}")
                names = self._tombstones(pin)
                frame = _mark_matching_rows(
                    frame, names, tuple(pin.columns), marks[-1], nulls=False
                )
        for number, erasure in enumerate(left_out.erasures):
            marks.append(f"{EXCLUDED_COLUMN}_e{number}")
            names = self._erased(erasure, left_out.field)
            frame = _mark_matching_rows(frame, names, erasure.key, marks[-1], nulls=True)
        is_named: Column = F.lit(False)  # noqa: FBT003 (a literal of Spark)
        for mark in marks:
            is_named = is_named | quoted_column(mark).isNotNull()
        return frame.withColumn(EXCLUDED_COLUMN, is_named).drop(*marks)

    @contextmanager
    def composed(
        self, plan: Plan, chunk: Chunk, composed: ComposedChunk
    ) -> Iterator[ComposedChunk]:
        """Give what a chunk is to hold without what must not come back, while the block runs.

        A chunk that only loses rows is made of those that were accepted. What is left out is
        counted before anything is written.
        """
        from pyspark.sql import functions as F

        left_out, rows = catching_up.excluded_rows(plan.resolved), composed.rows
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        source = plan.resolved.catch_up and plan.resolved.catch_up.erased_chunk(chunk.chunk_id)
        if source:
            table, at = source.shadow_table, source.shadow_snapshot_id
            rows = readers.read_scope(self._spark, self._catalog, table, at, scope)
        if left_out.is_empty:
            yield composed
            return
        # Computed once: what is counted must be what is written.
        marked = self.marked(rows, left_out).persist()
        try:
            inside = filters.is_in_ranges(partitions.scope_row_ranges(scope))
            with spark_errors(f"leaving out deleted rows of chunk {chunk.chunk_id}"):
                hit = F.count(F.when(inside & quoted_column(EXCLUDED_COLUMN), F.lit(1)))
                count = int(marked.agg(hit).collect()[0][0])
            counts = composed.counts.model_copy(update={"left_out_rows": count})
            kept = marked.where(~quoted_column(EXCLUDED_COLUMN)).drop(EXCLUDED_COLUMN)
            outside = 0 if source else composed.outside_rows
            yield replace(composed, rows=kept, counts=counts, outside_rows=outside)
        finally:
            marked.unpersist()

    def kept(self, frame: DataFrame, left_out: ExcludedRows) -> DataFrame:
        """Give the rows that nothing names."""
        if left_out.is_empty:
            return frame
        return (
            self.marked(frame, left_out)
            .where(~quoted_column(EXCLUDED_COLUMN))
            .drop(EXCLUDED_COLUMN)
        )

    def _tombstones(self, pin: TombstonePin) -> DataFrame:
        frame = readers.read_table(self._spark, self._catalog, pin.table, pin.snapshot_id)
        return frame.select(*(quoted_column(name) for name in pin.columns.values()))

    def _erased(self, erasure: Erasure, field: ScopeField) -> DataFrame:
        """Give the keys that only the earlier of the two states has."""
        scope = Scope(field=field, partitions=erasure.partitions)
        before, after = (
            readers.read_scope(self._spark, self._catalog, erasure.table, at, scope).select(
                *(quoted_column(name) for name in erasure.key)
            )
            for at in (erasure.before_snapshot_id, erasure.after_snapshot_id)
        )
        return before.distinct().subtract(after)


def _mark_matching_rows(
    frame: DataFrame, names: DataFrame, columns: tuple[str, ...], mark: str, *, nulls: bool
) -> DataFrame:
    """Add a column that is null in rows whose values are not among the names."""
    from pyspark.sql import functions as F

    keys = [f"{mark}_{number}" for number in range(len(columns))]
    renamed = names.toDF(*keys).distinct().withColumn(mark, F.lit(1))
    condition: Column = F.lit(True)  # noqa: FBT003 (a literal of Spark)
    for name, key in zip(columns, keys, strict=True):
        ours, theirs = quoted_column(name), quoted_column(key)
        condition = condition & (ours.eqNullSafe(theirs) if nulls else ours == theirs)
    return frame.join(renamed, condition, "left").drop(*keys)
