"""Moving the pointers of several pinned products by one commit, and back (U2)."""

from __future__ import annotations

from collections.abc import Callable

from lakehouse_backfill.core.publication import rollback
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import keep_versions, publications
from lakehouse_backfill.core.versions.publications import RollbackTarget
from lakehouse_backfill.core.versions.reserving import is_reservation_active, refresh_view
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.errors import PointerMoved, Unsupported

#: The detail of the event by which a run begins to be published with others.
GROUP_DETAIL = "together"
_MAX_ATTEMPTS, _PAUSE_S = 60, 0.2
GroupPointerDecision = Callable[[dict[str, Pointer]], tuple[Publication, ...]]


def publication_group(bench: Context, run_id: str) -> tuple[str, ...]:
    """Name the runs that a run is being published with; none when it is published alone."""
    begun = [event for event in bench.runs.events(run_id) if event.verb == "begin publishing"]
    return tuple(begun[-1].detail.get(GROUP_DETAIL, ())) if begun else ()


def rollback_together(
    bench: Context, ways: tuple[tuple[Contract, RollbackTarget], ...], reason: str, by: str
) -> tuple[Publication, ...]:
    """Move the pointers of several pinned products back by one commit.

    Raises Unsupported for a product that is followed, PointerMoved when one of them moved.
    """
    for contract, way in ways:
        roles.require_role(contract, "publish", by)
        if contract.publication != "pinned" or way.is_partial:
            raise Unsupported(
                f"{contract.product} cannot go back together with others: its table is restored "
                "by a commit of its own",
                fix=f"lakehouse-backfill rollback {contract.product} --reason TEXT",
            )
    drafts = {c.product: rollback.pinned_rollback_row(bench, c, way, reason, by) for c, way in ways}

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        for contract, way in ways:
            pointer = pointers[contract.product]
            publications.require_pointer_unmoved(pointer, way.undone[0])
            keep_versions.require_none_expired_since(pointer, way.expirations, contract.product)
        return tuple(drafts.values())

    moved = when_pointers_are_free(bench, tuple(drafts), decide)
    for contract, way in ways:
        refresh_view(bench, contract)
        rollback.align_run_states(bench, way.leaving, way.returning, by, reason)
        rollback.call_after_rollback_hooks(bench, drafts[contract.product])
    return tuple(moved[product].accepted or drafts[product] for product in drafts)


def roll_back_group(bench: Context, group: tuple[str, ...], reason: str, by: str) -> None:
    """Let what became visible together go back together; products that moved on stay."""
    ways = []
    for plan in (bench.runs.plan(run_id) for run_id in group):
        row = bench.versions.pointer(plan.product).accepted
        if row is not None and (row.run_id, row.action) == (plan.run_id, "publish"):
            way = rollback.plan_rollback(bench, plan.product, row.supersedes, ())
            ways.append((plan.resolved.contract, way))
    rollback_together(bench, tuple(ways), reason, by)


def when_pointers_are_free(
    bench: Context, products: tuple[str, ...], decide: GroupPointerDecision
) -> dict[str, Pointer]:
    """Move the pointers by `decide` once no act on any of the products is pending."""

    def when_free(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        return () if _first_pending(pointers) else decide(pointers)

    for _ in range(_MAX_ATTEMPTS):
        moved = bench.versions.move_all(products, when_free)
        pending = _first_pending(moved)
        if pending is None:
            return moved
        if not is_reservation_active(bench, pending):
            break
        bench.clock.sleep(_PAUSE_S)
    for product, pointer in moved.items():
        publications.require_no_pending(pointer, product, None)
    raise PointerMoved(
        f"the pointers of {', '.join(products)} change faster than they can be read",
        state="nothing was published",
        fix="try again",
    )


def _first_pending(pointers: dict[str, Pointer]) -> Publication | None:
    found = (pointer.pending for pointer in pointers.values())
    return next((one for one in found if one is not None), None)
