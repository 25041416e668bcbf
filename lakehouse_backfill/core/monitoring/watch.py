"""Follows a run from another process: the same progress that its own process shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.run import RunState, RunStatus

S = RunState
#: States from which a process goes on without a person.
MOVING = frozenset({S.APPROVED, S.STAGING, S.STAGED, S.PUBLISHING})
#: A staged run that no process has is left after so long: `stage` alone ends there.
IDLE = timedelta(seconds=20)


@dataclass
class _Shown:
    """What was shown of a run so far."""

    chunks: set[str] = field(default_factory=set)
    state: RunState | None = None
    is_started: bool = False


def watch(context: Context, run_id: str, every_s: float) -> RunStatus:
    """Show a run's moves and chunks until it waits for a person or is over; return its status.

    The ledger is read every `every_s` seconds; nothing is written. Raises NotFound.
    """
    status, plan, shown = context.runs.status(run_id), context.runs.plan(run_id), _Shown()
    total = len(plan.resolved.chunks)
    while True:
        _show(context, status, total, shown)
        if is_at_rest(status, context.clock.now()):
            break
        context.clock.sleep(every_s)
        status = context.runs.status(run_id)
    if shown.is_started:
        context.progress.finish()
    return status


def is_at_rest(status: RunStatus, now: datetime) -> bool:
    """Return whether no process is expected to move the run any more."""
    if status.state is S.STAGED:
        return status.driver is None and now - status.at >= IDLE
    return status.state not in MOVING


def _show(context: Context, status: RunStatus, total: int, shown: _Shown) -> None:
    progress = context.progress
    if status.state is not shown.state:
        progress.say(f"{status.run_id} is {status.state.value.replace('_', ' ')}")
    shown.state = status.state
    done = [one for one in context.runs.chunks(status.run_id) if one.status == "done"]
    new = [chunk for chunk in done if chunk.chunk_id not in shown.chunks]
    if not new:
        return
    if not shown.is_started:
        progress.start("stage", total, "chunks")
        shown.is_started = True
    progress.advance(len(new), sum(chunk.output_rows for chunk in new))
    shown.chunks.update(chunk.chunk_id for chunk in new)
