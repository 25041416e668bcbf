"""rollback: back to an accepted version, keeping everything that others wrote since."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from lakehouse_backfill.core.publication import rewriting
from lakehouse_backfill.core.publication.corrections import compensate, is_undone_by_events
from lakehouse_backfill.core.publication.staying_deleted import require_none_named
from lakehouse_backfill.core.runs import hooks, roles
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.versions import corrections, keep_versions, publications, rollout
from lakehouse_backfill.core.versions.publications import Return
from lakehouse_backfill.core.versions.reserving import (
    REFUSALS,
    finalise,
    may_release,
    release,
    show_accepted,
    tags,
    take_turn,
)
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication, RevertRequest, Swap
from lakehouse_backfill.domain.run import State
from lakehouse_backfill.errors import NotFound, RunMoved, Unsupported


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
    way = publications.way_back(history, product, to, partitions)
    keep_versions.require_kept(history, product, way.version)
    return replace(way, expirations=keep_versions.count_gone(history))


def columns_stay(bench: Workbench, way: Return) -> tuple[str, ...]:
    """Say which changes of columns the undone runs made: rows go back, columns do not."""
    plans = [bench.runs.plan(row.run_id) for row in reversed(way.undone) if row.run_id]
    steps = [step for plan in plans for step in rules_schema_change.of_plan(plan)]
    return tuple(dict.fromkeys(map(rules_schema_change.describe, steps)))


def rollback(bench: Workbench, contract: Contract, way: Return, reason: str, by: str) -> RolledBack:
    """Put the partitions back by one metadata-only commit and move the pointer.

    Live commits in other partitions survive; one in the same partitions is named and refused.
    Partitions that cannot come back by metadata alone are rewritten into a shadow before. Order:
    version reserved; shadow, if any; swap; pointer moved; view shown; undone runs told.
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
    swap = _landed_or_released(bench, contract, way, row, wanted)
    rewriting.clear(bench, row)
    publication = finalise(bench, row, swap, "rollback")
    bench.journal.log(
        "rolled back", product=contract.product, version=publication.version, reason=reason
    )
    try:
        show_accepted(bench, contract)
    finally:
        tell_runs(bench, way.leaving, way.returning, by, reason)
    follow_rollback(bench, publication)
    return RolledBack(publication, swap)


def follow_rollback(bench: Workbench, row: Publication) -> None:
    """Call the hooks of the newest run; what was called for this act is not repeated."""
    run_id = publications.newest_run(bench.versions.history(row.product))
    if run_id is not None:
        hooks.call_hooks(
            bench, bench.runs.plan(run_id), "after_rollback", row.token,
            bench.runs.status(run_id).epoch,
            outcome="rolled back", version=row.version, reason=row.reason,
        )  # fmt: skip


def returned(
    bench: Workbench, contract: Contract, way: Return, reason: str, by: str
) -> Publication:
    """Give the row by which a pinned product goes back: its pointer is all that moves."""
    swap = _to_established(bench, contract, way)
    return _draft(bench, contract, way, reason, by).model_copy(
        update={
            "action": "rollback",
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
        }
    )


def _draft(bench: Workbench, contract: Contract, way: Return, reason: str, by: str) -> Publication:
    newest = way.undone[0]
    # The table that changes: what was undone before already may have been in another one.
    table = next((row.table for row in corrections.effective(way.undone)), newest.table)
    return Publication(
        product=contract.product,
        version=way.version,
        token=uuid4().hex,
        action="reserve",
        run_id=None,
        table=table,
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


def _landed_or_released(
    bench: Workbench, contract: Contract, way: Return, row: Publication, wanted: Publication
) -> Swap:
    """Put the partitions back; what refuses that gives the reserved version back."""
    try:
        return _restore(bench, contract, way, row)
    except REFUSALS as error:
        # Another process that goes on with the same rollback may have landed it, and cleared up.
        landed = bench.publisher.find(row.table, row.token)
        if landed is not None:
            return landed
        if may_release(row, wanted, error):
            rewriting.clear(bench, row)
            release(bench, row, row.epoch)
        raise


def _reserve(bench: Workbench, way: Return, wanted: Publication) -> Publication:
    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        publications.require_unmoved(pointer, way.undone[0])
        keep_versions.require_none_gone_since(pointer, way.expirations, wanted.product)
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
        return _to_established(bench, contract, way)
    if is_undone_by_events(way, contract.table):
        return compensate(bench, way, row)
    landed = bench.publisher.find(contract.table, row.token)
    if landed is None:
        way = rewriting.plan_rewrites(bench, contract, way)
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
            rewritten=rewriting.rewrite(bench, way, row) if landed is None else None,
        )
    )


def _to_established(bench: Workbench, contract: Contract, way: Return) -> Swap:
    """A pinned product goes back by the pointer alone: to the table and snapshot of the version."""
    found = way.established
    if found.snapshot_id is None:
        raise NotFound(f"version {found.version} of {found.product} had no snapshot")
    require_none_named(bench, contract, way)
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
        told = {State.PUBLISHED: "roll back", State.PUBLISH_HALTED: "roll back"}
        _tell(bench, run_id, told, by, reason)


def _tell(bench: Workbench, run_id: str, verbs: dict[State, str], by: str, reason: str) -> None:
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    verb = verbs.get(status.state)
    pending = bench.versions.pointer(status.product).pending
    if verb is None or (pending is not None and pending.run_id == run_id):
        return
    is_visible = publications.visible(bench.versions.history(status.product), run_id) is not None
    if is_visible is (verb == "reinstate"):
        if verb == "reinstate" and not _is_whole(bench, plan):
            verb = "reinstate in part"
        with suppress(RunMoved):  # Somebody else told it first.
            bench.move(status, plan, verb, by, reason=reason)


def _is_whole(bench: Workbench, plan: Plan) -> bool:
    """Tell whether readers see all steps of a run that was published in steps."""
    return not rollout.is_stepwise(plan) or rollout.is_whole(
        bench.versions.history(plan.product), plan
    )
