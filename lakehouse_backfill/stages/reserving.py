"""The moves of the pointer around a swap: reserve a version, finalise it, or give it back."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.errors import (
    BackfillError,
    Blocked,
    Conflict,
    NotFound,
    OutcomeUnknown,
    Unsupported,
)
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.plan import TargetPin
from lakehouse_backfill.model.publication import Pointer, Publication, Swap
from lakehouse_backfill.rules import publications
from lakehouse_backfill.stages.workbench import Workbench

#: Errors after which it is certain that nothing was swapped: the reserved version is given back.
REFUSALS = (Blocked, Conflict, NotFound, Unsupported)


def reserve(
    bench: Workbench, wanted: Publication, head: int | None, base: TargetPin | None = None
) -> Publication:
    """Reserve the next version, or take up the one that this run reserved before.

    With `base`, readers must still see exactly that state; else PointerMoved: their whole table is
    about to be replaced, and what was accepted since would be lost.
    """

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        publications.require_free(pointer, wanted.product, wanted.run_id)
        if base is not None:
            publications.require_base(pointer, wanted, head, (base.table, base.snapshot_id))
        if pointer.pending is not None:
            return ()
        rows: tuple[Publication, ...] = ()
        if pointer.accepted is None:
            rows = (publications.baseline(wanted, head, wanted.scope, wanted.at),)
        current = pointer.accepted.version if pointer.accepted else 0
        version = pointer.last_version + 1
        return (*rows, wanted.model_copy(update={"version": version, "supersedes": current}))

    pending = bench.versions.move(wanted.product, decide).pending
    if pending is None:
        raise OutcomeUnknown(
            f"{wanted.product}: the reserved version is gone",
            state="nothing was published",
            fix=f"lakehouse-backfill publish {wanted.run_id}",
        )
    return pending


def finalise(bench: Workbench, reserved: Publication, swap: Swap, action: str) -> Publication:
    """Move the pointer to what was swapped in; the same again changes nothing."""
    row = reserved.model_copy(
        update={
            "action": action,
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
            "at": bench.clock.now(),
        }
    )

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        if pointer.accepted is not None and pointer.accepted.token == row.token:
            return ()
        return (row,)

    bench.versions.move(row.product, decide)
    return row


def show_accepted(bench: Workbench, contract: Contract, row: Publication) -> None:
    """Let the contract's view, if there is one, show what the pointer says."""
    if contract.view is not None:
        at = row.snapshot_id if contract.publication == "pinned" else None
        try:
            bench.views.show(contract.view, row.table, at)
        except BackfillError as error:
            error.state = f"version {row.version} is accepted; only {contract.view} shows less"
            raise


def release(bench: Workbench, reserved: Publication) -> None:
    """Give a reserved version back after a conflict; its number is not used again."""
    row = reserved.model_copy(update={"action": "release", "at": bench.clock.now()})

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        pending = pointer.pending
        return (row,) if pending is not None and pending.token == row.token else ()

    bench.versions.move(row.product, decide)


def tags(row: Publication) -> dict[Any, str]:
    """The tags that keep both sides of a publication readable."""
    return {
        "before": f"lhb-before-{row.token[:12]}",
        "after": f"lhb-v{row.version}-{row.token[:12]}",
    }
