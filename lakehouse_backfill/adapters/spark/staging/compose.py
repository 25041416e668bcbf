"""Composes the rows of a chunk: job rows and carried-over base rows, without deleted rows.

Also restores the earlier content of partitions for a rollback.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, cached, quoted_column
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging import merge, shadow_writer
from lakehouse_backfill.adapters.spark.staging.column_scope import ColumnComposer
from lakehouse_backfill.adapters.spark.staging.merge import ComposedChunk
from lakehouse_backfill.adapters.spark.staging.shadow_writer import (
    ATTEMPT_ID_PROPERTY,
    CHUNK_ID_PROPERTY,
    ShadowWriter,
)
from lakehouse_backfill.core.planning.target import catch_up, publish_modes
from lakehouse_backfill.domain.catch_up import Erasure, ExcludedRows, RestoreChunk, TombstonePin
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import (
    Chunk,
    Scope,
    ScopeField,
    describe_labels,
    scope_row_ranges,
)
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkCounts
from lakehouse_backfill.errors import ChecksFailed, NotFound


class ChunkComposer:
    """Composes chunks of job rows and base rows at the planned snapshot; writes nothing."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables
        marker = DeletedRowFilter(tables).mark_excluded
        self._columns = ColumnComposer(tables, marker, EXCLUDED_COLUMN)

    @contextmanager
    def compose(
        self,
        plan: Plan,
        scope: Scope,
        output: DataFrame,
        target: StructType,
        *,
        is_strict: bool = True,
    ) -> Iterator[ComposedChunk]:
        """Yield the rows for the scope's partitions; their cache is released after the block.

        All counts are taken before anything is written. Raises ChecksFailed for changes that
        contradict each other or the base, Unsupported for a base that cannot be carried over.
        Without `is_strict`, restated columns of rows that only one side has are left out instead.
        """
        job = output
        if publish_modes.restates_columns(plan):
            # Accepted rows stand for what such a chunk computes.
            is_strict = is_strict and not _is_taken_over(plan, scope)
            with (
                cached(job),
                self._columns.compose(plan, scope, job, target, is_strict=is_strict) as restated,
            ):
                rows = restated.rows
                if plan.resolved.contract.lineage_columns:
                    rows = shadow_writer.add_lineage_columns(rows, plan, scope, target)
                yield replace(restated, rows=rows)
            return
        if plan.resolved.contract.lineage_columns:
            job = shadow_writer.add_lineage_columns(output, plan, scope, target)
        predicate = merge.typed_row_predicate(plan, target)
        if predicate is None and not publish_modes.is_merge(plan):
            yield ComposedChunk(job)
            return
        # Computed once: the counted rows must be the written rows.
        with cached(job):
            if predicate is not None:
                yield self._compose_repair(plan, scope, job, target, predicate)
            else:
                with merge.merge_changes(self._tables, plan, scope, job, target) as merged:
                    yield merged

    def _compose_repair(
        self, plan: Plan, scope: Scope, job: DataFrame, target: StructType, predicate: RowPredicate
    ) -> ComposedChunk:
        """Unite the job's rows that match the predicate with the base's rows that do not."""
        # Rows of other values are stray, also where no file of theirs is in the scope.
        is_inside = dataframes.is_in_ranges(scope_row_ranges(scope.whole))
        is_named = merge.matches_predicate(predicate)
        kept = merge.read_base_rows(self._tables, plan, scope, target).where(~is_named)
        with spark_errors("counting the rows that the row predicate does not name"):
            stray = job.agg(F.count(F.when(is_inside & ~is_named, F.lit(1)))).collect()[0][0]
            carried = kept.count()
        rows = job.where(is_named | ~is_inside).unionByName(kept)
        return ComposedChunk(rows, ChunkCounts(carried_rows=carried, stray_rows=stray))


def _is_taken_over(plan: Plan, scope: Scope) -> bool:
    """Return whether the scope is a chunk of accepted rows, from which some rows are removed."""
    followed, chunks = plan.resolved.catch_up, plan.resolved.chunks
    return followed is not None and any(
        followed.erased_chunk(chunk.chunk_id)
        for chunk in chunks
        if chunk.partitions == scope.partitions
    )


#: True in rows to exclude; never null.
EXCLUDED_COLUMN = "lhb_left_out"


class DeletedRowFilter:
    """Excludes rows that tombstones match and rows that were deleted on the target.

    Rows are marked by joins with distinct keys, so no row is duplicated.
    """

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables

    def mark_excluded(self, frame: DataFrame, left_out: ExcludedRows) -> DataFrame:
        """Return the frame with a column that is true for rows to exclude."""
        marks: list[str] = []
        for number, pin in enumerate(left_out.tombstones):
            if pin.snapshot_id is not None:
                marks.append(f"{EXCLUDED_COLUMN}_t{number}")
                keys = self._tombstone_keys(pin)
                frame = _mark_matching_rows(frame, keys, tuple(pin.columns), marks[-1])
        for number, erasure in enumerate(left_out.erasures):
            marks.append(f"{EXCLUDED_COLUMN}_e{number}")
            keys = self._deleted_keys(erasure, left_out.field)
            frame = _mark_matching_rows(frame, keys, erasure.key, marks[-1])
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
        excluded, rows = catch_up.excluded_rows(plan.resolved), composed.rows
        scope = plan.chunk_scope(chunk)
        accepted_chunk = plan.resolved.catch_up and plan.resolved.catch_up.erased_chunk(
            chunk.chunk_id
        )
        if accepted_chunk:
            rows = self._tables.read_scope(
                accepted_chunk.shadow_table, accepted_chunk.shadow_snapshot_id, scope
            )
        if excluded.is_empty:
            yield composed
            return
        # Computed once: the counted rows must be the written rows.
        with cached(self.mark_excluded(rows, excluded)) as marked:
            is_inside = dataframes.is_in_ranges(scope_row_ranges(scope))
            with spark_errors(f"leaving out deleted rows of chunk {chunk.chunk_id}"):
                excluded_rows = F.count(
                    F.when(is_inside & quoted_column(EXCLUDED_COLUMN), F.lit(1))
                )
                count = int(marked.agg(excluded_rows).collect()[0][0])
            counts = composed.counts.model_copy(update={"left_out_rows": count})
            remaining = marked.where(~quoted_column(EXCLUDED_COLUMN)).drop(EXCLUDED_COLUMN)
            outside = 0 if accepted_chunk else composed.outside_rows
            yield replace(composed, rows=remaining, counts=counts, outside_rows=outside)

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
        """Return the tombstones' keys; a null names no row."""
        frame = self._tables.read(pin.table, pin.snapshot_id)
        names = [quoted_column(name) for name in pin.columns.values()]
        return frame.select(*names).where(reduce(and_, (name.isNotNull() for name in names)))

    def _deleted_keys(self, erasure: Erasure, field: ScopeField) -> DataFrame:
        """Return the keys that only the earlier of the two states has."""
        scope = Scope(field=field, partitions=erasure.partitions)
        before, after = (
            self._tables.read_scope(erasure.table, snapshot_id, scope).select(
                *(quoted_column(name) for name in erasure.key)
            )
            for snapshot_id in (erasure.before_snapshot_id, erasure.after_snapshot_id)
        )
        return before.distinct().subtract(after)


def _mark_matching_rows(
    frame: DataFrame, keys: DataFrame, columns: tuple[str, ...], mark: str
) -> DataFrame:
    """Add a column that is null in rows whose columns equal none of the keys."""
    names = [f"{mark}_{number}" for number in range(len(columns))]
    renamed = keys.toDF(*names).distinct().withColumn(mark, F.lit(1))
    return frame.join(renamed, dataframes.is_same(columns, names), "left").drop(*names)


#: Messages of Hadoop, S3 and Iceberg when a file that a snapshot lists does not exist.
_MISSING_FILE_MESSAGES = (
    "FileNotFoundException",
    "NotFoundException",
    "FILE_NOT_EXIST",
    "NoSuchKey",
)
_NOTHING_ROLLED_BACK = "nothing was rolled back; readers see what they saw before"


class PartitionRestorer:
    """Writes earlier content of partitions into the shadow of a rollback."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables
        self._writer = ShadowWriter(tables)
        self._deleted_row_filter = DeletedRowFilter(tables)

    def restore(self, chunk: RestoreChunk) -> int:
        """Overwrite exactly the chunk's partitions with their rows in the snapshot, in one commit.

        Delete files are applied, so the shadow has none for these rows. Returns the shadow's
        snapshot. Raises NotFound when storage lacks a file of the old snapshot, ChecksFailed when
        the shadow has another number of rows afterwards.
        """
        rows = scope_row_ranges(chunk.scope)
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
        target = self._tables.schema(chunk.shadow)
        if chunk.snapshot_id is None:
            return self._tables.empty_frame(target)
        frame = self._tables.read_scope(chunk.table, chunk.snapshot_id, chunk.scope)
        old_names = dict(chunk.columns)
        columns = []
        for column in target.fields:
            old = old_names.get(column.name)
            value = F.lit(None) if old is None else quoted_column(old)
            columns.append(value.cast(column.dataType).alias(column.name))
        frame = frame.select(*columns)
        if chunk.left_out is None:
            return frame
        return self._deleted_row_filter.drop_excluded(frame, chunk.left_out)

    def _require_same_row_count(self, chunk: RestoreChunk, snapshot_id: int) -> int:
        """Count the rows of both sides; raise ChecksFailed when the counts differ."""
        if chunk.snapshot_id is None:
            return snapshot_id
        with spark_errors(f"checking {chunk.shadow}"):
            old = self._earlier_rows(chunk).count()
            new = self._tables.read_scope(chunk.shadow, snapshot_id, chunk.scope).count()
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
        f"{describe_labels(chunk.scope.partitions)} held then cannot be read",
        state=_NOTHING_ROLLED_BACK,
        fix="restore the file from the store's own history, or restate the partitions: "
        "lakehouse-backfill new PRODUCT --from P --to P --reason TEXT",
    )
