"""Pointer moves around a swap: reserve a version, finalise it, or release it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from lakehouse_backfill import errors
from lakehouse_backfill.core.runs import event_log, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer, version_labels
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.identity.statement import SignedTable
from lakehouse_backfill.domain.plan import TargetPin
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.tables.commits import CommitResult
from lakehouse_backfill.fault_points import describe_commits

#: Errors after which it is certain that nothing was swapped: the reserved version is released.
REFUSALS = (errors.Blocked, errors.Conflict, errors.NotFound, errors.Unsupported)
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

    def decide(current: Pointer) -> tuple[Publication, ...]:
        if base is not None:
            pointer.require_pinned_base(current, wanted, head, (base.table, base.snapshot_id))
        return _reservation(context, wanted, head, current)

    def is_mine(pending: Publication) -> bool:
        return pending.run_id == wanted.run_id

    return when_pointer_is_free(context, wanted.product, decide, is_mine)


def reserve_versions(
    context: Context, wanted: dict[str, Publication], heads: dict[str, int | None]
) -> dict[str, Publication]:
    """Reserve the next versions of several products by one commit, as `reserve_version` does.

    Keys are products. Raises PointerMoved; then no version of them is reserved by this call.
    """
    run_ids = {row.run_id for row in wanted.values()}

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        rows = [
            _reservation(context, row, heads[product], pointers[product])
            for product, row in wanted.items()
        ]
        return tuple(row for found in rows for row in found)

    moved = when_pointers_are_free(
        context, tuple(wanted), decide, lambda pending: pending.run_id in run_ids
    )
    return {product: require_pending(product, one) for product, one in moved.items()}


def _reservation(
    context: Context, wanted: Publication, head: int | None, current: Pointer
) -> tuple[Publication, ...]:
    """Return the row that reserves the next version; none when it is reserved already."""
    pending, accepted = current.pending, current.accepted
    if pending is not None and pending.epoch == wanted.epoch:
        return ()
    if pending is not None and pending.token == wanted.token:
        return (wanted,)
    if pending is not None:
        # An earlier lease can then neither finish nor release the reservation.
        event_log.require_current_epoch(str(pending.run_id), wanted.epoch, pending.epoch)
        resumed = {"epoch": wanted.epoch, "driver": wanted.driver, "at": wanted.at}
        return (pending.model_copy(update=resumed),)
    superseded, before = (accepted.version, None) if accepted else (0, head)
    row = {
        "version": current.last_version + 1,
        "supersedes": superseded,
        "before_snapshot_id": before,
    }
    return (sign_row(context, wanted.model_copy(update=row)),)


def sign_row(context: Context, row: Publication) -> Publication:
    """Return the row of a publication or rollback, signed by who acts, where they have a key."""
    table = partial(acted_table, context, row)
    at = act_time(context, row)
    return signers.sign_publication(context.identity, context.profile, row, at, table)


def act_time(context: Context, row: Publication) -> datetime:
    """Return the time of an act: never before what the log of its run, or product, holds.

    A key that was revoked holds again where a clock is set back.
    """
    now = context.clock.now()
    if not context.identity.has_signer():
        return now
    logged = (
        context.versions.history(row.product)[:1]
        if row.run_id is None
        else context.runs.events(row.run_id)
    )
    return max(now, *(one.at for one in logged))


def acted_table(context: Context, row: Publication) -> SignedTable | None:
    """Return the table that a publication or rollback is about, before the act.

    Of a publication it is that of its plan. Of a rollback it is that of the run that was published
    last before it, at the snapshot that was accepted then. None: no run was published.
    """
    if row.run_id is not None:
        return signers.planned_table(context.profile, context.runs.plan(row.run_id))
    history = context.versions.history(row.product)
    own = [at for at, one in enumerate(history) if one.token == row.token]
    before = history[own[-1] + 1 :] if own else history
    run_id = pointer.newest_published_run(before)
    if run_id is None:
        return None
    accepted = pointer.accepted_rows(before)[0]
    planned = signers.planned_table(context.profile, context.runs.plan(run_id))
    return planned.model_copy(update={"base_snapshot_id": accepted.snapshot_id})


def when_pointer_is_free(
    context: Context, product: str, decide: PointerDecision, is_mine: Callable[[Publication], bool]
) -> Publication:
    """Move the pointer by `decide` once no other publication or rollback of the product is pending.

    Returns the pending row of this caller. Raises PointerMoved, which names the other one, when it
    was interrupted or takes too long; OutcomeUnknown when the reserved version is missing.
    """

    def when_free(current: Pointer) -> tuple[Publication, ...]:
        is_free = current.pending is None or is_mine(current.pending)
        return decide(current) if is_free else ()

    def move() -> dict[str, Pointer]:
        return {product: context.versions.move(product, when_free)}

    return require_pending(product, _retry_until_free(context, move, is_mine)[product])


def require_pending(product: str, moved: Pointer) -> Publication:
    """Return the reserved row; raises OutcomeUnknown when the pointer has none."""
    pending = moved.pending
    if pending is None:
        raise errors.OutcomeUnknown(
            f"{product}: the reserved version is gone",
            state="nothing was published",
            fix=f"lakehouse-backfill versions {product}, then repeat the same command",
        )
    return pending


def when_pointers_are_free(
    context: Context,
    products: tuple[str, ...],
    decide: GroupPointerDecision,
    is_mine: Callable[[Publication], bool] = lambda _: False,
) -> dict[str, Pointer]:
    """Move the pointers by `decide` once no publication or rollback of others is pending.

    Raises PointerMoved when a pending one was interrupted or takes too long.
    """

    def when_free(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        pending = (current.pending for current in pointers.values())
        is_free = all(row is None or is_mine(row) for row in pending)
        return decide(pointers) if is_free else ()

    return _retry_until_free(
        context, lambda: context.versions.move_all(products, when_free), is_mine
    )


def _retry_until_free(
    context: Context, move: Callable[[], dict[str, Pointer]], is_mine: Callable[[Publication], bool]
) -> dict[str, Pointer]:
    """Repeat a move until no pointer has a pending row of another caller."""
    attempt = 0
    while True:
        attempt += 1
        pointers = move()
        pending = (current.pending for current in pointers.values())
        other = next((row for row in pending if row is not None and not is_mine(row)), None)
        if other is None:
            return pointers
        if attempt == _MAX_ATTEMPTS or not is_reservation_active(context, other):
            raise _pending_error(other)
        context.clock.sleep(min(_PAUSE_S * attempt, _LONGEST_PAUSE_S))


def _pending_error(pending: Publication) -> errors.PointerMoved:
    """Build the error for a publication or rollback in progress; it names the other actor."""
    what = f"version {pending.version} is being published"
    if pending.run_id is None:
        what = f"it is being rolled back to version {pending.returns_to}"
    return errors.PointerMoved(
        f"{pending.product}: {what} by {pending.by} "
        f"({pending.run_id or pending.reason}) since {pending.at:%Y-%m-%d %H:%M:%S}Z",
        state="this command moved no pointer; what was staged is kept",
        fix="wait for it, then try again; if it was cut off: lakehouse-backfill recover "
        + (pending.run_id or "--all"),
    )


def is_reservation_active(context: Context, pending: Publication) -> bool:
    """Return whether another process works on a reservation and will end it."""
    if pending.run_id is None:
        return context.is_pending_elsewhere(pending)
    return context.is_driven_elsewhere(context.runs.status(pending.run_id))


def may_release(reserved: Publication, wanted: Publication, error: errors.BackfillError) -> bool:
    """Return whether a refusal proves that the reserved row cannot land later.

    A reservation of another process may be in progress there. What refuses this process, such as
    changed partitions, refuses that process too; TooBusy does not.
    """
    return reserved.token == wanted.token or not isinstance(error, errors.TooBusy)


def name_state(refusal: errors.BackfillError, state: str) -> None:
    """Say what a refusal means for the data, where it only names commits of control tables."""
    if refusal.state == describe_commits():
        refusal.state = state


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

    def decide(current: Pointer) -> tuple[Publication, ...]:
        accepted, pending = current.accepted, current.pending
        if accepted is not None and accepted.token == row.token:
            return ()
        if pending is None or (pending.token, pending.epoch) != (row.token, row.epoch):
            now = f"version {accepted.version}" if accepted else "nothing"
            raise errors.PointerMoved(
                f"{row.product}: another process finished or released version {row.version} "
                f"meanwhile; {now} is accepted now",
                state="this process moved no pointer",
                fix=f"lakehouse-backfill versions {row.product}",
            )
        if accepted is not None:
            return (row,)
        # A swap in another table has the snapshots of that table.
        is_in_place = swap.table == reserved.table
        head = swap.before_snapshot_id if is_in_place else reserved.before_snapshot_id
        first = pointer.baseline_publication(reserved, head, reserved.scope, reserved.at)
        return (first, row)

    return context.versions.move(row.product, decide).accepted or row


def refresh_view(context: Context, contract: Contract) -> None:
    """Update the contract's table of versions, and its view, to what the pointer says.

    Repeats until the pointer did not move while they were made.
    """
    versions_table, view = contract.versions_table, contract.view
    if versions_table is None and view is None:
        return
    shown: str | None = None
    while (row := context.versions.pointer(contract.product).accepted) and row.token != shown:
        try:
            version_labels.show_labels(context, contract)
            if view is not None and versions_table is not None:
                context.views.show(view, versions_table, None, accepted_only=True)
            elif view is not None:
                at = row.snapshot_id if contract.publication == "pinned" else None
                context.views.show(view, row.table, at)
        except errors.BackfillError as error:
            shown_by = " and ".join(filter(None, (versions_table, view)))
            error.state = f"version {row.version} is accepted; only {shown_by} shows less"
            raise
        shown = row.token


def release_version(context: Context, reserved: Publication, epoch: int) -> None:
    """Release a reserved version after a conflict; its number is not used again.

    A reservation that was finished, or that a lease later than `epoch` has resumed, stays as it is.
    """
    row = reserved.model_copy(
        update={"action": "release", "at": context.clock.now(), "epoch": epoch}
    )

    def decide(current: Pointer) -> tuple[Publication, ...]:
        pending = current.pending
        is_held = pending is not None and pending.token == row.token and pending.epoch <= epoch
        return (row,) if is_held else ()

    context.versions.move(row.product, decide)
