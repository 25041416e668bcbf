"""publish: reserve the version, swap the files in, move the pointer, say so."""

from __future__ import annotations

from lakehouse_backfill.core.approval.decide import trusted_events
from lakehouse_backfill.core.publication import follow_up, together
from lakehouse_backfill.core.publication.exposing import AcceptedResult
from lakehouse_backfill.core.publication.landing import (
    PublishResult,
    finish_publication,
    new_publication,
    release_publication,
    require_published_rows_match,
    reserve_and_expose,
    resume_publication,
)
from lakehouse_backfill.core.publication.moving_together import publication_group
from lakehouse_backfill.core.publication.progressive import ProgressivePublication
from lakehouse_backfill.core.publication.publishable import check_publishable
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.lease import RenewedLease
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import publications, rollout
from lakehouse_backfill.core.versions.reserving import REFUSALS, refresh_view
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, RunState, RunStatus


def publish(bench: Context, run_id: str, by: str, **detail: str) -> PublishResult:
    """Make the accepted result of a run what readers see; a second call changes nothing.

    One that was cut off goes on: what landed is finished, whatever happened since. `detail` is
    written beside the move to publishing.

    Order of side effects: run -> publishing; version reserved; hooks; files swapped in by one
    commit; pointer moved; view shown; evidence; run -> published; checks and hooks after it. A
    conflict releases the version. Raises ApprovalMissing, NotAllowed, TargetChanged, PointerMoved,
    TooBusy, OutcomeUnknown, Blocked (a hook), ChecksFailed (after the publication).
    """
    plan = bench.runs.plan(run_id)
    done = _publish_or_resume(bench, plan, by, detail)
    follow_up.run_checks_and_hooks(bench, plan, done.publication, by)
    require_published_rows_match(bench, plan, done.publication)
    return done


def _publish_or_resume(
    bench: Context, plan: Plan, by: str, detail: dict[str, str]
) -> PublishResult:
    status = bench.runs.status(plan.run_id)
    if status.state is RunState.PUBLISHING:
        group = publication_group(bench, plan.run_id)
        if group:
            return together.publish_group(bench, group, by, detail)[plan.run_id]
        return _resume_run(bench, plan, status, by, detail)
    if status.state is RunState.PUBLISHED:
        visible = _visible_publication(bench, plan)
        if visible is not None:
            refresh_view(bench, plan.resolved.contract)
            return PublishResult(visible, None, was_published=True)
        # A rollback was cut off after it moved the pointer, before it told the run.
        status = bench.move(status, plan, "roll back", by, reason="its version is not accepted")
        follow_up.require_no_failed_checks(bench, plan, by)
    events = trusted_events(bench, status)
    lifecycle.require_legal_move(status, "begin publishing")
    accepted = check_publishable(bench, plan, events, by)
    status = bench.drive(status, plan, "begin publishing", by, **detail)
    with RenewedLease(bench, status):
        return _publish_accepted(bench, plan, status, events, accepted, by)


def _resume_run(
    bench: Context, plan: Plan, status: RunStatus, by: str, detail: dict[str, str]
) -> PublishResult:
    """Go on with a publication that was cut off; look at the lake before anything is checked."""
    status = bench.drive(status, plan, "begin publishing", by, **detail)
    with RenewedLease(bench, status):
        visible = None if rollout.is_stepwise(plan) else _visible_publication(bench, plan)
        if visible is not None:
            # It was cut off after the pointer moved, before the run's last event.
            finish_publication(bench, plan, status, visible, by)
            return PublishResult(visible, None, was_published=True)
        landed = resume_publication(bench, plan, status)
        if landed is not None and not rollout.is_stepwise(plan):
            finish_publication(bench, plan, status, landed[0], by)
            return PublishResult(*landed, was_published=False)
        try:
            events = trusted_events(bench, status)
            accepted = check_publishable(bench, plan, events, by)
        except REFUSALS as error:
            release_publication(bench, plan, status, by, error)
            raise
        return _publish_accepted(bench, plan, status, events, accepted, by)


def _visible_publication(bench: Context, plan: Plan) -> Publication | None:
    return publications.visible_publication(bench.versions.history(plan.product), plan.run_id)


def _publish_accepted(
    bench: Context,
    plan: Plan,
    status: RunStatus,
    events: tuple[Event, ...],
    accepted: AcceptedResult,
    by: str,
) -> PublishResult:
    """Publish at once, or step by step."""
    if rollout.is_stepwise(plan):
        row, swap = ProgressivePublication(bench, plan, status, events, accepted, by).go_on()
    else:
        wanted = new_publication(bench, plan, events, accepted, by)
        row, swap = reserve_and_expose(bench, plan, status, wanted, accepted)
    finish_publication(bench, plan, status, row, by)
    return PublishResult(row, swap, was_published=False)
