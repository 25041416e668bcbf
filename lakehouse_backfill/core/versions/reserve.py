"""Pointer moves around a swap: reserve a version, finalise it, or release it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.pointer import (
    baseline_publication,
    finished_elsewhere_error,
    pending_error,
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

#: Errors after which it is certain that nothing was swapped: the reserved version is released.
REFUSALS = (Blocked, Conflict, NotFound, Unsupported)
#: How often, and after which pauses, the pointer is read again while it is reserved.
_MAX_ATTEMPTS, _PAUSE_S, _LONGEST_PAUSE_S = 60, 0.05, 0.5

PointerDecision = Callable[[Pointer], tuple[Publication, ...]]
GroupPointerDecision = Callable[[dict[str, Pointer]], tuple[Publication, ...]]


def reserve_version(
    context: Context, wanted: Publication, head: int | None, base: TargetPin | None = None
) -> Publication:
    """Reserve the next version, or resume the reservation that this run made before.

    The first reservation of a product also carries `head`, the snapshot of the product's table that
    readers see until then. Waits for another publication of the product that is in progress. With
    `base`, readers must still see exactly that state; else PointerMoved: the publication replaces
    their whole table, and later accepted changes would be lost.
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
    """Move the pointer by `decide` once no other publication or rollback of the product is pending.

    Returns the pending row of this caller. Raises PointerMoved, which names the other one, when it
    was interrupted or takes too long; OutcomeUnknown when the reserved version is missing.
    """

    def when_free(pointer: Pointer) -> tuple[Publication, ...]:
        is_free = pointer.pending is None or is_mine(pointer.pending)
        return decide(pointer) if is_free else ()

    def move() -> dict[str, Pointer]:
        return {product: context.versions.move(product, when_free)}

    pending = _retry_until_free(context, move, is_mine)[product].pending
    if pending is None:
        raise OutcomeUnknown(
            f"{product}: the reserved version is gone",
            state="nothing was published",
            fix=f"lakehouse-backfill versions {product}, then repeat the same command",
        )
    return pending


def when_pointers_are_free(
    context: Context, products: tuple[str, ...], decide: GroupPointerDecision
) -> dict[str, Pointer]:
    """Move the pointers by `decide` once no publication or rollback of the products is pending.

    Raises PointerMoved when a pending one was interrupted or takes too long.
    """

    def when_free(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        is_free = all(pointer.pending is None for pointer in pointers.values())
        return decide(pointers) if is_free else ()

    return _retry_until_free(
        context, lambda: context.versions.move_all(products, when_free), lambda _: False
    )


def _retry_until_free(
    context: Context, move: Callable[[], dict[str, Pointer]], is_mine: Callable[[Publication], bool]
) -> dict[str, Pointer]:
    """Repeat a move until no pointer has a pending row of another caller."""
    attempt = 0
    while True:
        attempt += 1
        pointers = move()
        pending = (pointer.pending for pointer in pointers.values())
        other = next((row for row in pending if row is not None and not is_mine(row)), None)
        if other is None:
            return pointers
        if attempt == _MAX_ATTEMPTS or not is_reservation_active(context, other):
            raise pending_error(other)
        context.clock.sleep(min(_PAUSE_S * attempt, _LONGEST_PAUSE_S))


def is_reservation_active(context: Context, pending: Publication) -> bool:
    """Return whether another process works on a reservation and will end it."""
    if pending.run_id is None:
        return context.is_pending_elsewhere(pending)
    return context.is_driven_elsewhere(context.runs.status(pending.run_id))


def may_release(reserved: Publication, wanted: Publication, error: BackfillError) -> bool:
    """Return whether a refusal proves that the reserved row cannot land later.

    A reservation of another process may be in progress there. What refuses this process, such as
    changed partitions, refuses that process too; TooBusy does not.
    """
    return reserved.token == wanted.token or not isinstance(error, TooBusy)


def with_swap(row: Publication, swap: CommitResult, action: str) -> Publication:
    """Return the row that makes a swap the accepted state of its product."""
    return row.model_copy(
        update={
            "action": action,
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
        }
    )


def finalise_version(
    context: Context, reserved: Publication, swap: CommitResult, action: str
) -> Publication:
    """Move the pointer to the swapped snapshot and return the accepted row.

    The first publication of a product also makes version 0 of the state before it: only now is its
    snapshot certain, and a tag of the swap keeps it. A second call changes nothing. Raises
    PointerMoved when the reservation is missing: another process finished it, and a later
    publication may be accepted now.
    """
    row = with_swap(reserved, swap, action).model_copy(update={"at": context.clock.now()})

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
    # A swap in another table has the snapshots of that table.
    is_in_place = swap.table == reserved.table
    head = swap.before_snapshot_id if is_in_place else reserved.before_snapshot_id
    return (baseline_publication(reserved, head, reserved.scope, reserved.at),)


def refresh_view(context: Context, contract: Contract) -> None:
    """Update the contract's view, if it has one, to what the pointer says.

    Repeats until the pointer did not move while the view was made.
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
    """Release a reserved version after a conflict; its number is not used again.

    A reservation that was finished, or that a lease later than `epoch` has resumed, stays as it is.
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
    """Return the tags that keep both sides of a publication readable."""
    return {
        "before": f"lhb-before-{row.token[:12]}",
        "after": f"lhb-v{row.version}-{row.token[:12]}",
    }
