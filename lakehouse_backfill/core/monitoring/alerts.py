"""Alerts: what somebody has to look at, once for each run and cause.

Follows a run from another process: the same progress that its own process shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.runs import notes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.outside import HookCall
from lakehouse_backfill.domain.monitoring.metrics import AlertLimits
from lakehouse_backfill.domain.run import ChunkRecord, RunState, RunStatus
from lakehouse_backfill.errors import BackfillError

S = RunState
#: States in which a run was stopped, and does not go on by itself.
STOPPED = frozenset({S.FAILED, S.HALTED, S.REJECTED, S.PUBLISH_HALTED})
#: States in which the next act is a person's.
WAITING = frozenset({S.PLANNED, S.VALIDATED, S.ACCEPTED})
#: States in which a process should be at work.
WORKING = frozenset({S.STAGING, S.PUBLISHING})


@dataclass(frozen=True)
class Alert:
    """One cause at one run: since when, why, and the command that goes on. Grouped by both."""

    cause: str
    run_id: str
    product: str
    since: datetime
    text: str
    next_command: str


def find_alerts(context: Context, statuses: tuple[RunStatus, ...]) -> tuple[Alert, ...]:
    """Return the alerts of all runs as of now, one for each run and cause."""
    limits, now = context.profile.monitoring.alerts, context.clock.now()
    found = [alert for status in statuses for alert in state_alerts(status, limits, now)]
    if limits.rejected_share is not None:
        for status in statuses:
            if status.state not in (S.CANCELLED, S.SUPERSEDED, S.ROLLED_BACK, S.PUBLISHED):
                chunks = context.runs.chunks(status.run_id)
                found += rejected_alerts(status, chunks, limits.rejected_share)
    if limits.freshness_hours is not None:
        found += freshness_alerts(context, statuses, limits.freshness_hours, now)
    moved = {status.run_id: status.at for status in statuses}
    for one in notes.needs_attention(context):
        cause, since = one.kind.replace(" ", "_"), moved.get(one.run_id, now)
        found.append(Alert(cause, one.run_id, one.product, since, one.text, one.next_command))
    return tuple({(alert.run_id, alert.cause): alert for alert in found}.values())


@dataclass(frozen=True)
class SentAlert:
    """An alert, and how the hooks of its product ended that were called for it now."""

    alert: Alert
    calls: tuple[HookCall, ...]


def send_alerts(context: Context) -> tuple[SentAlert, ...]:
    """Call the `on_alert` hooks for each alert that they did not get yet; return all alerts.

    One call for each run, cause and hook, until the cause begins anew. Each outcome is evidence of
    the run; a hook that failed is called again by the next call. Where the profile switches hooks
    off, none is called.
    """
    alerts = find_alerts(context, context.runs.list(open_only=False))
    return tuple(SentAlert(alert, _send(context, alert)) for alert in alerts)


def _send(context: Context, alert: Alert) -> tuple[HookCall, ...]:
    if not context.profile.is_on("hooks", alert.product):
        return ()
    try:
        plan, status = context.runs.plan(alert.run_id), context.runs.status(alert.run_id)
    except BackfillError:
        return ()  # Nothing is known of its hooks; the alert itself is returned.
    calls = []
    act = f"{alert.run_id}-{alert.cause}-{alert.since.isoformat()}"
    for hook in plan.resolved.contract.hooks:
        kind = f"alert {alert.cause} {hook.name}"
        known = context.evidence.newest(alert.run_id, kind) if hook.on == "on_alert" else None
        is_sent = known is not None and known[1]["act"] == act and known[1]["is_ok"]
        if hook.on != "on_alert" or is_sent:
            continue
        message = {
            "product": alert.product, "run_id": alert.run_id, "on": hook.on, "cause": alert.cause,
            "since": alert.since.isoformat(), "problem": alert.text,
            "next_command": alert.next_command, "idempotency_key": f"{act}-{hook.name}",
        }  # fmt: skip
        call = context.hooks.call(hook, message)
        document = {"act": act, **call.model_dump(mode="json")}
        context.evidence.record(alert.run_id, kind, document, status.epoch)
        calls.append(call)
    return tuple(calls)


def state_alerts(status: RunStatus, limits: AlertLimits, now: datetime) -> Iterator[Alert]:
    """Yield the alerts that follow from a run's state and lease alone."""
    command = command_line("status", status.run_id)

    def alert(cause: str, text: str) -> Alert:
        return Alert(cause, status.run_id, status.product, status.at, text, command)

    shown = status.state.value.replace("_", " ")
    if status.state in STOPPED:
        yield alert("stopped", f"it is {shown} since {status.at:%Y-%m-%d %H:%M}Z")
    waited = (now - status.at) / timedelta(hours=1)
    longest = limits.waiting_hours
    if status.state in WAITING and longest is not None and waited >= longest:
        yield alert("waiting", f"it is {shown} and waits for a person for {waited:.0f} hours")
    until = status.lease_until
    if status.state in WORKING and until is not None and limits.unattended_minutes is not None:
        idle = (now - until) / timedelta(minutes=1)
        if idle >= limits.unattended_minutes:
            yield alert(
                "unattended",
                f"it is {shown}, and its process gave no sign of life for {idle:.0f} minutes "
                "beyond its lease",
            )


def rejected_alerts(
    status: RunStatus, chunks: tuple[ChunkRecord, ...], limit: float
) -> Iterator[Alert]:
    """Yield an alert when a run rejected more than that share of the rows that it read."""
    read = sum(chunk.input_rows for chunk in chunks)
    bad = [chunk for chunk in chunks if chunk.rejected_rows]
    rejected = sum(chunk.rejected_rows or 0 for chunk in bad)
    if read and rejected / read > limit:
        since = min(chunk.finished_at for chunk in bad)
        yield Alert(
            "rejected_rows", status.run_id, status.product, since,
            f"{rejected:,} of {read:,} rows were rejected, more than {limit:.1%}",
            command_line("status", status.run_id),
        )  # fmt: skip


def freshness_alerts(
    context: Context, statuses: tuple[RunStatus, ...], limit_hours: float, now: datetime
) -> Iterator[Alert]:
    """Yield an alert for each product, at its newest run, whose rows changed too long ago."""
    newest = {one.product: one for one in sorted(statuses, key=lambda status: status.at)}
    for product, status in sorted(newest.items()):
        changed = freshness_of(context, product)
        if changed is None or (now - changed) / timedelta(hours=1) < limit_hours:
            continue
        text = f"what readers see was last changed at {changed:%Y-%m-%d %H:%M}Z"
        yield Alert(
            "not_fresh", status.run_id, product, changed, text, command_line("stale", product)
        )


def freshness_of(context: Context, product: str) -> datetime | None:
    """Return when what readers see was last changed; None when nothing says so.

    A pinned product changes by its publications only, any other with each commit to its table.
    """
    try:
        contract = context.contract(product)
        if contract.publication == "pinned":
            accepted = context.versions.pointer(product).accepted
            return accepted.at if accepted else None
        return context.tables.committed_at(contract.table)
    except BackfillError:
        return None  # Another product's contract or table must not hide all metrics.


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

    A run whose process is gone waits for a person, too.
    The ledger is read every `every_s` seconds; nothing is written. Raises NotFound.
    """
    status, plan, shown = context.runs.status(run_id), context.runs.plan(run_id), _Shown()
    total = len(plan.resolved.chunks)
    while True:
        _show(context, status, total, shown)
        if is_at_rest(status, context.clock.now()) or _is_abandoned(context, status):
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


def _is_abandoned(context: Context, status: RunStatus) -> bool:
    """Return whether the process that worked on the run is gone, or its lease has ended."""
    if status.state not in WORKING or status.driver in (None, context.driver):
        return False
    return not context.is_driven_elsewhere(status)


def _show(context: Context, status: RunStatus, total: int, shown: _Shown) -> None:
    progress = context.progress
    if status.state is not shown.state:
        progress.say(f"{status.run_id} is {status.state.value.replace('_', ' ')}")
    shown.state = status.state
    done = [one for one in context.runs.chunks(status.run_id) if one.status == "done"]
    new = [chunk for chunk in done if chunk.chunk_id not in shown.chunks]
    if not new:
        return
    # How long those took that were done before the first look is not known.
    was_done = not shown.is_started
    if was_done:
        progress.start("stage", total, "chunks")
        shown.is_started = True
    progress.advance(len(new), sum(chunk.output_rows for chunk in new), was_done=was_done)
    shown.chunks.update(chunk.chunk_id for chunk in new)
