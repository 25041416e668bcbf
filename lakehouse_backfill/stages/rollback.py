"""rollback: back to an accepted version, keeping everything that others wrote since."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from lakehouse_backfill.errors import NotFound, RunMoved, Unsupported
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.publication import Pointer, Publication, RevertRequest, Swap
from lakehouse_backfill.model.run import State
from lakehouse_backfill.rules import publications, roles
from lakehouse_backfill.rules.publications import Return
from lakehouse_backfill.stages.reserving import (
    REFUSALS,
    finalise,
    may_release,
    release,
    show_accepted,
    tags,
    take_turn,
)
from lakehouse_backfill.stages.workbench import Workbench


@dataclass(frozen=True)
class RolledBack:
    """Where a rollback led."""

    publication: Publication
    swap: Swap


def plan_rollback(
    bench: Workbench, product: str, to: int | None, partitions: tuple[str, ...]
) -> Return:
    """Work out the way back without changing anything. Raises NotFound, Blocked."""
    history = bench.versions.history(product)
    if not history:
        raise NotFound(f"{product} has no accepted version", fix="lakehouse-backfill status --all")
    return publications.way_back(history, product, to, partitions)


def rollback(bench: Workbench, contract: Contract, way: Return, reason: str, by: str) -> RolledBack:
    """Put the partitions back by one metadata-only commit and move the pointer.

    Live commits in other partitions survive; one in the same partitions is named and refused.
    Order: version reserved; swap; pointer moved; view shown; the undone runs become rolled_back.
    One that was cut off is finished by the same call.
    """
    roles.require_role(contract, "publish", by)
    return finish_rollback(bench, contract, way, reason, by)


def finish_rollback(
    bench: Workbench, contract: Contract, way: Return, reason: str, by: str
) -> RolledBack:
    """Do the same for somebody whose role was asked for when they began it."""
    if way.is_partial and contract.publication == "pinned":
        raise Unsupported(
            f"{contract.product} is pinned: its pointer moves for all partitions at once",
            fix="roll the whole version back, or restate some partitions",
        )
    wanted = _draft(bench, contract, way, reason, by)
    row = _reserve(bench, way, wanted)
    try:
        swap = _restore(bench, contract, way, row)
    except REFUSALS as error:
        if may_release(row, wanted, error):
            release(bench, row, row.epoch)
        raise
    publication = finalise(bench, row, swap, "rollback")
    bench.journal.log(
        "rolled back", product=contract.product, version=publication.version, reason=reason
    )
    try:
        show_accepted(bench, contract)
    finally:
        tell_runs(bench, way.leaving, way.returning, by, reason)
    return RolledBack(publication, swap)


def _draft(bench: Workbench, contract: Contract, way: Return, reason: str, by: str) -> Publication:
    newest = way.undone[0]
    return Publication(
        product=contract.product,
        version=way.version,
        token=uuid4().hex,
        action="reserve",
        run_id=None,
        table=newest.table,
        snapshot_id=None,
        before_snapshot_id=None,
        scope=way.scope,
        supersedes=newest.version,
        at=bench.clock.now(),
        by=by,
        reason=reason,
        returns_to=way.version,
        driver=bench.driver,
    )


def _reserve(bench: Workbench, way: Return, wanted: Publication) -> Publication:
    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        publications.require_unmoved(pointer, way.undone[0])
        if pointer.pending is not None:
            return ()
        version = pointer.last_version + 1 if way.is_partial else way.version
        return (wanted.model_copy(update={"version": version}),)

    def is_mine(pending: Publication) -> bool:
        # The same rollback, whoever began it: it was cut off, or goes on beside this one.
        return publications.is_same_return(pending, wanted, is_partial=way.is_partial)

    return take_turn(bench, wanted.product, decide, is_mine)


def _restore(bench: Workbench, contract: Contract, way: Return, row: Publication) -> Swap:
    if contract.publication == "pinned":
        return _to_established(way)
    return bench.publisher.revert(
        RevertRequest(
            target=contract.table,
            scope=way.scope,
            restores=way.restores,
            token=row.token,
            tags=tags(row),
            properties={
                "lakehouse-backfill.rollback-to": str(way.version),
                "lakehouse-backfill.reason": row.reason,
            },
        )
    )


def _to_established(way: Return) -> Swap:
    """A pinned product goes back by the pointer alone: to the table and snapshot of the version."""
    found = way.established
    if found.snapshot_id is None:
        raise NotFound(f"version {found.version} of {found.product} had no snapshot")
    return Swap(
        table=found.table,
        snapshot_id=found.snapshot_id,
        before_snapshot_id=way.undone[0].snapshot_id,
        files_added=0,
        files_removed=0,
        rows_added=0,
        rows_removed=0,
        attempts=1,
        seconds=0.0,
    )


def tell_runs(
    bench: Workbench, leaving: Iterable[str], returning: Iterable[str], by: str, reason: str
) -> None:
    """Move the runs whose output is not accepted any more, and reinstate those that are again.

    What the pointer says by now decides: it may have moved on. A run that knows already, or that
    is being published, stays as it is.
    """
    for run_id in returning:
        _tell(
            bench, run_id, {State.ROLLED_BACK: "reinstate", State.ACCEPTED: "reinstate"}, by, reason
        )
    for run_id in leaving:
        # Cut off between the pointer and its last event, a run was published all the same.
        _tell(bench, run_id, {State.PUBLISHING: "finish publishing"}, by, reason)
        _tell(bench, run_id, {State.PUBLISHED: "roll back"}, by, reason)


def _tell(bench: Workbench, run_id: str, verbs: dict[State, str], by: str, reason: str) -> None:
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    verb = verbs.get(status.state)
    pending = bench.versions.pointer(status.product).pending
    if verb is None or (pending is not None and pending.run_id == run_id):
        return
    is_visible = publications.visible(bench.versions.history(status.product), run_id) is not None
    if is_visible is (verb == "reinstate"):
        with suppress(RunMoved):  # Somebody else told it first.
            bench.move(status, plan, verb, by, reason=reason)
