"""Runs a transform on pinned inputs and writes its output to a shadow table: the Staging port."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column, spark_errors
from lakehouse_backfill.adapters.spark.measuring.partition_sums import sum_partitions
from lakehouse_backfill.adapters.spark.session.write_guard import run_concurrently
from lakehouse_backfill.adapters.spark.staging import merge, shadow_writer
from lakehouse_backfill.adapters.spark.staging.compose import (
    ChunkComposer,
    ComposedChunk,
    DeletedRowFilter,
)
from lakehouse_backfill.adapters.spark.staging.edges import Edge, compare_edges
from lakehouse_backfill.adapters.spark.staging.shadow_writer import ShadowCommit, ShadowWriter
from lakehouse_backfill.adapters.spark.staging.transform import PinnedInputs, TransformRunner
from lakehouse_backfill.core.planning import catch_up, resolve
from lakehouse_backfill.domain import partitions, table
from lakehouse_backfill.domain.checks import EdgePartition, EdgeSide
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin, declared_schema_change
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkRecord
from lakehouse_backfill.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_OUTSIDE = "lhb_outside"
_HASH = "lhb_hash"


@dataclass(frozen=True)
class _ObservedChunk:
    """Observed during a write: rows and checksum of the chunk, number of rows outside it."""

    checksum: Checksum
    outside_rows: int


class SparkStaging:
    """Computes chunks, edges and warm-up proofs; writes nothing but shadows."""

    def __init__(
        self, spark: SparkSession, catalog: str, code: Path | Callable[[Plan], Path]
    ) -> None:
        """Set up; `code` is the folder of the jobs, or returns the folder for a plan."""
        self._spark = spark
        self._catalog = catalog
        self._inputs = PinnedInputs(spark, catalog)
        self._transform_runner = TransformRunner(spark, code, self._inputs)
        self._chunk_composer = ChunkComposer(spark, catalog)
        self._deleted_row_filter = DeletedRowFilter(spark, catalog)
        self._writer = ShadowWriter(spark, catalog)

    def load(self, plan: Plan) -> None:
        """Import the transform and check name, version and inputs, without running it."""
        self._transform_runner.load(plan)

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        """Compute one chunk and overwrite exactly its partitions in the shadow, in one commit.

        A repeated call produces the same rows; a chunk without rows leaves its partitions empty.
        Rows outside the chunk are counted and never written. Raises RunMoved, and commits nothing,
        when a later epoch has fenced the shadow.
        """
        started = time.monotonic()
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        target = self._schema(plan.shadow_table)
        frames = self._inputs.frames_for_scope(plan, scope)
        with spark_errors(f"computing chunk {chunk.chunk_id}"):
            output = self._transform_runner.run(plan, scope, frames, target)
        with (
            run_concurrently(lambda: self._count(plan, chunk, frames)) as counting,
            self._chunk_composer.compose(plan, scope, output, target) as composed_output,
            self._deleted_row_filter.exclude_from_chunk(plan, chunk, composed_output) as remaining,
        ):
            commit, counted = self._write(plan, chunk, epoch, remaining)
        return ChunkRecord(
            run_id=plan.run_id,
            chunk_id=chunk.chunk_id,
            partitions=chunk.partitions,
            status="done",
            input_rows=counting.result(),
            output_rows=counted.checksum.rows,
            outside_rows=counted.outside_rows + remaining.outside_rows,
            checksum=counted.checksum.text,
            seconds=round(time.monotonic() - started, 3),
            snapshot_id=commit.snapshot_id,
            finished_at=datetime.now(timezone.utc),
            epoch=epoch,
            **remaining.counts.known,
        )

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        """Return the ledger row of a chunk that was committed earlier but not recorded.

        Rows are counted from storage. The number of rows outside the chunk is not stored, so it
        is 0.
        """
        started = time.monotonic()
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        with spark_errors(f"measuring chunk {chunk.chunk_id}"):
            stored = self._stored_checksum(plan.shadow_table, snapshot_id, scope)
        input_rows = self._count(plan, chunk, self._inputs.frames_for_scope(plan, scope))
        return ChunkRecord(
            run_id=plan.run_id,
            chunk_id=chunk.chunk_id,
            partitions=chunk.partitions,
            status="done",
            input_rows=input_rows,
            output_rows=stored.rows,
            outside_rows=0,
            checksum=stored.text,
            seconds=round(time.monotonic() - started, 3),
            snapshot_id=snapshot_id,
            finished_at=datetime.now(timezone.utc),
            recovered=True,
            epoch=epoch,
            **self._chunk_composer.read_counts(plan.shadow_table, snapshot_id).known,
        )

    def application(self) -> str:
        """Return the id of the Spark application, which Iceberg writes into each summary."""
        return str(self._spark.conf.get("spark.app.id", ""))

    def edges(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> tuple[EdgePartition, ...]:
        """Compute partitions beyond the scope and compare them with the target's base.

        All sides are compared together, but each is computed from its own input: input between the
        sides is not read.
        """
        scopes = _scopes(plan, around)
        if not scopes:
            return ()
        labels = tuple(label for scope in scopes.values() for label in scope.partitions)
        field = plan.resolved.scope.field
        accepted = self._accepted_rows(plan, Scope(field=field, partitions=labels))
        target, added_columns = (
            accepted.schema,
            table.added_column_names(declared_schema_change(plan)),
        )
        if added_columns:
            target = self._schema(plan.shadow_table)
        with spark_errors("checking the edges"):
            edges = [
                Edge(side, scope, self._computed_rows(plan, scope, target).drop(*added_columns))
                for side, scope in scopes.items()
            ]
            return compare_edges(
                accepted.drop(*LINEAGE_NAMES),
                edges,
                plan.resolved.contract,
                lambda: self._inside_rows(plan),
            )

    def edge_checksums(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> dict[str, Checksum]:
        """Compute partitions beyond the scope, return their checksums; empty ones are omitted."""
        scopes, base = _scopes(plan, around), plan.resolved.target
        target = dataframes.read_table(
            self._spark, self._catalog, base.table, base.snapshot_id
        ).schema
        with spark_errors("checking the edges"):
            computed = {
                str(side): self._computed_rows(plan, scopes[side], target) for side in scopes
            }
            sums = sum_partitions(computed, plan.resolved.scope.field)
        return {
            label: checksum for side in sums.values() for label, checksum in side.checksums.items()
        }

    def _rows_in_predicate(self, plan: Plan, frame: DataFrame) -> DataFrame:
        """Keep the rows that match the run's row predicate; all rows when it has none."""
        predicate = merge.typed_row_predicate(plan, frame.schema)
        return frame if predicate is None else frame.where(merge.matches_predicate(predicate))

    def _accepted_rows(self, plan: Plan, scope: Scope) -> DataFrame:
        base = plan.resolved.target
        if base.snapshot_id is None:
            return dataframes.empty_frame(self._spark, self._schema(plan.shadow_table))
        read = dataframes.read_scope(
            self._spark, self._catalog, base.table, base.snapshot_id, scope
        )
        rows = dataframes.apply_schema_change(
            self._rows_in_predicate(plan, read), declared_schema_change(plan)
        )
        return self._deleted_row_filter.drop_excluded(rows, catch_up.excluded_rows(plan.resolved))

    def _inside_rows(self, plan: Plan) -> tuple[DataFrame, DataFrame]:
        """Return the accepted and the staged rows of the run's own partitions."""
        scope = plan.resolved.scope
        staged = dataframes.read_scope(self._spark, self._catalog, plan.shadow_table, None, scope)
        return self._accepted_rows(plan, scope), self._rows_in_predicate(plan, staged)

    def _computed_rows(self, plan: Plan, scope: Scope, target: StructType) -> DataFrame:
        sources = plan.resolved.sources
        rows = self._rows_in_predicate(
            plan, self._transform_runner.compute_partitions(plan, scope, target, sources)
        )
        return self._deleted_row_filter.drop_excluded(rows, catch_up.excluded_rows(plan.resolved))

    def prove_warm_up(self, plan: Plan, label: str) -> tuple[Checksum, Checksum]:
        """Compute one partition with the declared warm-up and with twice as much.

        Raises ConfigError when the declared ranges do not cover the doubled warm-up: reading less
        would prove nothing. Raises Unsupported when the target does not exist yet, or when the run
        changes its columns.
        """
        scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
        base = plan.resolved.target
        if base.uuid is None:
            raise Unsupported(
                f"{base.table} does not exist yet, so nothing says what the output must look like",
                fix="plan without --prove-warm-up",
            )
        if declared_schema_change(plan):
            raise Unsupported(
                f"the run changes columns of {base.table}, which no table has yet",
                fix="plan without --prove-warm-up",
            )
        target = self._schema(base.table)
        doubled = tuple(_doubled(pin, scope) for pin in plan.resolved.sources)
        with spark_errors("proving the warm-up"):
            checksums = [
                self._checksum(self._transform_runner.compute_partitions(plan, scope, target, pins))
                for pins in (plan.resolved.sources, doubled)
            ]
        return checksums[0], checksums[1]

    def _count(self, plan: Plan, chunk: Chunk, frames: dict[str, DataFrame]) -> int:
        with spark_errors(f"counting the input of chunk {chunk.chunk_id}"):
            return self._inputs.count_source_rows(plan, frames)

    def _write(
        self, plan: Plan, chunk: Chunk, epoch: int, composed: ComposedChunk
    ) -> tuple[ShadowCommit, _ObservedChunk]:
        from pyspark.sql import Observation

        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        rows = partitions.scope_row_ranges(scope)
        observation = Observation(f"chunk {uuid.uuid4()}")
        observed = _with_observation(composed.rows, dataframes.is_in_ranges(rows), observation)
        # Spark appends rows outside the overwritten range (pitfall 26): filter them out.
        written = observed.where(dataframes.range_filter(rows))
        properties = shadow_writer.snapshot_properties(plan, chunk, scope, str(uuid.uuid4()), epoch)
        properties |= composed.counts.properties
        commit = self._writer.overwrite(
            written, plan.shadow_table, dataframes.range_filter(rows), properties, epoch
        )
        with spark_errors(f"measuring chunk {chunk.chunk_id}"):
            counted = _observed_chunk(observation, composed.rows.schema)
            if counted is None or counted.checksum.rows != commit.added_rows:
                # Repeated tasks are counted twice; an optimised-away plan is not counted at all.
                outside = ~dataframes.is_in_ranges(rows)
                rows_outside = composed.rows.where(outside)
                outside_rows = counted.outside_rows if counted else rows_outside.count()
                stored = self._stored_checksum(plan.shadow_table, commit.snapshot_id, scope)
                counted = _ObservedChunk(stored, outside_rows)
        return commit, counted

    def _stored_checksum(self, table: str, snapshot_id: int, scope: Scope) -> Checksum:
        frame = dataframes.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
        return self._checksum(frame)

    def _checksum(self, frame: DataFrame) -> Checksum:
        columns = row_hash.checksum_aggregates(frame.schema, LINEAGE_NAMES)
        aggregates = frame.agg(*columns).collect()[0].asDict()
        return row_hash.to_checksum(aggregates, row_hash.shape_digest(frame.schema, LINEAGE_NAMES))

    def _schema(self, table: str) -> StructType:
        return dataframes.read_table(self._spark, self._catalog, table, None).schema


def _scopes(plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]) -> dict[EdgeSide, Scope]:
    field = plan.resolved.scope.field
    return {
        side: Scope(field=field, partitions=labels) for side, labels in around.items() if labels
    }


def _with_observation(output: DataFrame, inside: Column, observation: Any) -> DataFrame:
    """Observe the rows during the write: checksum the rows inside, count the others."""
    from pyspark.sql import functions as F

    # Hashed once per row: in an Observation, each aggregate would compute the whole hash again.
    hashed = F.when(inside, row_hash.row_hash_column(output.schema, LINEAGE_NAMES))
    outside = F.count(F.when(quoted_column(_HASH).isNull(), F.lit(1))).alias(_OUTSIDE)
    with_hash = output.withColumn(_HASH, hashed)
    return with_hash.observe(
        observation, outside, *row_hash.hash_aggregates(quoted_column(_HASH))
    ).drop(_HASH)


def _observed_chunk(observation: Any, schema: StructType) -> _ObservedChunk | None:
    """Return the observed values; None when Spark optimised the observed plan away."""
    try:
        metrics = dict(observation.get)
    except Exception:  # noqa: BLE001 (an assertion of the JVM: there are no metrics)
        return None
    if _OUTSIDE not in metrics:
        return None
    shape = row_hash.shape_digest(schema, LINEAGE_NAMES)
    return _ObservedChunk(row_hash.to_checksum(metrics, shape), int(metrics[_OUTSIDE]))


def _doubled(pin: SourcePin, scope: Scope) -> SourcePin:
    if pin.range is None:
        return pin
    doubled_pin = pin.model_copy(
        update={
            "warm_up_days": max(2 * pin.warm_up_days, 1),
            "cool_down_days": 2 * pin.cool_down_days,
        }
    )
    window = resolve.needed_window(doubled_pin, scope)
    if window is not None and not resolve.range_covers_window(pin.range, window):
        first, last = window[0].date(), window[1].date() + timedelta(days=1)
        raise ConfigError(
            f"twice the warm-up of {pin.name} lies outside its declared range",
            fix=f"declare sources.{pin.name}.range from {first} to {last}",
        )
    return doubled_pin
