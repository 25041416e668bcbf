"""Notes of people on runs; what needs their attention: forgotten runs, ending pins (O5).

A note says what was learned from a run. It is an event of the run's log, so it is kept and sealed
like the others, and the next plan of the product shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.roles import reason_fault
from lakehouse_backfill.domain.retention import PinLease
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.errors import ConfigError

S = RunState
NOTE: Literal["note"] = "note"
#: States of a run that is over: what was learned from it can be said.
OVER_STATES = frozenset({S.PUBLISHED, S.REJECTED, S.CANCELLED, S.ROLLED_BACK})
#: How many closed runs of a product the next plan looks at, and how many notes it shows.
_RUNS_LOOKED_AT, _NOTES_SHOWN = 8, 3
#: Pins that end within so many days are named.
ENDING_WITHIN_DAYS = 7


@dataclass(frozen=True)
class RunNote:
    """What a person wrote on a run."""

    text: str
    by: str
    at: datetime


@dataclass(frozen=True)
class Attention:
    """Something that a person should look at, with the command that does."""

    kind: Literal["forgotten run", "ending pins"]
    run_id: str
    product: str
    text: str
    next_command: str


def require_note(text: str) -> str:
    """Return the text of a note; raise ConfigError when it is too long, or no line of text."""
    if fault := reason_fault(text):
        raise ConfigError(f"the note {fault}", fix="write a sentence, in quotes")
    return text


def add_note(context: Context, run_id: str, by: str, text: str) -> RunStatus:
    """Add a note to a run's log; the same text of the same person again changes nothing.

    Raises ConfigError, NotFound, IllegalMove (a draft has no log), RunMoved.
    """
    if not require_note(text).strip():
        raise ConfigError("the note is empty", fix="write a sentence, in quotes")
    if any((one.text, one.by) == (text, by) for one in run_notes(context.runs.events(run_id))):
        return context.runs.status(run_id)
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    # An event between two of a driver's would stop that driver.
    context.require_no_other_driver(status)
    return context.move(status, plan, NOTE, by, text=text)


def run_notes(events: Iterable[Event]) -> tuple[RunNote, ...]:
    """Return the notes in a run's log, oldest first."""
    return tuple(
        RunNote(str(event.detail.get("text", "")), event.actor, event.at)
        for event in events
        if event.verb == NOTE
    )


def note_command(status: RunStatus, events: Iterable[Event]) -> str | None:
    """Return the command for the note that a run lacks; None while it is open, or has one."""
    if status.state not in OVER_STATES or run_notes(events):
        return None
    return command_line("note", status.run_id, "TEXT")


def notes_for_next_plan(context: Context, product: str) -> tuple[str, ...]:
    """Return the newest notes on the product's closed runs, as sentences for its next plan."""
    closed = [one for one in context.runs.list(open_only=False) if _is_over(one, product)]
    newest = sorted(closed, key=lambda one: one.at, reverse=True)[:_RUNS_LOOKED_AT]
    found = [
        f"note on {status.run_id} ({status.state.value.replace('_', ' ')}), by {note.by} on "
        f"{note.at:%Y-%m-%d}: {note.text}"
        for status in newest
        for note in reversed(run_notes(context.runs.events(status.run_id)))
    ]
    return tuple(found[:_NOTES_SHOWN])


def _is_over(status: RunStatus, product: str) -> bool:
    return status.product == product and status.state in OVER_STATES | {S.SUPERSEDED}


def needs_attention(context: Context) -> tuple[Attention, ...]:
    """Return the runs that nobody moved for long, and the pins that end soon."""
    now = context.clock.now()
    days = context.profile.forgotten_after_days
    return (
        *forgotten_runs(context.runs.list(open_only=True), now, days),
        *ending_pins(context.evidence.active_leases(), now),
    )


def forgotten_runs(runs: Iterable[RunStatus], now: datetime, days: int) -> tuple[Attention, ...]:
    """Return the open runs without an event for at least so many days, the longest first."""
    limit = now - timedelta(days=days)
    idle = [one for one in runs if one.state in lifecycle.OPEN_STATES and one.at <= limit]
    return tuple(
        Attention(
            "forgotten run", one.run_id, one.product,
            f"{one.state.value.replace('_', ' ')} without an event for {(now - one.at).days} days",
            command_line("status", one.run_id),
        )
        for one in sorted(idle, key=lambda one: one.at)
    )  # fmt: skip


def ending_pins(leases: Iterable[PinLease], now: datetime) -> tuple[Attention, ...]:
    """Return, by run, the pins that end soon, or have ended and were not removed yet."""
    by_run: dict[str, list[PinLease]] = {}
    for lease in leases:
        if lease.until <= now + timedelta(days=ENDING_WITHIN_DAYS):
            by_run.setdefault(lease.run_id, []).append(lease)
    found = []
    for run_id, some in sorted(by_run.items(), key=lambda each: min(one.until for one in each[1])):
        until = min(one.until for one in some)
        day = f"since {until:%Y-%m-%d}" if until <= now else f"from {until:%Y-%m-%d} on"
        tables = ", ".join(dict.fromkeys(one.table for one in some))
        text = f"its pins ({tables}) may be removed {day}, once the run is closed"
        command = command_line("maintain", "--dry-run")
        found.append(Attention("ending pins", run_id, some[0].product, text, command))
    return tuple(found)
