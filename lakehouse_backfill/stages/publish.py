"""publish: reserve the version, swap the files in, move the pointer, say so."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from lakehouse_backfill.errors import ApprovalMissing, BackfillError
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.publication import Publication, Swap
from lakehouse_backfill.model.run import Event, RunStatus, State
from lakehouse_backfill.rules import lifecycle, modes, publications, roles
from lakehouse_backfill.stages.decide import judged, require_gates_open, trusted_events
from lakehouse_backfill.stages.exposing import Accepted, expose
from lakehouse_backfill.stages.lease import KeptLease
from lakehouse_backfill.stages.reserving import (
    REFUSALS,
    finalise,
    may_release,
    release,
    reserve,
    show_accepted,
)
from lakehouse_backfill.stages.workbench import Workbench

PUBLICATION = "publication"


@dataclass(frozen=True)
class Published:
    """What became visible."""

    publication: Publication
    swap: Swap | None
    was_published: bool


def publish(bench: Workbench, run_id: str, by: str, **detail: str) -> Published:
    """Make the accepted result of a run what readers see; a second call changes nothing.

    One that was cut off goes on: what landed is finished, whatever happened since. `detail` is
    written beside the move to publishing.

    Order of side effects: run -> publishing; version reserved; files swapped in by one commit;
    pointer moved; view shown; evidence; run -> published. A conflict releases the version.
    Raises ApprovalMissing, NotAllowed, TargetChanged, PointerMoved, TooBusy, OutcomeUnknown.
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    if status.state is State.PUBLISHING:
        return _resume(bench, plan, status, by, detail)
    if status.state is State.PUBLISHED:
        visible = _visible(bench, plan)
        if visible is not None:
            show_accepted(bench, plan.resolved.contract)
            return Published(visible, None, was_published=True)
        # A rollback was cut off after it moved the pointer, before it told the run.
        status = bench.move(status, plan, "roll back", by, reason="its version is not accepted")
    events = trusted_events(bench, status)
    lifecycle.require_legal(status, "begin publishing")
    accepted = check_publishable(bench, plan, events, by)
    status = bench.drive(status, plan, "begin publishing", by, **detail)
    with KeptLease(bench, status):
        return _publish(bench, plan, status, draft(bench, plan, events, accepted, by), accepted)


def _resume(
    bench: Workbench, plan: Plan, status: RunStatus, by: str, detail: dict[str, str]
) -> Published:
    """Go on with a publication that was cut off; look at the lake before anything is checked."""
    status = bench.drive(status, plan, "begin publishing", by, **detail)
    with KeptLease(bench, status):
        visible = _visible(bench, plan)
        if visible is not None:
            # It was cut off after the pointer moved, before the run's last event.
            _finish(bench, plan, status, visible, by)
            return Published(visible, None, was_published=True)
        landed = _landed(bench, plan, status)
        if landed is not None:
            publication = finalise(bench, *landed, "publish")
            _finish(bench, plan, status, publication, by)
            return Published(publication, landed[1], was_published=False)
        try:
            events = trusted_events(bench, status)
            accepted = check_publishable(bench, plan, events, by)
        except REFUSALS as error:
            _give_back(bench, plan, status, by, error)
            raise
        wanted = draft(bench, plan, events, accepted, by)
        return _publish(bench, plan, status, wanted, accepted)


def _visible(bench: Workbench, plan: Plan) -> Publication | None:
    return publications.visible(bench.versions.history(plan.product), plan.run_id)


def _landed(bench: Workbench, plan: Plan, status: RunStatus) -> tuple[Publication, Swap] | None:
    """Take up the run's reservation if the target holds its commit; None when it does not."""
    pending = bench.versions.pointer(plan.product).pending
    if pending is None or pending.run_id != plan.run_id or modes.is_pinned(plan):
        return None
    swap = bench.publisher.find(plan.resolved.target.table, pending.token)
    if swap is None:
        return None
    mine = pending.model_copy(update={"epoch": status.epoch, "driver": bench.driver})
    return reserve(bench, mine, None), swap


def check_publishable(bench: Workbench, plan: Plan, events: tuple[Event, ...], by: str) -> Accepted:
    """Check roles and decisions, and that the shadow is what was accepted; give what that is.

    Raises NotAllowed, ApprovalMissing, Blocked, Unsupported.
    """
    contract = plan.resolved.contract
    modes.require_publishable(plan)
    roles.require_role(contract, "publish", by)
    roles.require_decision(events, "approve", plan.manifest_hash, plan.run_id)
    found = judged(bench, events, plan.run_id)
    if found is None:
        raise ApprovalMissing(
            f"{plan.run_id} was never validated", fix=f"lakehouse-backfill validate {plan.run_id}"
        )
    digest, validation = found
    roles.require_decision(events, "accept", digest, plan.run_id)
    require_gates_open(events, plan.run_id, digest, validation)
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None or shadow.snapshot_id != validation.shadow_snapshot_id:
        raise ApprovalMissing(
            f"{plan.shadow_table} is not what was accepted: it changed after validation",
            state="nothing was published",
            fix=f"lakehouse-backfill validate {plan.run_id}, then accept it again",
        )
    return Accepted(digest, validation.shadow_snapshot_id)


def draft(
    bench: Workbench, plan: Plan, events: tuple[Event, ...], accepted: Accepted, by: str
) -> Publication:
    """Make the publication to reserve; version and superseded version are set when it is."""
    return Publication(
        product=plan.product,
        version=0,
        token=uuid4().hex,
        action="reserve",
        run_id=plan.run_id,
        table=plan.resolved.contract.table,
        snapshot_id=None,
        before_snapshot_id=None,
        scope=plan.resolved.scope,
        supersedes=None,
        at=bench.clock.now(),
        by=by,
        approved_by=roles.decisions(events, "approve", plan.manifest_hash),
        accepted_by=roles.decisions(events, "accept", accepted.digest),
        manifest_hash=plan.manifest_hash,
        result_digest=accepted.digest,
        reason=plan.resolved.manifest.run.reason,
    )


def _publish(
    bench: Workbench, plan: Plan, status: RunStatus, draft: Publication, accepted: Accepted
) -> Published:
    wanted = draft.model_copy(update={"epoch": status.epoch, "driver": bench.driver})
    reserved: Publication | None = None
    try:
        base = plan.resolved.target if modes.is_pinned(plan) else None
        reserved = reserve(bench, wanted, _head(bench, plan), base)
        with bench.journal.bind(**plan.labels).span(
            "publish", version=reserved.version, publication=reserved.token
        ):
            swap = expose(bench, plan, reserved, accepted)
    except REFUSALS as error:
        if reserved is None or may_release(reserved, wanted, error):
            _give_back(bench, plan, status, wanted.by, error)
        raise
    publication = finalise(bench, reserved, swap, "publish")
    _finish(bench, plan, status, publication, wanted.by)
    return Published(publication, swap, was_published=False)


def _give_back(
    bench: Workbench, plan: Plan, status: RunStatus, by: str, error: BackfillError
) -> None:
    """Release what the run reserved, and let it be accepted again: nothing of it has landed."""
    pending = bench.versions.pointer(plan.product).pending
    if pending is not None and pending.run_id == plan.run_id:
        release(bench, pending, status.epoch)
    bench.move(status, plan, "release", by, problem=error.problem)


def _finish(bench: Workbench, plan: Plan, status: RunStatus, row: Publication, by: str) -> None:
    """Show and record what the pointer says by now; a view that fails leaves nothing unfinished."""
    try:
        show_accepted(bench, plan.resolved.contract)
    finally:
        digest = bench.evidence.record(
            plan.run_id, PUBLICATION, row.model_dump(mode="json"), status.epoch
        )
        bench.move(
            status, plan, "finish publishing", by,
            version=row.version, token=row.token, digest=digest,
        )  # fmt: skip


def _head(bench: Workbench, plan: Plan) -> int | None:
    info = bench.tables.describe(plan.resolved.contract.table)
    return info.snapshot_id if info else None
