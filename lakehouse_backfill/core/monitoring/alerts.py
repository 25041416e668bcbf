"""Alerts: what somebody has to look at, once for each run and cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.runs import notes
from lakehouse_backfill.core.runs.context import Context
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
    found += [
        Alert(one.kind.replace(" ", "_"), one.run_id, one.product, now, one.text, one.next_command)
        for one in notes.needs_attention(context)
    ]
    return tuple({(alert.run_id, alert.cause): alert for alert in found}.values())


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
    rejected = sum(chunk.rejected_rows or 0 for chunk in chunks)
    if read and rejected / read > limit:
        yield Alert(
            "rejected_rows", status.run_id, status.product, status.at,
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
