"""Stage a run: judge the pinned input, then compute the chunks into the shadow, each one judged.

A revision carries chunks over from the shadow of the run that it revises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from lakehouse_backfill.core.approval import decisions, signatures
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.guards.privacy import masks, rules
from lakehouse_backfill.core.planning.inputs.pins import require_pinned_snapshots
from lakehouse_backfill.core.planning.inputs.read_windows import input_window
from lakehouse_backfill.core.planning.inputs.topics import require_topics_unchanged
from lakehouse_backfill.core.planning.job_code import require_approved_files
from lakehouse_backfill.core.planning.pace import engine_detail, require_place
from lakehouse_backfill.core.planning.stages import Stage, chunk_stages, has_stage
from lakehouse_backfill.core.planning.target import publish_modes, write_path
from lakehouse_backfill.core.runs import hooks, lifecycle, roles
from lakehouse_backfill.core.runs.context import Context, RenewedLease
from lakehouse_backfill.core.staging.candidates import FindReused, bind_candidates
from lakehouse_backfill.core.staging.checks import ChunkChecks, judge_inputs
from lakehouse_backfill.core.staging.determinism import PlanJudge
from lakehouse_backfill.core.staging.pause import (
    CUT_OFF,
    newest_move,
    require_not_paused,
    stop_error,
)
from lakehouse_backfill.core.staging.rejects import record_rejects, with_earlier_rejects
from lakehouse_backfill.core.staging.schedule import (
    ChunkSchedule,
    ChunkWork,
    LateCommits,
    StageAttempts,
    pace_detail,
)
from lakehouse_backfill.core.validation.edges import EdgesWhileStaging
from lakehouse_backfill.domain.catch_up import CarriedChunk, CarryRequest
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import (
    Plan,
    declared_schema_change,
    reference_data_version,
)
from lakehouse_backfill.domain.run import ChunkRecord, RunState, RunStatus
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow
from lakehouse_backfill.domain.tables.commits import ChunkCommit
from lakehouse_backfill.errors import BackfillError, ChecksFailed, RunMoved, noting_failure
from lakehouse_backfill.ports.compute import ComputePorts

#: Lists the chunks that the shadow holds.
Listed = Callable[[], tuple[ChunkCommit, ...]]


def carry_chunk(
    context: Context,
    plan: Plan,
    chunk: Chunk,
    source: CarriedChunk,
    known: ChunkRecord | None,
    epoch: int,
) -> ChunkRecord:
    """Return the ledger row of a chunk that is taken over, once its files are in the shadow.

    Its rows and checksum are those that were accepted: validation compares them with what the
    shadow holds. Nothing is computed or copied; the same again does nothing.
    """
    started = context.clock.now()
    commit = context.publisher.carry(_carry_request(plan, chunk, source, epoch))
    if known is not None and known.snapshot_id == commit.snapshot_id:
        return known
    context.journal.bind(**plan.labels).log(
        "chunk carried over", chunk_id=chunk.chunk_id, carried_from=source.run_id
    )
    finished = context.clock.now()
    return ChunkRecord(
        run_id=plan.run_id,
        chunk_id=chunk.chunk_id,
        partitions=chunk.partitions,
        status="done",
        input_rows=0,
        output_rows=source.rows,
        outside_rows=0,
        checksum=source.checksum,
        seconds=round((finished - started).total_seconds(), 3),
        snapshot_id=commit.snapshot_id,
        finished_at=finished,
        carried_from=source.run_id,
        epoch=epoch,
    )


def _carry_request(plan: Plan, chunk: Chunk, source: CarriedChunk, epoch: int) -> CarryRequest:
    inputs = ",".join(f"{name}={number}" for name, number in source.inputs.items())
    manifest, reference = plan.resolved.manifest, reference_data_version(plan, source.inputs)
    values = {
        "run-id": plan.run_id,
        "carried-from": source.run_id,
        "product": manifest.product,
        "manifest-hash": plan.manifest_hash,
        "epoch": str(epoch),
        "attempt-id": f"{plan.run_id} {chunk.chunk_id}",
        "transform": manifest.transform.name,
        "transform-version": manifest.transform.version,
        "input-snapshot-ids": inputs,
        "processing-mode": manifest.run.mode,
        "restatement-reason": manifest.run.reason,
        **({"reference-data-version": reference} if reference else {}),
    }
    return CarryRequest(
        shadow=plan.shadow_table,
        source=source.shadow_table,
        source_snapshot_id=source.shadow_snapshot_id,
        scope=plan.chunk_scope(chunk),
        chunk_id=chunk.chunk_id,
        epoch=epoch,
        properties={f"lakehouse-backfill.{name}": text for name, text in values.items()},
    )


def stage(
    context: Context,
    run_id: str,
    by: str,
    replayer: str | None = None,
    find_reused: FindReused | None = None,
) -> tuple[RunStatus, dict[str, Any]]:
    """Stage what is not staged yet; chunks that the shadow already holds are not redone.

    The first chunk that fails its checks halts the run: it stays where it is, and is judged again
    by the next call. Raises ApprovalMissing (also when the code is not what was approved),
    ChecksFailed (the input, or a chunk), RunMoved (another process drives the run), NotAllowed
    (`replayer`, by default who acts, may not replay the input), Blocked (an input is staged by a
    run that is not validated), RunPaused (also when it is paused meanwhile). `find_reused` is asked
    once for the partitions that need not be computed, when candidates are bound.
    """
    plan = context.runs.plan(run_id)
    publish_modes.require_job_writer(plan)
    require_not_paused(context, context.runs.status(run_id))
    plan = bind_approved_candidates(context, plan, by, find_reused)
    committed = partial(context.shadows.chunks, plan.shadow_table)
    return stage_run(context, plan, by, committed, replayer)


def bind_approved_candidates(
    context: Context, plan: Plan, by: str, find_reused: FindReused | None = None
) -> Plan:
    """Return the plan with the validated snapshots of its candidates, once its intent is approved.

    Raises ApprovalMissing, RunMoved (another process drives the run), and as `bind_candidates`.
    """
    status = context.runs.status(plan.run_id)
    if plan.cascade is not None:
        roles.require_approval(decisions.trusted_events(context, status), plan)
        lifecycle.require_legal_move(status, "begin staging")
        context.require_no_other_driver(status)
    return bind_candidates(context, plan, by, find_reused)


def stage_run(
    context: Context,
    plan: Plan,
    by: str,
    committed: Listed,
    replayer: str | None = None,
) -> tuple[RunStatus, dict[str, Any]]:
    """Bring the run to staged: the chunks that `committed` lists are in the shadow already.

    `committed` is called after the shadow was fenced: nobody else writes there any more.
    """
    late = LateCommits(plan)
    return late.repeat(context, lambda now: _stage_once(now, plan, by, committed, replayer, late))


def _stage_once(
    context: Context, plan: Plan, by: str, committed: Listed, replayer: str | None,
    late: LateCommits,
) -> tuple[RunStatus, dict[str, Any]]:  # fmt: skip
    with staging_session(context, plan, by, replayer) as session, session.edges:
        done, before = _stage_chunks(context, plan, session, committed, late)
        detail = session.edges.detail(session.lease.require_held)
    rows = sum(record.output_rows for record in done)
    detail |= {"chunks": len(done), "rows": rows}
    status = context.move(session.status, plan, "finish staging", by, **detail)
    redone = len(done) - before if before else 0
    numbers = {"chunks_done": len(done), "chunks_redone": redone, "rows": rows}
    is_resumed = before and not publish_modes.is_externally_written(plan)
    return status, numbers | ({"chunks_before": before} if is_resumed else {})


@dataclass(frozen=True)
class StagingSession:
    """A staging in progress, with its lease and the waivers in force."""

    status: RunStatus
    lease: RenewedLease
    compute: ComputePorts
    waived: tuple[decisions.Waiver, ...]
    plans: PlanJudge
    edges: EdgesWhileStaging
    #: What changed the pace, and stands in no row of the ledger yet.
    pace_changes: list[str]
    #: Ledgers of earlier runs, each read once: chunks by id, by run.
    ledgers: dict[str, dict[str, ChunkRecord]] = field(default_factory=dict)


@contextmanager
def staging_session(
    context: Context, plan: Plan, by: str, replayer: str | None = None
) -> Iterator[StagingSession]:
    """Drive the run's staging: decisions, files, pins, input and permission are checked first.

    What goes wrong inside halts the run (checks) or fails it, unless somebody took it over.
    """
    status = context.runs.status(plan.run_id)
    events = decisions.trusted_events(context, status)
    roles.require_approval(events, plan)
    signatures.require_signed_intent(context, plan, events)
    require_approved_files(context, plan)
    require_pinned_snapshots(context, plan)
    require_topics_unchanged(context, plan)
    masks.require_same_key(plan, context.secrets)
    rules.require_permission_now(context, plan, replayer or by)
    require_place(context, plan.resolved.manifest)
    # By its times on this engine, later plans are estimated; another engine is not measured.
    is_external = publish_modes.is_externally_written(plan)
    engine = {} if is_external else engine_detail(context, plan.resolved.manifest.compute)
    status = context.drive(status, plan, "begin staging", by, **engine)
    pace_changes: list[str] = []
    try:
        interruption = _Interruption(context, plan)
        with RenewedLease(context, plan, status, interruption) as lease, _loss_first(lease):
            compute = interruption.compute = context.compute()
            judge = PlanJudge(context, compute, plan, lease.epoch)
            edges = EdgesWhileStaging(context, compute.staging, plan)
            waivers = decisions.waivers_in_force(events)
            session = StagingSession(status, lease, compute, waivers, judge, edges, pace_changes)
            with (
                compute.staging.beside(plan),
                effect_log.record_attempts(context, plan.run_id, lease.epoch),
            ):
                if not is_external:
                    session.compute.staging.load(plan)
                judge_inputs(context, session.compute, plan, lease.epoch, session.waived)
                yield session
    except RunMoved as error:
        raise stop_error(context, status, error) from error
    except ChecksFailed as error:
        detail = error.stop | pace_detail(pace_changes)
        context.move(status, plan, "halt", by, problem=error.problem, **detail)
        hooks.notify_halted(context, plan)
        raise
    except BackfillError as error:
        with noting_failure(error):
            detail = pace_detail(pace_changes)
            context.move(status, plan, "fail", by, problem=error.problem, **detail)


@contextmanager
def _loss_first(lease: RenewedLease) -> Iterator[None]:
    """Raise that the run was lost instead of what an interrupted computation says of it."""
    try:
        yield
    except BackfillError:
        lease.require_held()
        raise


@dataclass
class _Interruption:
    """Ends what the engine computes for a run that was cancelled, taken over or paused with `now`.

    Any other pause lets the chunk in flight be finished.
    """

    context: Context
    plan: Plan
    #: None until the engine has started.
    compute: ComputePorts | None = None

    def __call__(self, moved: RunStatus) -> None:
        """End it: the run is `moved` now."""
        newest = newest_move(self.context, self.plan.run_id)
        if self.compute and (moved.state is not RunState.PAUSED or newest.detail.get(CUT_OFF)):
            self.compute.staging.interrupt(self.plan)


def _stage_chunks(
    context: Context, plan: Plan, session: StagingSession, listed: Listed, late: LateCommits
) -> tuple[list[ChunkRecord], int]:
    compute, lease = session.compute, session.lease
    _judge_first_plan(context, plan, session)
    open_shadow(context, plan, lease.epoch)
    committed = {item.chunk_id: item for item in listed()}
    recorded = {record.chunk_id: record for record in context.runs.chunks(plan.run_id)}
    checks = ChunkChecks(context, compute, plan, session.waived)
    beside = partial(compute.staging.beside, plan)
    schedule = ChunkSchedule(context, plan, lease, beside, late, changes=session.pace_changes)
    schedule.resume(recorded, committed)
    work = _chunk_work(context, plan, session, listed, committed, recorded)
    if any(one.is_new and not _is_taken_over(plan, one.stage) for one in work):
        _keep_intermediates(context, compute, plan)
    context.progress.start("stage", len(work), "chunks")
    done: list[ChunkRecord] = []
    rows = 0
    # Closed at once when a chunk is bad: what is in work lands before the run is halted.
    with closing(schedule.run(work)) as staged:
        for one, record in staged:
            known, chunk = recorded.get(one.stage.chunk_id), one.stage.chunk
            if record is not known and not record.carried_from:
                record = record_rejects(context, compute.staging, plan, chunk, record)
            is_judged = record is known and record.status != "failed"
            if not is_judged or not checks.is_verdict_stored(record):
                record = checks.judge(chunk, record, rows, lease.epoch)
                record = record.model_copy(update={"pace": schedule.take_changes()})
                context.runs.record_chunk(record)
                checks.require_passed(record)
            done.append(record)
            rows += record.output_rows
            was_done = not one.is_new or bool(record.carried_from)
            context.progress.advance(1, record.output_rows, was_done=was_done)
    context.progress.finish()
    checks.finish(lease.epoch)
    session.plans.finish()
    return done, sum(chunk.chunk_id in committed for chunk in plan.resolved.chunks)


def _chunk_work(
    context: Context,
    plan: Plan,
    session: StagingSession,
    listed: Listed,
    committed: Mapping[str, ChunkCommit],
    recorded: Mapping[str, ChunkRecord],
) -> list[ChunkWork]:
    """Return what brings each chunk into the shadow, or finds it there."""
    return [
        ChunkWork(
            each,
            each.chunk_id not in committed,
            StageAttempts(
                partial(_stage_chunk, context, plan, session, each),
                committed.get(each.chunk_id), recorded.get(each.chunk_id),
                partial(_find_again, listed, each.chunk_id),
            ),
        )
        for each in chunk_stages(plan)
    ]  # fmt: skip


def _keep_intermediates(context: Context, compute: ComputePorts, plan: Plan) -> None:
    """Have chunks read what their transform declares as intermediate results from one place."""
    if not compute.staging.intermediates(plan):
        return
    journal = context.journal.bind(**plan.labels)
    for one in compute.staging.keep_intermediates(write_path.with_made_target(context, plan)):
        place = f"{one.table}@{one.snapshot_id}" if one.table else None
        how = "computed for each chunk" if place is None else "found" if one.was_there else "kept"
        journal.log(
            "intermediate result",
            result=one.name,
            how=how,
            place=place,
            because=one.because or None,
        )


def _find_again(listed: Listed, chunk_id: str) -> ChunkCommit | None:
    return {item.chunk_id: item for item in listed()}.get(chunk_id)


def _judge_first_plan(context: Context, plan: Plan, session: StagingSession) -> None:
    """Judge the plan of the first chunk before the shadow is made, if it is to be computed."""
    first = chunk_stages(plan)[0]
    known = {record.chunk_id for record in context.runs.chunks(plan.run_id)}
    if first.chunk_id not in known and not _is_taken_over(plan, first):
        session.plans.judge(first.chunk)


def _stage_chunk(
    context: Context,
    plan: Plan,
    session: StagingSession,
    stage: Stage,
    commit: ChunkCommit | None,
    known: ChunkRecord | None,
) -> ChunkRecord:
    """Return the row of a chunk that is in the shadow now: `known`, if it is still right."""
    staging, epoch, chunk = session.compute.staging, session.lease.epoch, stage.chunk
    catch_up = plan.resolved.catch_up
    source = catch_up.carried_chunk(chunk.chunk_id) if catch_up else None
    if stage.kind == "carry_chunk" and source is not None:
        carried = carry_chunk(context, plan, chunk, source, known, epoch)
        return (
            carried if carried is known else with_earlier_rejects(context, session.ledgers, carried)
        )
    if _is_reused(plan, chunk):
        return carry_chunk(context, plan, chunk, _live_chunk(plan, chunk), known, epoch)
    journal = context.journal.bind(**plan.labels)
    if commit is None:
        left = {one.partition for one in plan.reused_of(chunk.partitions)}
        computed = tuple(label for label in chunk.partitions if label not in left)
        chunk = chunk.model_copy(update={"partitions": computed})
        scope = plan.resolved.scope.model_copy(update={"partitions": chunk.partitions})
        window = input_window(plan, scope)
        source_range = window and f"{window[0].isoformat()}..{window[1].isoformat()}"
        with journal.span("stage chunk", chunk_id=chunk.chunk_id, source_range=source_range):
            session.plans.judge(chunk)
            if plan.resolved.manifest.stateful is not None:
                plan = write_path.with_made_target(context, plan)
            session.edges.begin()
            return _with_reused(plan, stage.chunk, staging.stage(plan, chunk, epoch))
    if known is not None and known.snapshot_id == commit.snapshot_id:
        return known
    # The chunk landed, its ledger row did not: a crash in between.
    journal.log("chunk found in the shadow", chunk_id=chunk.chunk_id)
    return staging.remeasure(plan, chunk, commit.snapshot_id, epoch)


def _is_taken_over(plan: Plan, stage: Stage) -> bool:
    """Return whether a chunk is not computed: an earlier run did that."""
    return stage.kind == "carry_chunk" or _is_reused(plan, stage.chunk)


def _is_reused(plan: Plan, chunk: Chunk) -> bool:
    """Return whether no partition of a chunk is computed: the live rows of all are kept."""
    return len(plan.reused_of(chunk.partitions)) == len(chunk.partitions)


def _live_chunk(plan: Plan, chunk: Chunk) -> CarriedChunk:
    """Return where the rows of a chunk are that is not computed: in the base of the run."""
    target, reused = plan.resolved.target, plan.reused_of(chunk.partitions)
    if target.snapshot_id is None:
        raise ValueError(f"{target.table} has no rows to keep")
    return CarriedChunk(
        chunk_id=chunk.chunk_id,
        run_id=", ".join(dict.fromkeys(one.run_id for one in reused)),
        shadow_table=target.table,
        shadow_snapshot_id=target.snapshot_id,
        rows=sum(one.rows for one in reused),
        checksum=_sum_checksums(one.checksum for one in reused),
        inputs={pin.name: pin.snapshot_id for pin in plan.resolved.sources},
    )


def _with_reused(plan: Plan, chunk: Chunk, record: ChunkRecord) -> ChunkRecord:
    """Return the row of a chunk of which a part was computed, with the rows that are kept."""
    reused = plan.reused_of(chunk.partitions)
    if not reused:
        return record
    texts = (record.checksum, *(one.checksum for one in reused))
    update = {
        "partitions": chunk.partitions,
        "output_rows": record.output_rows + sum(one.rows for one in reused),
        "checksum": _sum_checksums(texts),
    }
    return record.model_copy(update=update)


def _sum_checksums(texts: Iterable[str]) -> str:
    """Add checksums up; those of no rows have no shape to compare."""
    found = [Checksum.parse(text) for text in texts]
    filled = [one for one in found if one.rows] or found[:1]
    return reduce(Checksum.__add__, filled).text


def open_shadow(context: Context, plan: Plan, epoch: int) -> None:
    """Make the target and its shadow if they are not there, and shut earlier writers out."""
    target = plan.resolved.target
    if has_stage(plan, "create_target"):
        context.tables.create(plan.resolved.contract)
    properties = {
        "lakehouse-backfill.run-id": plan.run_id,
        "lakehouse-backfill.manifest-hash": plan.manifest_hash,
    }
    contract = plan.resolved.contract
    if contract.restricted_columns:
        properties |= masks.metrics_properties(contract, context.tables.describe(target.table))
    location = plan.resolved.manifest.compute.staging_location
    if location == "under_target" and parse_branch_shadow(plan.shadow_table) is None:
        info = context.tables.describe(target.table)
        if info is not None:
            properties[write_path.DATA_PATH_PROPERTY] = write_path.staging_folder(info, plan.run_id)
    context.shadows.open(target.table, target.snapshot_id, plan.shadow_table, properties)
    # Before its chunks are listed: what an overtaken driver commits later would not be seen.
    context.shadows.fence(plan.shadow_table, epoch)
    if (change := declared_schema_change(plan)) and target.schema_id is not None:
        context.shadows.evolve(plan.shadow_table, target.schema_id, change)
