"""The moves of the pointer around a swap: reserve a version, finalise it, or give it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.pointer import (
    baseline_publication,
    finished_elsewhere_error,
    require_no_pending,
    require_pinned_base,
    resume_reservation,
)
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.plan import TargetPin
from lakehouse_backfill.domain.publication import CommitResult, Pointer, Publication
from lakehouse_backfill.errors import (
    BackfillError,
    Blocked,
    Conflict,
    NotFound,
    OutcomeUnknown,
    TooBusy,
    Unsupported,
)

#: Errors after which it is certain that nothing was swapped: the reserved version is given back.
REFUSALS = (Blocked, Conflict, NotFound, Unsupported)
#: How often, and after which pauses, another publication of the product is asked for its end.
_MAX_ATTEMPTS, _PAUSE_S, _LONGEST_PAUSE_S = 60, 0.05, 0.5

PointerDecision = Callable[[Pointer], tuple[Publication, ...]]


def reserve_version(
    context: Context, wanted: Publication, head: int | None, base: TargetPin | None = None
) -> Publication:
    """Reserve the next version, or take up the one that this run reserved before.

    The first of a product also bears `head`, the product's table as readers see it until then.
    Waits for another publication of the product that is under way. With `base`, readers must still
    see exactly that state; else PointerMoved: their whole table is about to be replaced, and what
    was accepted since would be lost.
    """

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        if base is not None:
            require_pinned_base(pointer, wanted, head, (base.table, base.snapshot_id))
        if pointer.pending is not None:
            return resume_reservation(pointer.pending, wanted)
        current = pointer.accepted.version if pointer.accepted else 0
        version, before = pointer.last_version + 1, None if pointer.accepted else head
        row = {"version": version, "supersedes": current, "before_snapshot_id": before}
        return (wanted.model_copy(update=row),)

    def is_mine(pending: Publication) -> bool:
        return pending.run_id == wanted.run_id

    return when_pointer_is_free(context, wanted.product, decide, is_mine)


def when_pointer_is_free(
    context: Context, product: str, decide: PointerDecision, is_mine: Callable[[Publication], bool]
) -> Publication:
    """Move the pointer by `decide` once no other act on the product is pending; give the own one.

    Raises PointerMoved, with its name, when the other one was cut off or takes too long.
    """

    def when_free(pointer: Pointer) -> tuple[Publication, ...]:
        is_free = pointer.pending is None or is_mine(pointer.pending)
        return decide(pointer) if is_free else ()

    for turn in range(_MAX_ATTEMPTS):
        pointer = context.versions.move(product, when_free)
        if pointer.pending is None:
            raise OutcomeUnknown(
                f"{product}: the reserved version is gone",
                state="nothing was published",
                fix=f"lakehouse-backfill versions {product}, then repeat the same command",
            )
        if is_mine(pointer.pending):
            return pointer.pending
        if not is_reservation_active(context, pointer.pending):
            break
        context.clock.sleep(min(_PAUSE_S * (turn + 1), _LONGEST_PAUSE_S))
    require_no_pending(pointer, product, None)
    raise OutcomeUnknown(f"{product}: its pointer changes faster than it can be read")


def is_reservation_active(context: Context, pending: Publication) -> bool:
    """Tell whether a reservation will go away by itself: somebody works on it."""
    if pending.run_id is None:
        return context.is_pending_elsewhere(pending)
    return context.is_driven_elsewhere(context.runs.status(pending.run_id))


def may_release(reserved: Publication, wanted: Publication, error: BackfillError) -> bool:
    """Tell whether a refusal makes it certain that the reserved act will not land any more.

    A reservation that was made by another process may be under way there too. What refuses this
    process, a change of the partitions for one, refuses that one; being too busy does not.
    """
    return reserved.token == wanted.token or not isinstance(error, TooBusy)


def finalise_version(
    context: Context, reserved: Publication, swap: CommitResult, action: str
) -> Publication:
    """Move the pointer to what was swapped in and give the row that says so.

    The first publication of a product also gives what was there before a version, 0: only now is
    it sure which snapshot that is, and a tag of the swap keeps it. The same again changes nothing.
    Raises PointerMoved when the reservation is gone: another process finished it, and what is
    accepted now may have come after.
    """
    row = reserved.model_copy(
        update={
            "action": action,
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
            "at": context.clock.now(),
        }
    )

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        if pointer.accepted is not None and pointer.accepted.token == row.token:
            return ()
        pending = pointer.pending
        if pending is None or (pending.token, pending.epoch) != (row.token, row.epoch):
            raise finished_elsewhere_error(row, pointer)
        return (*_baseline(pointer, reserved, swap), row)

    return context.versions.move(row.product, decide).accepted or row


def _baseline(
    pointer: Pointer, reserved: Publication, swap: CommitResult
) -> tuple[Publication, ...]:
    if pointer.accepted is not None:
        return ()
    # What was published elsewhere has another table's snapshots.
    is_in_place = swap.table == reserved.table
    head = swap.before_snapshot_id if is_in_place else reserved.before_snapshot_id
    return (baseline_publication(reserved, head, reserved.scope, reserved.at),)


def refresh_view(context: Context, contract: Contract) -> None:
    """Let the contract's view, if there is one, show what the pointer says.

    Making a view takes a while: what was accepted meanwhile is shown too.
    """
    if contract.view is None:
        return
    shown: str | None = None
    while (row := context.versions.pointer(contract.product).accepted) and row.token != shown:
        at = row.snapshot_id if contract.publication == "pinned" else None
        try:
            context.views.show(contract.view, row.table, at)
        except BackfillError as error:
            error.state = f"version {row.version} is accepted; only {contract.view} shows less"
            raise
        shown = row.token


def release_version(context: Context, reserved: Publication, epoch: int) -> None:
    """Give a reserved version back after a conflict; its number is not used again.

    A reservation that a later lease than `epoch` took up, or that was finished, stays as it is.
    """
    row = reserved.model_copy(
        update={"action": "release", "at": context.clock.now(), "epoch": epoch}
    )

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        pending = pointer.pending
        is_held = pending is not None and pending.token == row.token and pending.epoch <= epoch
        return (row,) if is_held else ()

    context.versions.move(row.product, decide)


def publication_tags(row: Publication) -> dict[Any, str]:
    """The tags that keep both sides of a publication readable."""
    return {
        "before": f"lhb-before-{row.token[:12]}",
        "after": f"lhb-v{row.version}-{row.token[:12]}",
    }
