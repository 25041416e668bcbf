"""Runs a transform on pinned inputs and writes its output to a shadow table: the Staging port."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, quoted_column
from lakehouse_backfill.adapters.spark.guard import driver_guard
from lakehouse_backfill.adapters.spark.guard.plan_reads import read_together, tables_read
from lakehouse_backfill.adapters.spark.pinned_inputs import PinnedInputs
from lakehouse_backfill.adapters.spark.session import job_tags, write_guard
from lakehouse_backfill.adapters.spark.session.session import analysed_plan_json
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging import rejects, shadow_writer
from lakehouse_backfill.adapters.spark.staging.compose import (
    ChunkComposer,
    DeletedRowFilter,
    PartitionRestorer,
)
from lakehouse_backfill.adapters.spark.staging.edges import EdgeComputer
from lakehouse_backfill.adapters.spark.staging.intermediates import IntermediateStore
from lakehouse_backfill.adapters.spark.staging.jobs import JobSinks
from lakehouse_backfill.adapters.spark.staging.masks import SecretReader
from lakehouse_backfill.adapters.spark.staging.merge import ComposedChunk
from lakehouse_backfill.adapters.spark.staging.proofs import TransformProofs
from lakehouse_backfill.adapters.spark.staging.shadow_writer import ShadowCommit, ShadowWriter
from lakehouse_backfill.adapters.spark.staging.transform import TransformRunner
from lakehouse_backfill.adapters.spark.stateful.store import StateStore
from lakehouse_backfill.core.planning.scope.key_chunks import reads_own_rows
from lakehouse_backfill.core.planning.target import catch_up
from lakehouse_backfill.core.planning.target.file_sizes import Expected
from lakehouse_backfill.domain.catch_up import RestoreChunk
from lakehouse_backfill.domain.checks import EdgePartition, EdgeSide
from lakehouse_backfill.domain.comparison.checksums import Checksum, Repetition
from lakehouse_backfill.domain.partitions import Chunk, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.retention import TRIAL_TABLE
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkCounts, ChunkRecord, Rejects
from lakehouse_backfill.errors import ChecksFailed
from lakehouse_backfill.ports.compute import KeptIntermediate, PlanReads

_OUTSIDE = "lhb_outside"
_HASH = "lhb_hash"
_TASK, _REPEATED = "lhb_task", "lhb_repeated"
#: The bits of `monotonically_increasing_id` that number the rows of a task, from 0.
_ROW_OF_TASK = (1 << 33) - 1
_SECRETS = "lhb_secrets"


@dataclass(frozen=True)
class _ObservedChunk:
    """Observed during a write: rows and checksum of the chunk, number of rows outside it."""

    checksum: Checksum
    outside_rows: int
    #: Also where the rows were not observed.
    may_hold_secrets: bool = True
    #: Tasks that were computed more than once: an executor was lost, or Spark sampled the rows.
    repeated_tasks: int = 0


#: The inputs of a chunk, the rows and the state that are made of them; nothing is executed.
_Computed = tuple[dict[str, DataFrame], DataFrame, DataFrame | None]


class _Outputs:
    """The output of the newest chunk of each thread; chunks may be computed side by side."""

    def __init__(self, inputs: PinnedInputs, runner: TransformRunner) -> None:
        self._inputs, self._runner = inputs, runner
        self._newest = threading.local()
        #: The guards of a job's code hold for the process: it is called by one thread at a time.
        self._lock = threading.RLock()

    def of_chunk(self, plan: Plan, chunk: Chunk, epoch: int | None = None) -> _Computed:
        """Return the inputs of a chunk and what the transform makes of them; executes nothing.

        The chunk that this thread analysed last is kept, so that it is the one that is written.
        Where code may send messages, it runs again with the epoch: an analysis sends none. So does
        code that reads kept results: an analysis is of all that is computed.
        """
        sending = str(epoch) if plan.resolved.contract.sinks else ""
        if epoch is not None and self._runner.kept_properties(plan):
            sending += " kept"
        key = plan.run_id, plan.code_of, chunk.chunk_id, sending
        known: tuple[tuple[str, ...], _Computed] | None = getattr(self._newest, "item", None)
        if known is None or known[0] != key:
            scope = plan.chunk_scope(chunk)
            frames = self._inputs.frames_for_scope(plan, plan.chunk_rows(chunk))
            with self.calling_code(), spark_errors(f"computing chunk {chunk.chunk_id}"):
                made = self._runner.run_job(plan, scope, frames, epoch)
            known = self._newest.item = key, (frames, *made)
        return known[1]

    @contextmanager
    def calling_code(self) -> Iterator[None]:
        """Let this thread alone call a job's code, which may not write."""
        with self._lock, write_guard.allow_own_writes(allowed=False):
            yield

    def take_chunk(self, plan: Plan, chunk: Chunk, epoch: int | None = None) -> _Computed:
        """Return the same, and drop this thread's newest output."""
        found = self.of_chunk(plan, chunk, epoch)
        self._newest.item = None
        return found


class SparkStaging:
    """Computes chunks, edges and warm-up proofs; writes nothing but shadows."""

    def __init__(
        self,
        tables: SparkTables,
        code: Callable[[Plan], Path],
        secret: SecretReader,
        sinks: Callable[[Plan, int | None], JobSinks] | None = None,
        kept_in: str = "",
    ) -> None:
        """Set up as `TransformRunner`; `kept_in`: the namespace of kept intermediate results."""
        self._tables = tables
        self._inputs = PinnedInputs(tables)
        store = IntermediateStore(tables, kept_in) if kept_in else None
        self._states = StateStore(tables, kept_in) if kept_in else None
        self._transform_runner = TransformRunner(tables, code, secret, sinks, store, self._states)
        self._proofs = TransformProofs(tables, self._inputs, self._transform_runner)
        self._chunk_composer = ChunkComposer(tables)
        self._deleted_row_filter = DeletedRowFilter(tables)
        self._writer = ShadowWriter(tables)
        self._restorer = PartitionRestorer(tables)
        self._outputs = _Outputs(self._inputs, self._transform_runner)
        self._edges = EdgeComputer(
            tables, self._transform_runner, self._deleted_row_filter, self._outputs.calling_code
        )
        self._reject_watch = rejects.RejectWatch()

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
        scope = plan.chunk_scope(chunk)
        target = self._tables.schema(plan.shadow_table)
        frames, computed, state = self._outputs.take_chunk(plan, chunk, epoch)
        facts = _stateful_facts(self._inputs, self._states, plan, chunk, state)
        with spark_errors(f"computing chunk {chunk.chunk_id}"):
            watched = self._reject_watch.observe((plan.run_id, chunk.chunk_id), computed)
            output = self._transform_runner.fit(plan, watched, target)
            if chunk.keys is not None and not reads_own_rows(plan.resolved):
                output = output.where(dataframes.is_in_ranges(scope_row_ranges(chunk.keys)))
        with (
            write_guard.run_concurrently(
                lambda: _count_input(self._inputs, plan, chunk, frames)
            ) as counting,
            self._chunk_composer.compose(plan, scope, output, target) as composed_output,
            self._deleted_row_filter.exclude_from_chunk(plan, chunk, composed_output) as remaining,
        ):
            commit, written = self._write(plan, chunk, epoch, remaining)
        self._transform_runner.require_no_attempts(plan)
        return _record(
            plan, chunk, started, written.checksum,
            input_rows=counting.result(),
            outside_rows=written.outside_rows + remaining.outside_rows,
            snapshot_id=commit.snapshot_id,
            epoch=epoch,
            **facts,
            **remaining.counts.known,
        )  # fmt: skip

    def analysed_plan(self, plan: Plan, chunk: Chunk) -> str | None:
        """Return Catalyst's analysed plan of a chunk as JSON; None when Spark doesn't give it."""
        _, output, state = self._outputs.of_chunk(plan, chunk)
        place, texts = self._transform_runner.place(plan), list[str | None]()
        for frame in (output,) if state is None else (output, state):
            with spark_errors(f"analysing chunk {chunk.chunk_id}"):
                texts.append(text := analysed_plan_json(frame))
            driver_guard.require_no_java_in_plan(text, place)
            rejects.require_none_in_plan(frame, text, place)
        return texts[0]

    def tables_read(self, plan: Plan, chunk: Chunk) -> PlanReads | None:
        """Return the tables that the analysed plan of a chunk reads; None on Spark Connect."""
        _, output, state = self._outputs.of_chunk(plan, chunk)
        with spark_errors(f"analysing chunk {chunk.chunk_id}"):
            found = tables_read(output, self._tables.catalog)
            if state is not None:
                found = read_together(found, tables_read(state, self._tables.catalog))
        return self._states.without_start(plan, chunk, found) if self._states else found

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        """Return the ledger row of a chunk that was committed earlier but not recorded.

        Rows are counted from storage. The number of rows outside the chunk is not stored, so it
        is 0; of a part of a table that reads its own rows it is computed again.
        """
        started = time.monotonic()
        with spark_errors(f"measuring chunk {chunk.chunk_id}"):
            stored = _stored_checksum(self._tables, plan, chunk, snapshot_id)
            place = self._transform_runner.place(plan)
            at = chunk, snapshot_id
            _refuse_secrets(self._tables, plan, place, at, may_hold=True)
            outside = self._count_outside(plan, chunk)
        frames = self._inputs.frames_for_scope(plan, plan.chunk_rows(chunk))
        summary = self._tables.summaries(plan.shadow_table).get(snapshot_id, {})
        return _record(
            plan, chunk, started, stored,
            input_rows=_count_input(self._inputs, plan, chunk, frames),
            outside_rows=outside, snapshot_id=snapshot_id, epoch=epoch, recovered=True,
            **_stateful_facts(self._inputs, self._states, plan, chunk),
            **ChunkCounts.from_properties(summary).known,
        )  # fmt: skip

    def _count_outside(self, plan: Plan, chunk: Chunk) -> int:
        """Count the rows that the chunk of another key would have had to make."""
        if chunk.keys is None or not reads_own_rows(plan.resolved):
            return 0
        output = self._outputs.take_chunk(plan, chunk)[1]
        fitted = self._transform_runner.fit(plan, output, self._tables.schema(plan.shadow_table))
        return fitted.where(~dataframes.is_in_ranges(scope_row_ranges(chunk.keys))).count()

    def intermediates(self, plan: Plan) -> tuple[str, ...]:
        """Return the names of the intermediate results that the transform reads."""
        return self._transform_runner.intermediates(plan)

    def keep_intermediates(self, plan: Plan) -> tuple[KeptIntermediate, ...]:
        """Keep the intermediate results that the transform reads, and have the chunks read them."""
        with spark_errors("keeping intermediate results"):
            return self._transform_runner.keep_intermediates(plan)

    def rejects(self, plan: Plan, chunk: Chunk) -> Rejects | None:
        """Return the rows of a staged chunk that its transform rejects, computed again if any."""
        if plan.resolved.catch_up and plan.resolved.catch_up.erased_chunk(chunk.chunk_id):
            return None  # Accepted rows stand for what it computes, which is never executed.
        is_known, found = self._reject_watch.look_up((plan.run_id, chunk.chunk_id))
        if is_known:
            return found
        output = self._outputs.take_chunk(plan, chunk)[1]
        if not rejects.declares_rejects(output):
            return None
        with spark_errors(f"reading what chunk {chunk.chunk_id} rejects"):
            target = self._tables.schema(plan.shadow_table)
            fitted = self._transform_runner.fit_rejects(plan, output, target)
            mine = fitted.where(rejects.is_rejected_of(plan, chunk, fitted.schema))
            left_out = catch_up.excluded_rows(plan.resolved)
            kept = self._deleted_row_filter.drop_excluded(mine, left_out)
            return rejects.read_rejects(plan, kept, self._transform_runner.place(plan))

    def beside(self, plan: Plan) -> AbstractContextManager[None]:
        """Tag what this thread computes, in a scheduler pool of its own; it may write."""
        return job_tags.beside(self._tables.spark, f"lhb-{plan.run_id}")

    def interrupt(self, plan: Plan) -> None:
        """End the Spark jobs of the threads that work for the run."""
        job_tags.interrupt(self._tables.spark, f"lhb-{plan.run_id}")

    def application(self) -> str:
        """Return the id of the Spark application, which Iceberg writes into each summary."""
        return str(self._tables.spark.conf.get("spark.app.id", ""))

    def edges(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> tuple[EdgePartition, ...]:
        """Compute partitions beyond the scope and compare them with the target's base."""
        return self._edges.compare(plan, around)

    def edge_checksums(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> dict[str, Checksum]:
        """Compute partitions beyond the scope, return their checksums; empty ones are omitted."""
        return self._edges.checksums(plan, around)

    def begin_edges(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> Future[dict[str, Checksum]]:
        """Start `edge_checksums` on a thread of its own, tagged as what the run computes."""

        def compute() -> dict[str, Checksum]:
            with self.beside(plan):
                return self.edge_checksums(plan, around)

        pool = ThreadPoolExecutor(1, thread_name_prefix="edges")
        started = pool.submit(compute)
        pool.shutdown(wait=False)
        return started

    def prove_warm_up(self, plan: Plan, label: str) -> tuple[Checksum, Checksum]:
        """Compute one partition with the declared warm-up and with twice as much."""
        return self._proofs.prove_warm_up(plan, label)

    def prove_determinism(self, plan: Plan, label: str) -> Repetition:
        """Compute one partition twice, with rows and shuffles in another order."""
        return self._proofs.prove_determinism(plan, label)

    def restore(self, chunk: RestoreChunk) -> int:
        """Overwrite exactly the chunk's partitions with their earlier rows, in one commit."""
        return self._restorer.restore(chunk)

    def _write(
        self, plan: Plan, chunk: Chunk, epoch: int, composed: ComposedChunk
    ) -> tuple[ShadowCommit, _ObservedChunk]:
        """Write the rows of a chunk; those by key hold no others, and stand beside each other."""
        scope = plan.chunk_scope(chunk)
        rows = scope_row_ranges(plan.chunk_rows(chunk))
        observation = Observation(f"chunk {uuid.uuid4()}")
        # To build an expression calls the JVM many times, so this one is used three times.
        inside = dataframes.range_filter(rows)
        observed = _with_observation(composed.rows, dataframes.is_true(inside), observation)
        # Spark appends rows outside the overwritten range (pitfall 26): filter them out.
        written = observed.where(inside)
        properties = shadow_writer.snapshot_properties(plan, chunk, scope, str(uuid.uuid4()), epoch)
        properties |= composed.counts.properties | self._transform_runner.kept_properties(plan)
        write, run_bytes = self._writer.overwrite, plan.estimate.output_bytes
        replaced = inside
        if chunk.keys is not None:
            replaced = dataframes.range_filter(scope_row_ranges(scope))
            write = partial(self._writer.add_part, base=plan.resolved.target.snapshot_id)
            run_bytes = run_bytes and run_bytes // len(plan.resolved.chunks)
        commit = write(
            written, plan.shadow_table, replaced, properties, epoch,
            expected=Expected(run_bytes, len(chunk.partitions)),
        )  # fmt: skip
        with spark_errors(f"measuring chunk {chunk.chunk_id}"):
            counted = _observed_chunk(observation, composed.rows.schema)
            is_whole = counted is not None and counted.checksum.rows == commit.added_rows
            if counted is None or not is_whole or counted.repeated_tasks:
                # Repeated tasks are counted twice; an optimised-away plan is not counted at all.
                outside = composed.rows.where(~dataframes.is_in_ranges(rows))
                is_none = counted is not None and not counted.outside_rows
                outside_rows = 0 if is_none else outside.count()
                stored = _stored_checksum(self._tables, plan, chunk, commit.snapshot_id)
                counted = _ObservedChunk(stored, outside_rows)
            place = self._transform_runner.place(plan)
            at = chunk, commit.snapshot_id
            _refuse_secrets(self._tables, plan, place, at, may_hold=counted.may_hold_secrets)
        return commit, counted


def _refuse_secrets(
    tables: SparkTables,
    plan: Plan,
    place: tuple[str, int],
    at: tuple[Chunk, int],
    *,
    may_hold: bool,
) -> None:
    """Raise where a chunk, stored `at` a snapshot, holds values of secrets; `place`: of the job."""
    if not driver_guard.secrets_in_texts():
        return  # Nothing to look for: the table need not be opened.
    rows = tables.read_chunk(plan, *at)
    rejects.require_none_stored(rows, place, may_hold=may_hold)


def _stateful_facts(
    inputs: PinnedInputs,
    kept_states: StateStore | None,
    plan: Plan,
    chunk: Chunk,
    state: DataFrame | None = None,
) -> dict[str, Any]:
    """Keep the state that a chunk leaves, or find it; return what the ledger says of it.

    It is called before the rows are written: where they are, there is a state to go on from. That
    of a trial is checked, and not kept.

    Raises ChecksFailed for late rows where the run accepts none.
    """
    declared = plan.resolved.manifest.stateful
    if declared is None or kept_states is None:
        return {}
    with spark_errors(f"counting the late rows of chunk {chunk.chunk_id}"):
        late = inputs.count_late(plan, plan.chunk_scope(chunk))
    if late and declared.late == "fail":
        raise ChecksFailed(
            f"{late:,} rows of chunk {chunk.chunk_id} are late by {declared.watermark.policy}",
            state="nothing was written",
            fix="restate from the partitions that they belong to, or write stateful.late: drop",
        )
    if TRIAL_TABLE.fullmatch(plan.shadow_table):
        # A trial leaves nothing behind.
        kept_states.check(plan, chunk, state)
        return {"late_rows": late}
    return {"state": kept_states.keep(plan, chunk, state).text, "late_rows": late}


def _count_input(
    inputs: PinnedInputs, plan: Plan, chunk: Chunk, frames: dict[str, DataFrame]
) -> int:
    with spark_errors(f"counting the input of chunk {chunk.chunk_id}"):
        return inputs.count_source_rows(plan, plan.chunk_rows(chunk), frames)


def _stored_checksum(tables: SparkTables, plan: Plan, chunk: Chunk, snapshot_id: int) -> Checksum:
    frame = tables.read_chunk(plan, chunk, snapshot_id)
    if chunk.keys is not None:
        frame = frame.where(dataframes.is_in_ranges(scope_row_ranges(chunk.keys)))
    return row_hash.frame_checksum(frame, LINEAGE_NAMES)


def _record(
    plan: Plan, chunk: Chunk, started: float, checksum: Checksum, **facts: Any
) -> ChunkRecord:
    """Return the ledger row of a chunk that was written with this checksum."""
    return ChunkRecord(
        run_id=plan.run_id,
        chunk_id=chunk.chunk_id,
        partitions=chunk.partitions,
        status="done",
        output_rows=checksum.rows,
        checksum=checksum.text,
        seconds=round(time.monotonic() - started, 3),
        finished_at=datetime.now(timezone.utc),
        **facts,
    )


def _with_observation(output: DataFrame, inside: Column, observation: Any) -> DataFrame:
    """Observe the rows during the write: checksum the rows inside, count the others.

    The first row of each task tells its number, so that tasks which are computed again are known.
    """
    # Hashed once per row: in an Observation, each aggregate would compute the whole hash again.
    hashed = F.when(inside, row_hash.row_hash_column(output.schema, LINEAGE_NAMES))
    task, *aggregates = row_hash.made_once((_REPEATED,), _observation_columns)
    if (secrets := rejects.count_candidates(output.schema)) is not None:
        aggregates.append(secrets.alias(_SECRETS))
    with_hash = output.withColumns({_HASH: hashed, _TASK: task})
    return with_hash.observe(observation, *aggregates).drop(_HASH, _TASK)


def _observation_columns() -> tuple[Column, ...]:
    """Return the number of a task on its first row, and the aggregates of an observation."""
    is_first = F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_OF_TASK)) == 0
    task = quoted_column(_TASK)
    return (
        F.when(is_first, F.spark_partition_id()),
        F.count(F.when(quoted_column(_HASH).isNull(), F.lit(1))).alias(_OUTSIDE),
        (F.count(task) - F.size(F.collect_set(task))).alias(_REPEATED),
        *row_hash.hash_aggregates(quoted_column(_HASH)),
    )


def _observed_chunk(observation: Any, schema: StructType) -> _ObservedChunk | None:
    """Return the observed values; None when Spark optimised the observed plan away."""
    try:
        metrics = dict(observation.get)
    except Exception:  # noqa: BLE001 (an assertion of the JVM: there are no metrics)
        return None
    if _OUTSIDE not in metrics:
        return None
    shape = row_hash.shape_digest(schema, LINEAGE_NAMES)
    return _ObservedChunk(
        row_hash.to_checksum(metrics, shape),
        int(metrics[_OUTSIDE]),
        may_hold_secrets=bool(metrics.get(_SECRETS)),
        repeated_tasks=int(metrics[_REPEATED]),
    )
