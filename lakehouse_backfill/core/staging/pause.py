"""pause, unpause: stop the staging of a run from any process, and let it go on.

Also what `run` will do then: which chunks it keeps, records, judges, carries over or computes.

A pause is one conditional move of the run's log, so it also holds for a driver that is dead or that
hangs. The run's driver sees it between two chunks and, while one is computed, within seconds. The
chunk in flight is written to its end and found in the shadow by the next `run`; with `now` its
computation is cut off, and it is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.planning import stages
from lakehouse_backfill.core.planning.stages import Stage, chunk_stages
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.checks import stored_verdicts
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, Event, RunState, RunStatus
from lakehouse_backfill.domain.tables.commits import ChunkCommit
from lakehouse_backfill.errors import BackfillError, RunMoved, RunPaused, Unsupported

#: In the detail of a pause: the chunk in flight is cut off.
CUT_OFF = "cut_off"
_PAUSED_STATE = "chunks that are done stay in the shadow; readers see what they saw before"
#: How often a command is decided again when the run's driver moves it in between.
_ATTEMPTS = 5
_LOOKS, _LOOK_PAUSE_S = 10, 0.2


def pause(context: Context, run_id: str, by: str, reason: str, *, now: bool = False) -> RunStatus:
    """Pause a run before or while it is staged, whichever process drives it; a repeat does nothing.

    No chunk starts after that. With `now`, the one in flight is cut off, else it is finished.
    Raises NotAllowed (who may cancel may pause), IllegalMove, Unsupported (another engine writes
    the shadow), RunMoved.
    """
    plan = context.runs.plan(run_id)
    _require_permission(context, plan, by)
    detail: dict[str, Any] = {"reason": reason, **({CUT_OFF: True} if now else {})}
    for attempt in range(1, _ATTEMPTS + 1):
        status = context.runs.status(run_id)
        if status.state is RunState.PAUSED:
            return status
        lifecycle.require_legal_move(status, "pause")
        try:
            return context.move(status, plan, "pause", by, **detail)
        except RunMoved:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def unpause(context: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Let a paused run go on: it is approved, as before; `run` computes what is left.

    Raises NotAllowed, IllegalMove, Unsupported, RunMoved.
    """
    plan = context.runs.plan(run_id)
    _require_permission(context, plan, by)
    status = context.runs.status(run_id)
    lifecycle.require_legal_move(status, "unpause")
    return context.move(status, plan, "unpause", by, reason=reason)


def require_not_paused(context: Context, status: RunStatus) -> None:
    """Raise RunPaused, with who paused the run and why, while it is paused."""
    if status.state is RunState.PAUSED:
        raise _paused_error(status, newest_move(context, status.run_id))


def stop_error(context: Context, begun: RunStatus, error: BackfillError) -> BackfillError:
    """Return what ended a driver: the pause or cancellation of its run, else `error` itself.

    `begun` is the status with which it began. A move is fenced first and logged then: the log is
    waited for, for a moment.
    """
    run_id, status = begun.run_id, context.runs.status(begun.run_id)
    for _ in range(_LOOKS):
        if status.seq != begun.seq:
            break
        context.clock.sleep(_LOOK_PAUSE_S)
        status = context.runs.status(run_id)
    if status.state is RunState.PAUSED:
        return _paused_error(status, newest_move(context, run_id))
    if status.state is RunState.CANCELLED:
        event = newest_move(context, run_id)
        reason = f": {event.detail['reason']}" if event.detail.get("reason") else ""
        return RunMoved(
            f"{event.actor} cancelled {run_id}{reason}",
            state="no further chunk was started; readers see what they saw before",
            fix=command_line("status", run_id),
        )
    return error


def _require_permission(context: Context, plan: Plan, by: str) -> None:
    if publish_modes.is_externally_written(plan):
        raise Unsupported(
            f"another engine writes the shadow of {plan.run_id}: only that engine can stop it",
            state="the run is as it was",
            fix=f"{command_line('shadow', 'close', plan.run_id)}, or "
            f"{command_line('cancel', plan.run_id)}",
        )
    environment = context.profile.environment
    roles.require_plan_environment(plan, environment)
    if by != plan.created_by:
        requester = plan.resolved.manifest.run.requested_by
        holders = ("approve", "publish")
        roles.require_any_role(plan.resolved.contract, holders, requester, by, environment)


def newest_move(context: Context, run_id: str) -> Event:
    """Return the event that brought a run into its state; notes may have been added since."""
    moves = [one for one in context.runs.events(run_id) if one.from_state != one.to_state]
    return moves[-1]


def _paused_error(status: RunStatus, event: Event) -> RunPaused:
    reason = f": {event.detail['reason']}" if event.detail.get("reason") else ""
    return RunPaused(
        f"{event.actor} paused {status.run_id} on {event.at:%Y-%m-%d at %H:%M:%S}Z{reason}",
        state=_PAUSED_STATE,
        fix=f"{command_line('unpause', status.run_id)}; then "
        f"{command_line('run', status.run_id)} goes on",
    )


ChunkAct = Literal["keep", "compute", "record", "judge", "carry_over", "leave"]


@dataclass(frozen=True)
class ChunkPreview:
    """What `run` will do with one chunk, and what shows that."""

    chunk_id: str
    partitions: tuple[str, ...]
    act: ChunkAct
    because: str


def chunk_preview(
    stage: Stage,
    commit: ChunkCommit | None,
    record: ChunkRecord | None,
    *,
    is_live: bool = False,
    is_judged: bool = True,
) -> ChunkPreview:
    """Decide what staging does with a chunk, by the shadow's log and the ledger.

    A chunk that one of the two does not know is in doubt; the shadow's log decides. `is_live`: the
    rows that readers see are kept for all of its partitions. `is_judged`: the verdict on what the
    ledger holds is stored.
    """
    act: ChunkAct = "compute"
    is_carried = is_live or stage.kind == "carry_chunk"
    if commit is None:
        because = "it is neither in the shadow nor in the ledger"
        if is_carried:
            act = "carry_over"
            because = "readers see its rows already" if is_live else "an earlier run computed it"
        elif record is not None:
            because = "in doubt: it is in the ledger, and the shadow does not hold it"
    elif record is None or record.snapshot_id != commit.snapshot_id:
        act = "record"
        because = (
            f"in doubt: the shadow holds it as snapshot {commit.snapshot_id}, and the ledger does "
            "not; it is measured, not computed"
        )
    elif record.status == "failed":
        act, because = "judge", "it is in the shadow, and failed its checks"
    elif not is_judged:
        act, because = "judge", "it is in the shadow, and the verdict on it was not stored"
    elif is_carried:
        act, because = "keep", f"it was carried over as snapshot {commit.snapshot_id}"
    else:
        act, because = "keep", f"it is done: {record.output_rows:,} rows"
    return ChunkPreview(stage.chunk_id, stage.partitions, act, because)


def preview_run(context: Context, run_id: str) -> tuple[RunStatus, tuple[ChunkPreview, ...], str]:
    """Return the run's status, what `run` does with each chunk, and the stage that follows.

    Reads the shadow's log, the ledger and the stored verdicts, and changes nothing. Once staging is
    over `run` brings no chunk into the shadow, also where some are gone.
    """
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    is_there = context.tables.describe(plan.shadow_table) is not None
    commits = context.shadows.chunks(plan.shadow_table) if is_there else ()
    committed = {commit.chunk_id: commit for commit in commits}
    recorded = {record.chunk_id: record for record in context.runs.chunks(run_id)}
    verdicts = {one["chunk_id"]: one.get("checksum") for one in stored_verdicts(context, run_id)}
    found: list[ChunkPreview] = []
    for each in chunk_stages(plan):
        record = recorded.get(each.chunk_id)
        is_judged = record is not None and verdicts.get(each.chunk_id) == record.checksum
        is_live = len(plan.reused_of(each.partitions)) == len(each.partitions)
        found.append(
            chunk_preview(
                each, committed.get(each.chunk_id), record, is_live=is_live, is_judged=is_judged
            )
        )
    if because := _why_nothing_is_staged(plan, status):
        found = [
            one if one.act == "keep" else replace(one, act="leave", because=because)
            for one in found
        ]
    return status, tuple(found), _what_follows(context, plan, status)


def _why_nothing_is_staged(plan: Plan, status: RunStatus) -> str:
    if publish_modes.is_externally_written(plan):
        return "another engine writes it"
    if stages.next_phase(plan, status.state) in ("approval", "staging"):
        return ""
    return f"the run is {status.state.value.replace('_', ' ')}: `run` stages none of its chunks"


def _what_follows(context: Context, plan: Plan, status: RunStatus) -> str:
    if status.state is RunState.PAUSED:
        return "nothing before `unpause`: the run is paused"
    if context.is_driven_elsewhere(status):
        return f"nothing while {status.driver} works on the run; these chunks are what is left now"
    phase = stages.next_phase(plan, status.state)
    if phase == "staging" and publish_modes.is_externally_written(plan):
        return "nothing: another engine writes the shadow, then `shadow close` goes on"
    texts = {
        "approval": "nothing before a person approves the run",
        "staging": "stages these chunks, then validates the result",
        "validation": "validates the result; the chunks are staged",
        "publication": "publishes, unless that waits for a person; the result is validated",
    }
    return texts.get(phase or "", "nothing: no step follows by itself")
