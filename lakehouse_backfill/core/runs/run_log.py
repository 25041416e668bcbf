"""What an event does to the status of its run, and what is said to the loser of a race."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event, Lease, RunStatus
from lakehouse_backfill.domain.value import canonical_json, digest
from lakehouse_backfill.errors import NotFound, RunMoved


def is_open_run(status: RunStatus) -> bool:
    """Tell whether the run still wants something from somebody."""
    return status.state in lifecycle.OPEN_STATES


def require_first_event(plan: Plan, event: Event) -> None:
    """Raise ValueError unless `event` is the first one of the plan's run."""
    if (event.run_id, event.seq) != (plan.run_id, 1):
        raise ValueError(f"event {event.seq} of {event.run_id} does not begin {plan.run_id}")


def apply_first_event(plan: Plan, event: Event) -> tuple[Event, RunStatus]:
    """Give the sealed first event of a run, and its status."""
    sealed = _seal_event(event, previous="", product=plan.product, driver=None, epoch=0)
    return sealed, RunStatus(
        run_id=plan.run_id, product=plan.product, state=event.to_state, seq=event.seq, at=event.at,
        head=sealed.hash,
    )  # fmt: skip


def apply_event(current: RunStatus, event: Event, lease: Lease | None) -> tuple[Event, RunStatus]:
    """Give `event` sealed onto the run's log, and the status once it is written.

    The holder of `lease` becomes the driver. Without one, a move ends the driver's lease (also a
    move to the same state), and a note leaves it as it is.
    """
    is_note = event.from_state == event.to_state and event.verb not in lifecycle.MOVES
    driver, until = (lease.holder, lease.until) if lease else (None, None)
    if lease is None and is_note:
        driver, until = current.driver, current.lease_until
    epoch = event.seq if lease else current.epoch
    sealed = _seal_event(
        event, previous=current.head, product=current.product, driver=driver, epoch=epoch
    )
    return sealed, RunStatus(
        run_id=current.run_id,
        product=current.product,
        state=event.to_state,
        seq=event.seq,
        at=event.at,
        driver=driver,
        epoch=epoch,
        lease_until=until,
        head=sealed.hash,
    )


def _seal_event(event: Event, **written: Any) -> Event:
    # As it will be read again: numbers, texts, lists and objects are all that JSON knows.
    detail = json.loads(canonical_json(event.detail))
    bare = event.model_copy(update={**written, "detail": detail, "hash": ""})
    return bare.model_copy(update={"hash": event_seal(bare)})


#: A value that no event may have (somebody edited the row) is hashed as it is.
_SEALED: dict[str, Any] = {"exclude": {"hash"}, "exclude_defaults": True, "warnings": False}


def event_seal(event: Event) -> str:
    """SHA-256 over everything that the event says, the hash of the one before it included.

    Fields at their defaults are left out, so that a field that a later release adds changes no
    hash of an event that is without it.
    """
    in_utc = event.model_copy(update={"at": event.at.astimezone(timezone.utc)})
    return digest(in_utc.model_dump(mode="json", **_SEALED))


def chain_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Give a run's events, the first ones with the hashes that they would have.

    Older releases wrote no hashes. The first event that has one continues the chain that is worked
    out here: from then on the older events are covered too, as they were at that time.
    """
    found: list[Event] = []
    is_older = True
    for event in events:
        is_older = is_older and not event.hash
        previous = found[-1].hash if found else ""
        found.append(_seal_event(event, previous=previous) if is_older else event)
    return tuple(found)


def extend_lease(current: RunStatus, epoch: int, until: datetime) -> RunStatus:
    """Give the status with a longer lease; raises RunMoved when the run has no such lease."""
    if current.driver is None or current.epoch != epoch or not is_open_run(current):
        raise overtaken_error(current.run_id, epoch, current.epoch)
    return current.model_copy(update={"lease_until": until})


def require_current_epoch(run_id: str, epoch: int, fence: int) -> None:
    """Raise RunMoved when what carries `epoch` comes after the run was fenced by a later one."""
    if epoch < fence:
        raise overtaken_error(run_id, epoch, fence)


def overtaken_error(run_id: str, epoch: int, fence: int) -> RunMoved:
    """Make the error for a process that was overtaken."""
    return RunMoved(
        f"{run_id} was taken over by another process, or moved on without this one (lease "
        f"{epoch}, now {fence})",
        state="this process changed nothing since; what it staged before is kept",
        fix=f"lakehouse-backfill status {run_id}",
    )


def chunk_sort_key(chunk_id: str) -> tuple[tuple[int, str], ...]:
    """Sort key of chunk ids: digits in them count as numbers, so that 10 comes after 9."""
    return tuple(
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", chunk_id)
    )


def run_moved_error(event: Event, current: RunStatus, winner: Event | None) -> RunMoved:
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


def run_exists_error(current: RunStatus) -> RunMoved:
    """Make the error for a run id that is taken."""
    return RunMoved(
        f"{current.run_id} is registered already, for {current.product}, "
        f"and is {current.state.value}",
        fix=f"lakehouse-backfill status {current.run_id}",
    )


def unknown_run_error(run_id: str) -> NotFound:
    """Make the error for a run that nobody registered."""
    return NotFound(f"there is no run {run_id}", fix="lakehouse-backfill status")
