"""Composes the rows of a chunk: job rows and carried-over base rows, without deleted rows.

Also restores the earlier content of partitions for a rollback: the Restoring port.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import (
    quoted_column,
    quoted_table_name,
    spark_errors,
)
from lakehouse_backfill.adapters.spark.staging import merge, shadow_writer
from lakehouse_backfill.adapters.spark.staging.shadow_writer import (
    ATTEMPT_ID_PROPERTY,
    CHUNK_ID_PROPERTY,
    ShadowWriter,
)
from lakehouse_backfill.core.planning import catch_up, publish_modes
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Erasure, ExcludedRows, RestoreChunk, TombstonePin
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkCounts
from lakehouse_backfill.errors import ChecksFailed, NotFound

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class ComposedChunk:
    """Rows to write, some of which may be outside the chunk, and the counts of their parts.

    `outside_rows`: number of the job's rows outside the chunk that `rows` no longer contains.
    """

    rows: DataFrame
    counts: ChunkCounts = field(default_factory=ChunkCounts)
    outside_rows: int = 0


class ChunkComposer:
    """Composes chunks of job rows and base rows at the planned snapshot; writes nothing."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    @contextmanager
    def compose(
        self, plan: Plan, scope: Scope, output: DataFrame, target: StructType
    ) -> Iterator[ComposedChunk]:
        """Yield the rows for the scope's partitions; their cache is released after the block.

        All counts are taken before anything is written. Raises ChecksFailed for changes that
        contradict each other or the base, Unsupported for a base that cannot be carried over.
        """
        job = output
        if plan.resolved.contract.lineage_columns:
            job = shadow_writer.add_lineage_columns(output, plan, scope, target)
        predicate = merge.typed_row_predicate(plan, target)
        if predicate is None and not publish_modes.is_merge(plan):
            yield ComposedChunk(job)
            return
        # Computed once: the counted rows must be the written rows.
        job = job.persist()
        try:
            if predicate is not None:
                yield self._compose_repair(plan, scope, job, target, predicate)
            else:
                with merge.merge_changes(
                    self._spark, self._catalog, plan, scope, job, target
                ) as merged:
                    yield ComposedChunk(merged.rows, merged.counts, merged.outside_rows)
        finally:
            job.unpersist()

    def _compose_repair(
        self, plan: Plan, scope: Scope, job: DataFrame, target: StructType, predicate: RowPredicate
    ) -> ComposedChunk:
        """Unite the job's rows that match the predicate with the base's rows that do not."""
        from pyspark.sql import functions as F

        is_inside, is_named = (
            dataframes.is_in_ranges(partitions.scope_row_ranges(scope)),
            merge.matches_predicate(predicate),
        )
        base = merge.read_base_rows(self._spark, self._catalog, plan, scope, target)
        kept = base.where(~is_named)
        with spark_errors("counting the rows that the row predicate does not name"):
            stray = job.agg(F.count(F.when(is_inside & ~is_named, F.lit(1)))).collect()[0][0]
            carried = kept.count()
        rows = job.where(is_named | ~is_inside).unionByName(kept)
        return ComposedChunk(rows, ChunkCounts(carried_rows=carried, stray_rows=stray))

    def read_counts(self, table: str, snapshot_id: int) -> ChunkCounts:
        """Read the counts of a chunk from the summary of its snapshot."""
        with spark_errors(f"reading the snapshots of {table}"):
            snapshots = self._spark.table(f"{quoted_table_name(self._catalog, table)}.`snapshots`")
            summaries = (
                snapshots.where(f"snapshot_id = {int(snapshot_id)}").select("summary").collect()
            )
        return (
            ChunkCounts.from_properties(summaries[0]["summary"] or {})
            if summaries
            else ChunkCounts()
        )


#: True in rows to exclude; never null.
EXCLUDED_COLUMN = "lhb_left_out"


class DeletedRowFilter:
    """Excludes rows that tombstones match and rows that were deleted on the target.

    Rows are marked by joins with distinct keys, so no row is duplicated.
    """

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def mark_excluded(self, frame: DataFrame, left_out: ExcludedRows) -> DataFrame:
        """Return the frame with a column that is true for rows to exclude."""
        from pyspark.sql import functions as F

        marks: list[str] = []
        for number, pin in enumerate(left_out.tombstones):
            if pin.snapshot_id is not None:
                marks.append(f"{EXCLUDED_COLUMN}_t{number}")
                names = self._tombstone_keys(pin)
                frame = _mark_matching_rows(
                    frame, names, tuple(pin.columns), marks[-1], nulls=False
                )
        for number, erasure in enumerate(left_out.erasures):
            marks.append(f"{EXCLUDED_COLUMN}_e{number}")
            names = self._deleted_keys(erasure, left_out.field)
            frame = _mark_matching_rows(frame, names, erasure.key, marks[-1], nulls=True)
        is_named: Column = F.lit(False)  # noqa: FBT003 (a literal of Spark)
        for mark in marks:
            is_named = is_named | quoted_column(mark).isNotNull()
        return frame.withColumn(EXCLUDED_COLUMN, is_named).drop(*marks)

    @contextmanager
    def exclude_from_chunk(
        self, plan: Plan, chunk: Chunk, composed: ComposedChunk
    ) -> Iterator[ComposedChunk]:
        """Yield a chunk without excluded rows; their cache is released after the block.

        A chunk that only loses rows is composed of its accepted rows. Excluded rows are counted
        before anything is written.
        """
        from pyspark.sql import functions as F

        excluded, rows = catch_up.excluded_rows(plan.resolved), composed.rows
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        accepted_chunk = plan.resolved.catch_up and plan.resolved.catch_up.erased_chunk(
            chunk.chunk_id
        )
        if accepted_chunk:
            table, snapshot_id = accepted_chunk.shadow_table, accepted_chunk.shadow_snapshot_id
            rows = dataframes.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
        if excluded.is_empty:
            yield composed
            return
        # Computed once: the counted rows must be the written rows.
        marked = self.mark_excluded(rows, excluded).persist()
        try:
            is_inside = dataframes.is_in_ranges(partitions.scope_row_ranges(scope))
            with spark_errors(f"leaving out deleted rows of chunk {chunk.chunk_id}"):
                excluded_rows = F.count(
                    F.when(is_inside & quoted_column(EXCLUDED_COLUMN), F.lit(1))
                )
                count = int(marked.agg(excluded_rows).collect()[0][0])
            counts = composed.counts.model_copy(update={"left_out_rows": count})
            remaining = marked.where(~quoted_column(EXCLUDED_COLUMN)).drop(EXCLUDED_COLUMN)
            outside = 0 if accepted_chunk else composed.outside_rows
            yield replace(composed, rows=remaining, counts=counts, outside_rows=outside)
        finally:
            marked.unpersist()

    def drop_excluded(self, frame: DataFrame, left_out: ExcludedRows) -> DataFrame:
        """Return the frame without excluded rows."""
        if left_out.is_empty:
            return frame
        return (
            self.mark_excluded(frame, left_out)
            .where(~quoted_column(EXCLUDED_COLUMN))
            .drop(EXCLUDED_COLUMN)
        )

    def _tombstone_keys(self, pin: TombstonePin) -> DataFrame:
        frame = dataframes.read_table(self._spark, self._catalog, pin.table, pin.snapshot_id)
        return frame.select(*(quoted_column(name) for name in pin.columns.values()))

    def _deleted_keys(self, erasure: Erasure, field: ScopeField) -> DataFrame:
        """Return the keys that only the earlier of the two states has."""
        scope = Scope(field=field, partitions=erasure.partitions)
        before, after = (
            dataframes.read_scope(self._spark, self._catalog, erasure.table, at, scope).select(
                *(quoted_column(name) for name in erasure.key)
            )
            for at in (erasure.before_snapshot_id, erasure.after_snapshot_id)
        )
        return before.distinct().subtract(after)


def _mark_matching_rows(
    frame: DataFrame, names: DataFrame, columns: tuple[str, ...], mark: str, *, nulls: bool
) -> DataFrame:
    """Add a column that is null in rows without a match in `names`."""
    from pyspark.sql import functions as F

    keys = [f"{mark}_{number}" for number in range(len(columns))]
    renamed = names.toDF(*keys).distinct().withColumn(mark, F.lit(1))
    condition: Column = F.lit(True)  # noqa: FBT003 (a literal of Spark)
    for name, key in zip(columns, keys, strict=True):
        ours, theirs = quoted_column(name), quoted_column(key)
        condition = condition & (ours.eqNullSafe(theirs) if nulls else ours == theirs)
    return frame.join(renamed, condition, "left").drop(*keys)


#: Messages of Hadoop, S3 and Iceberg when a file that a snapshot lists does not exist.
_MISSING_FILE_MESSAGES = (
    "FileNotFoundException",
    "NotFoundException",
    "FILE_NOT_EXIST",
    "NoSuchKey",
)
_NOTHING_ROLLED_BACK = "nothing was rolled back; readers see what they saw before"


class SparkRestoring:
    """The Restoring port: writes earlier content of partitions into a rollback's shadow."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._writer = ShadowWriter(spark, catalog)
        self._deleted_row_filter = DeletedRowFilter(spark, catalog)

    def restore(self, chunk: RestoreChunk) -> int:
        """Overwrite exactly the chunk's partitions with their rows in the snapshot, in one commit.

        Delete files are applied, so the shadow has none for these rows. Returns the shadow's
        snapshot. Raises NotFound when storage lacks a file of the old snapshot, ChecksFailed when
        the shadow has another number of rows afterwards.
        """
        rows = partitions.scope_row_ranges(chunk.scope)
        properties = {CHUNK_ID_PROPERTY: chunk.chunk_id, ATTEMPT_ID_PROPERTY: str(uuid.uuid4())}
        try:
            with spark_errors(f"restoring {chunk.table}@{chunk.snapshot_id}"):
                frame = self._earlier_rows(chunk)
            commit = self._writer.overwrite(
                frame.where(dataframes.is_in_ranges(rows)),
                chunk.shadow,
                dataframes.range_filter(rows),
                {**chunk.properties, **properties},
                epoch=0,
            )
        except Exception as error:
            if any(words in _error_chain_text(error) for words in _MISSING_FILE_MESSAGES):
                raise _missing_file_error(chunk) from error
            raise
        return self._require_same_row_count(chunk, commit.snapshot_id)

    def _earlier_rows(self, chunk: RestoreChunk) -> DataFrame:
        """Return the old rows under the shadow's columns; columns added since then are null."""
        from pyspark.sql import functions as F

        target = dataframes.read_table(self._spark, self._catalog, chunk.shadow, None).schema
        if chunk.snapshot_id is None:
            return dataframes.empty_frame(self._spark, target)
        frame = dataframes.read_scope(
            self._spark, self._catalog, chunk.table, chunk.snapshot_id, chunk.scope
        )
        old_names = dict(chunk.columns)
        columns = []
        for column in target.fields:
            old = old_names.get(column.name)
            value = F.lit(None) if old is None else quoted_column(old)
            columns.append(value.cast(column.dataType).alias(column.name))
        frame = frame.select(*columns)
        return (
            frame
            if chunk.left_out is None
            else self._deleted_row_filter.drop_excluded(frame, chunk.left_out)
        )

    def _require_same_row_count(self, chunk: RestoreChunk, snapshot_id: int) -> int:
        """Count the rows of both sides; raise ChecksFailed when the counts differ."""
        if chunk.snapshot_id is None:
            return snapshot_id
        with spark_errors(f"checking {chunk.shadow}"):
            old = self._earlier_rows(chunk).count()
            new = dataframes.read_scope(
                self._spark, self._catalog, chunk.shadow, snapshot_id, chunk.scope
            ).count()
        if old != new:
            raise ChecksFailed(
                f"{chunk.shadow} holds {new} rows, {chunk.table}@{chunk.snapshot_id} holds {old}",
                state=_NOTHING_ROLLED_BACK,
                fix="repeat the command",
            )
        return snapshot_id


def _error_chain_text(error: BaseException) -> str:
    """Return the texts of the error and of all its causes."""
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__
    return "\n".join(texts)


def _missing_file_error(chunk: RestoreChunk) -> NotFound:
    return NotFound(
        f"a file of {chunk.table}@{chunk.snapshot_id} is gone from storage: what "
        f"{partitions.describe_labels(chunk.scope.partitions)} held then cannot be read",
        state=_NOTHING_ROLLED_BACK,
        fix="restore the file from the store's own history, or restate the partitions: "
        "lakehouse-backfill new PRODUCT --from P --to P --reason TEXT",
    )
