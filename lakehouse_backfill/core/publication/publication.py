"""One publication: whether it may be published, its row, and how it is finished.

A run that is published at once is one publication; a run that is published in steps is several.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from uuid import uuid4

from lakehouse_backfill.core.approval import acceptance
from lakehouse_backfill.core.approval.decisions import logged_validation, require_gates_open
from lakehouse_backfill.core.planning import publish_modes
from lakehouse_backfill.core.publication import expose
from lakehouse_backfill.core.publication.dual_read import require_dual_reads
from lakehouse_backfill.core.publication.expose import (
    AcceptedResult,
    require_no_published_corrections,
)
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation import deletions
from lakehouse_backfill.core.versions.reserve import (
    refresh_view,
)
from lakehouse_backfill.domain.manifest import PublishWindow
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import CommitResult, Publication
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.errors import ApprovalMissing, Blocked


def next_opening(window: PublishWindow, now: datetime) -> datetime | None:
    """Return the time at which the window opens next, or None when it is open.

    `from` is inside the window, `to` is outside; `from` equal to `to` is the whole day.
    """
    opens, closes = time.fromisoformat(window.from_), time.fromisoformat(window.to)
    clock = now.time().replace(tzinfo=None)
    is_overnight = opens >= closes
    is_open = clock >= opens or clock < closes if is_overnight else opens <= clock < closes
    if is_open:
        return None
    today = datetime.combine(now.date(), opens, tzinfo=now.tzinfo)
    return today if clock < opens else today + timedelta(days=1)


def require_window_open(plan: Plan, now: datetime) -> None:
    """Raise Blocked outside the publish window of the run; the error has the next opening."""
    window = plan.resolved.manifest.safety.publish_window
    opening = None if window is None else next_opening(window, now)
    if window is None or opening is None:
        return
    at = opening.isoformat(timespec="minutes")
    raise Blocked(
        f"{plan.run_id} may be published between {window.from_} and {window.to} UTC; that opens "
        f"at {at}",
        state="nothing was published; the result stays accepted",
        fix=f"give the same command after {at}",
        data={"opens_at": at},
    )


PUBLICATION = "publication"


@dataclass(frozen=True)
class PublishOutcome:
    """A publication that readers see; `swap` is None when this call swapped no files in."""

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
    """Build the row to reserve; the reservation sets `version` and `supersedes`.

    `scope` is the part of the run that becomes visible; None means the whole run.
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


def finish_publication(
    context: Context, plan: Plan, status: RunStatus, row: Publication, by: str
) -> None:
    """Refresh the view, record the publication as evidence and finish the run.

    A view that fails is raised last: the evidence and the state of the run are written before. The
    evidence says whether the table holds the accepted rows; `require_published_rows_match` checks
    it.
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
    """Raise ChecksFailed when the evidence says that readers see other rows in `row`.

    Every call raises it again.
    """
    recorded = context.evidence.newest(plan.run_id, PUBLICATION)
    if recorded is not None and recorded[1].get("token") == row.token:
        expose.require_rows_match(recorded[1].get("verified"), plan, row)


def check_publishable(
    context: Context, plan: Plan, events: tuple[Event, ...], by: str
) -> AcceptedResult:
    """Check roles, decisions and gates, and that the shadow is unchanged; return what was accepted.

    Raises NotAllowed, ApprovalMissing, ChecksFailed, Blocked, TargetChanged, Unsupported.
    """
    contract = plan.resolved.contract
    publish_modes.require_publishable_mode(plan)
    lifecycle.require_not_retired(events)
    roles.require_role(contract, "publish", by)
    roles.require_decision(events, "approve", plan.manifest_hash, plan.run_id)
    logged = logged_validation(context, events, plan.run_id)
    if logged is None:
        raise ApprovalMissing(
            f"{plan.run_id} was never validated", fix=f"lakehouse-backfill validate {plan.run_id}"
        )
    digest, validation = logged
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
