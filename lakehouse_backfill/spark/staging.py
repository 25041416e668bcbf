"""Runs a transform on pinned inputs into a shadow table: the Staging port."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.errors import ConfigError, Unsupported
from lakehouse_backfill.model.checks import EdgePartition
from lakehouse_backfill.model.checksum import Checksum
from lakehouse_backfill.model.lineage import LINEAGE_NAMES
from lakehouse_backfill.model.plan import Plan, SourcePin
from lakehouse_backfill.model.run import ChunkRecord
from lakehouse_backfill.model.scope import Chunk, Scope
from lakehouse_backfill.rules import partitions, windows
from lakehouse_backfill.spark import edges, filters, lineage, readers, rowhash
from lakehouse_backfill.spark.computing import Computing
from lakehouse_backfill.spark.failures import translated
from lakehouse_backfill.spark.inputs import Inputs
from lakehouse_backfill.spark.shadow_writer import Commit, ShadowWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_OUTSIDE = "lhb_outside"


@dataclass(frozen=True)
class _Counted:
    """What flowed into a commit: rows and checksum of the chunk, rows that fell outside it."""

    checksum: Checksum
    outside_rows: int


class SparkStaging:
    """Computes chunks, edges and warm-up proofs; writes nothing but shadows."""

    def __init__(self, spark: SparkSession, catalog: str, project: Path) -> None:
        self._spark = spark
        self._catalog = catalog
        self._inputs = Inputs(spark, catalog)
        self._computing = Computing(spark, project, self._inputs)
        self._writer = ShadowWriter(spark, catalog)

    def load(self, plan: Plan) -> None:
        """Import the transform and check name, version and inputs, without running it."""
        self._computing.load(plan)

    def stage(self, plan: Plan, chunk: Chunk) -> ChunkRecord:
        """Compute one chunk and overwrite exactly its partitions in the shadow, in one commit.

        Run twice, it leaves the same rows; a chunk without rows leaves its partitions empty. Rows
        outside the chunk are counted and never written.
        """
        started = time.monotonic()
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        target = self._schema(plan.shadow_table)
        frames = self._inputs.frames(plan, scope)
        with translated(f"computing chunk {chunk.chunk_id}"):
            output = self._computing.output(plan, scope, frames, target)
            input_rows = self._inputs.count(plan, frames)
        commit, counted = self._write(plan, chunk, scope, output, target)
        return ChunkRecord(
            run_id=plan.run_id,
            chunk_id=chunk.chunk_id,
            partitions=chunk.partitions,
            status="done",
            input_rows=input_rows,
            output_rows=counted.checksum.rows,
            outside_rows=counted.outside_rows,
            checksum=counted.checksum.text,
            seconds=round(time.monotonic() - started, 3),
            snapshot_id=commit.snapshot_id,
            finished_at=datetime.now(timezone.utc),
        )

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int) -> ChunkRecord:
        """Give the ledger row of a chunk that was committed, but not recorded, before.

        Counted from the stored rows; how many fell outside the chunk is not stored, so it is 0.
        """
        started = time.monotonic()
        scope = Scope(field=plan.resolved.scope.field, partitions=chunk.partitions)
        with translated(f"measuring chunk {chunk.chunk_id}"):
            stored = self._stored(plan.shadow_table, snapshot_id, scope)
            input_rows = self._inputs.count(plan, self._inputs.frames(plan, scope))
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
        )

    def edges(self, plan: Plan, labels: tuple[str, ...], side: str) -> tuple[EdgePartition, ...]:
        """Compute partitions beyond the scope and compare them with the target's base."""
        scope = Scope(field=plan.resolved.scope.field, partitions=labels)
        base = plan.resolved.target
        if base.snapshot_id is None:
            accepted = readers.no_rows(self._spark, self._schema(plan.shadow_table))
        else:
            accepted = readers.read_scope(
                self._spark, self._catalog, base.table, base.snapshot_id, scope
            )
        with translated("checking the edges"):
            new = self._computing.partitions(plan, scope, accepted.schema, plan.resolved.sources)
            return edges.compare(
                accepted.drop(*LINEAGE_NAMES), new, plan.resolved.contract, scope, side
            )

    def prove_warm_up(self, plan: Plan, label: str) -> tuple[Checksum, Checksum]:
        """Compute one partition with the declared warm-up and with twice as much.

        Raises ConfigError when the declared ranges do not hold the doubled warm-up: reading less
        would prove nothing.
        """
        scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
        base = plan.resolved.target
        if base.uuid is None:
            raise Unsupported(
                f"{base.table} does not exist yet, so nothing says what the output must look like",
                fix="plan without --prove-warm-up",
            )
        target = self._schema(base.table)
        doubled = tuple(_doubled(pin, scope) for pin in plan.resolved.sources)
        with translated("proving the warm-up"):
            found = [
                self._checksum(self._computing.partitions(plan, scope, target, pins))
                for pins in (plan.resolved.sources, doubled)
            ]
        return found[0], found[1]

    def _write(
        self, plan: Plan, chunk: Chunk, scope: Scope, output: DataFrame, target: StructType
    ) -> tuple[Commit, _Counted]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        rows = partitions.ranges(scope)
        inside = filters.inside(rows)
        schema = output.schema
        observation = Observation(f"chunk {uuid.uuid4()}")
        outside = F.count(F.when(~inside, F.lit(1))).alias(_OUTSIDE)
        sums = rowhash.checksum_columns(schema, LINEAGE_NAMES, where=inside)
        # Spark appends rows outside the overwritten range (pitfall 26): they must not get there.
        written = output.observe(observation, outside, *sums).where(filters.condition(rows))
        if plan.resolved.contract.lineage_columns:
            written = lineage.with_lineage(written, plan, scope, target)
        properties = lineage.summary(plan, chunk, scope, str(uuid.uuid4()))
        commit = self._writer.overwrite(
            written, plan.shadow_table, filters.condition(rows), properties
        )
        with translated(f"measuring chunk {chunk.chunk_id}"):
            counted = _counted(observation, schema)
            if counted is None or counted.checksum.rows != commit.added_rows:
                # Repeated tasks count twice, and an optimised-away plan not at all.
                outside_rows = counted.outside_rows if counted else output.where(~inside).count()
                stored = self._stored(plan.shadow_table, commit.snapshot_id, scope)
                counted = _Counted(stored, outside_rows)
        return commit, counted

    def _stored(self, table: str, snapshot_id: int, scope: Scope) -> Checksum:
        frame = readers.read_scope(self._spark, self._catalog, table, snapshot_id, scope)
        return self._checksum(frame)

    def _checksum(self, frame: DataFrame) -> Checksum:
        columns = rowhash.checksum_columns(frame.schema, LINEAGE_NAMES)
        found = frame.agg(*columns).collect()[0].asDict()
        return rowhash.to_checksum(found, rowhash.shape(frame.schema, LINEAGE_NAMES))

    def _schema(self, table: str) -> StructType:
        return readers.read(self._spark, self._catalog, table, None).schema


def _counted(observation: Any, schema: StructType) -> _Counted | None:
    """Give what was counted; None when Spark optimised the observed part of the plan away."""
    try:
        found = dict(observation.get)
    except Exception:  # noqa: BLE001 (an assertion of the JVM: no metrics came)
        return None
    if _OUTSIDE not in found:
        return None
    shape = rowhash.shape(schema, LINEAGE_NAMES)
    return _Counted(rowhash.to_checksum(found, shape), int(found[_OUTSIDE]))


def _doubled(pin: SourcePin, scope: Scope) -> SourcePin:
    if pin.range is None:
        return pin
    more = pin.model_copy(
        update={
            "warm_up_days": max(2 * pin.warm_up_days, 1),
            "cool_down_days": 2 * pin.cool_down_days,
        }
    )
    window = windows.needed(more, scope)
    if window is not None and not windows.covers(pin.range, window):
        first, last = window[0].date(), window[1].date() + timedelta(days=1)
        raise ConfigError(
            f"twice the warm-up of {pin.name} lies outside its declared range",
            fix=f"declare sources.{pin.name}.range from {first} to {last}",
        )
    return more
