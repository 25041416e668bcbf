"""What an event does to the status of its run, and what is said to the loser of a race."""

from __future__ import annotations

import re

from lakehouse_backfill.errors import NotFound, RunMoved
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import Event, RunStatus
from lakehouse_backfill.rules import lifecycle


def is_open(status: RunStatus) -> bool:
    """Tell whether the run still wants something from somebody."""
    return status.state in lifecycle.OPEN


def require_first(plan: Plan, event: Event) -> None:
    """Raise ValueError unless `event` is the first one of the plan's run."""
    if (event.run_id, event.seq) != (plan.run_id, 1):
        raise ValueError(f"event {event.seq} of {event.run_id} does not begin {plan.run_id}")


def first(plan: Plan, event: Event) -> RunStatus:
    """Give the status of a run that was just registered."""
    return RunStatus(
        run_id=plan.run_id, product=plan.product, state=event.to_state, seq=event.seq, at=event.at
    )


def after(current: RunStatus, event: Event, driver: str | None) -> RunStatus:
    """Give the status once `event` is written.

    The run's driver becomes `driver`; a note (equal states) without one leaves it as it is.
    """
    is_note = event.from_state == event.to_state
    return RunStatus(
        run_id=current.run_id,
        product=current.product,
        state=event.to_state,
        seq=event.seq,
        at=event.at,
        driver=current.driver if is_note and driver is None else driver,
    )


def chunk_order(chunk_id: str) -> tuple[tuple[int, str], ...]:
    """Sort key of chunk ids: digits in them count as numbers, so that 10 comes after 9."""
    return tuple(
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", chunk_id)
    )


def moved(event: Event, current: RunStatus, winner: Event | None) -> RunMoved:
    """Make the error for an event that came too late, or too early; it names the winner."""
    if winner is None:
        problem = f"{event.run_id} is at event {current.seq}: {event.seq} cannot follow it"
    else:
        problem = (
            f"{winner.actor} was faster: {event.run_id} is {current.state.value} "
            f"since '{winner.verb}' (event {winner.seq}); '{event.verb}' was not done"
        )
    return RunMoved(
        problem,
        state=f"{event.run_id} is {current.state.value}; this command changed nothing",
        fix=f"lakehouse-backfill status {event.run_id}",
    )


def registered(current: RunStatus) -> RunMoved:
    """Make the error for a run id that is taken."""
    return RunMoved(
        f"{current.run_id} is registered already, for {current.product}, "
        f"and is {current.state.value}",
        fix=f"lakehouse-backfill status {current.run_id}",
    )


def unknown(run_id: str) -> NotFound:
    """Make the error for a run that nobody registered."""
    return NotFound(f"there is no run {run_id}", fix="lakehouse-backfill status")
