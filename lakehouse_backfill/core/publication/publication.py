"""One publication: checked, reserved, exposed, finished or released.

When a run may be published: inside its window, if the manifest declares one.

One publication on its way to readers: reserved, exposed, and the pointer moved; or given back.

A run that is published at once is one of these, one that is published in steps is several.

Whether an accepted result may become what readers see.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from uuid import uuid4

from lakehouse_backfill.core.approval import acceptance
from lakehouse_backfill.core.approval.decisions import logged_validation, require_gates_open
from lakehouse_backfill.core.planning import publish_modes
from lakehouse_backfill.core.planning.pins import head_snapshot_id
from lakehouse_backfill.core.publication import expose
from lakehouse_backfill.core.publication.dual_read import require_dual_reads
from lakehouse_backfill.core.publication.expose import (
    AcceptedResult,
    expose_result,
    find_landed_swap,
    require_no_published_corrections,
)
from lakehouse_backfill.core.runs import hooks, lifecycle, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import deletions
from lakehouse_backfill.core.versions import steps
from lakehouse_backfill.core.versions.reserve import (
    REFUSALS,
    finalise_version,
    may_release,
    refresh_view,
    release_version,
    reserve_version,
)
from lakehouse_backfill.domain.manifest import PublishWindow
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import CommitResult, Publication
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.errors import ApprovalMissing, BackfillError, Blocked


def next_opening(window: PublishWindow, now: datetime) -> datetime | None:
    """Tell when the window opens next; None: it is open.

    The window holds its first minute and not its last; `from` equal to `to` is the whole day.
    """
    first, last = time.fromisoformat(window.from_), time.fromisoformat(window.to)
    clock = now.time().replace(tzinfo=None)
    crosses = first >= last
    is_open = clock >= first or clock < last if crosses else first <= clock < last
    if is_open:
        return None
    today = datetime.combine(now.date(), first, tzinfo=now.tzinfo)
    return today if clock < first else today + timedelta(days=1)


def require_window_open(plan: Plan, now: datetime) -> None:
    """Raise Blocked, with the time at which it opens, outside the run's publish window."""
    window = plan.resolved.manifest.safety.publish_window
    moment = None if window is None else next_opening(window, now)
    if window is None or moment is None:
        return
    at = moment.isoformat(timespec="minutes")
    raise Blocked(
        f"{plan.run_id} may be published between {window.from_} and {window.to} UTC; that opens "
        f"at {at}",
        state="nothing was published; the result stays accepted",
        fix=f"give the same command after {at}",
        data={"opens_at": at},
    )


PUBLICATION = "publication"


@dataclass(frozen=True)
class PublishResult:
    """What became visible."""

    publication: Publication
    swap: CommitResult | None
    was_published: bool


def new_publication(
    context: Context,
    plan: Plan,
    events: tuple[Event, ...],
    accepted: AcceptedResult,
    by: str,
    scope: Scope | None = None,
) -> Publication:
    """Make the publication to reserve; version and superseded version are set when it is.

    `scope` is what of the run becomes visible, all of it if absent.
    """
    return Publication(
        product=plan.product,
        version=0,
        token=uuid4().hex,
        action="reserve",
        run_id=plan.run_id,
        table=plan.resolved.contract.table,
        snapshot_id=None,
        before_snapshot_id=None,
        scope=scope or plan.resolved.scope,
        supersedes=None,
        at=context.clock.now(),
        by=by,
        approved_by=roles.decision_makers(events, "approve", plan.manifest_hash),
        accepted_by=roles.decision_makers(events, "accept", accepted.digest),
        manifest_hash=plan.manifest_hash,
        result_digest=accepted.digest,
        evidence_digest=acceptance.newest_archive_digest(events, accepted.digest),
        reason=plan.resolved.manifest.run.reason,
    )


def reserve_and_expose(
    context: Context, plan: Plan, status: RunStatus, wanted: Publication, accepted: AcceptedResult
) -> tuple[Publication, CommitResult]:
    """Reserve the version, expose the files and move the pointer.

    A refusal gives the version back, and moves the run to where it can be published from again.
    """
    wanted = wanted.model_copy(update={"epoch": status.epoch, "driver": context.driver})
    reserved: Publication | None = None
    try:
        base = plan.resolved.target if publish_modes.is_pinned_product(plan) else None
        reserved = reserve_version(
            context, wanted, head_snapshot_id(context, plan.resolved.contract.table), base
        )
        with context.journal.bind(**plan.labels).span(
            "publish", version=reserved.version, publication=reserved.token
        ):
            act, version = reserved.token, reserved.version
            hooks.require_hooks(context, plan, "before_publish", act, status.epoch, version=version)
            swap = expose_result(context, plan, reserved, accepted)
    except REFUSALS as error:
        if reserved is None or may_release(reserved, wanted, error):
            release_publication(context, plan, status, wanted.by, error)
        raise
    return finalise_version(context, reserved, swap, "publish"), swap


def resume_publication(
    context: Context, plan: Plan, status: RunStatus
) -> tuple[Publication, CommitResult] | None:
    """Finish the run's reservation if what it is for has landed; None when it has not."""
    pending = context.versions.pointer(plan.product).pending
    if pending is None or pending.run_id != plan.run_id or publish_modes.is_pinned_product(plan):
        return None
    swap = find_landed_swap(context, plan, pending)
    if swap is None:
        return None
    mine = pending.model_copy(update={"epoch": status.epoch, "driver": context.driver})
    return finalise_version(context, reserve_version(context, mine, None), swap, "publish"), swap


def release_publication(
    context: Context, plan: Plan, status: RunStatus, by: str, error: BackfillError
) -> None:
    """Release what the run reserved, of which nothing has landed, and let it be published again.

    A run that is published in steps is accepted again before its first step, halted after it.
    """
    pending = context.versions.pointer(plan.product).pending
    if pending is not None and pending.run_id == plan.run_id:
        release_version(context, pending, status.epoch)
    history = context.versions.history(plan.product)
    # Also where a process gave it back and died before it told anybody.
    act = hooks.released_token(history, plan.run_id)
    if act is not None:
        hooks.notify_released(context, plan, act, status.epoch, error.problem)
    seen = steps.visible_partitions(history, plan.run_id)
    verb = "halt publication" if steps.is_stepwise(plan) and seen else "release"
    context.move(status, plan, verb, by, problem=error.problem)
    if verb in hooks.HALT_VERBS:
        hooks.notify_halted(context, plan)


def finish_publication(
    context: Context, plan: Plan, status: RunStatus, row: Publication, by: str
) -> None:
    """Show and record what the pointer says by now; a view that fails leaves nothing unfinished.

    Whether the table holds what was accepted is recorded with it: `require_accepted` says it.
    """
    compared = expose.compare_published_rows(context, plan, row)
    try:
        refresh_view(context, plan.resolved.contract)
    finally:
        document = row.model_dump(mode="json") | ({"verified": compared} if compared else {})
        digest = context.evidence.record(plan.run_id, PUBLICATION, document, status.epoch)
        context.move(
            status, plan, "finish publishing", by,
            version=row.version, token=row.token, digest=digest,
        )  # fmt: skip


def require_published_rows_match(context: Context, plan: Plan, row: Publication) -> None:
    """Raise ChecksFailed, each time, when it is recorded that readers see other rows in `row`."""
    found = context.evidence.newest(plan.run_id, PUBLICATION)
    if found is not None and found[1].get("token") == row.token:
        expose.require_rows_match(found[1].get("verified"), plan, row)


def check_publishable(
    context: Context, plan: Plan, events: tuple[Event, ...], by: str
) -> AcceptedResult:
    """Check roles and decisions, and that the shadow is what was accepted; give what that is.

    Raises NotAllowed, ApprovalMissing, Blocked, Unsupported.
    """
    contract = plan.resolved.contract
    publish_modes.require_publishable_mode(plan)
    lifecycle.require_not_retired(events)
    roles.require_role(contract, "publish", by)
    roles.require_decision(events, "approve", plan.manifest_hash, plan.run_id)
    found = logged_validation(context, events, plan.run_id)
    if found is None:
        raise ApprovalMissing(
            f"{plan.run_id} was never validated", fix=f"lakehouse-backfill validate {plan.run_id}"
        )
    digest, validation = found
    roles.require_decision(events, "accept", digest, plan.run_id)
    require_gates_open(events, plan.run_id, digest, validation)
    shadow = context.tables.describe(plan.shadow_table)
    if shadow is None or shadow.snapshot_id != validation.shadow_snapshot_id:
        raise ApprovalMissing(
            f"{plan.shadow_table} is not what was accepted: it changed after validation",
            state="nothing was published",
            fix=f"lakehouse-backfill validate {plan.run_id}, then accept it again",
        )
    require_dual_reads(plan, events, validation.shadow_snapshot_id)
    require_no_published_corrections(context, plan)
    require_window_open(plan, context.clock.now())
    deletions.require_no_tombstoned_rows(context, plan, validation.shadow_snapshot_id)
    deletions.require_no_deleted_rows(context, plan, validation.shadow_snapshot_id)
    return AcceptedResult(digest, validation.shadow_snapshot_id)
