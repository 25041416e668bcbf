"""publish: reserve the version, swap the files in, move the pointer, say so."""

from __future__ import annotations

from lakehouse_backfill.core.approval.decide import trusted_events
from lakehouse_backfill.core.publication import follow_up, together
from lakehouse_backfill.core.publication.exposing import Accepted
from lakehouse_backfill.core.publication.landing import (
    Published,
    draft,
    finish,
    give_back,
    land,
    require_accepted,
    take_up,
)
from lakehouse_backfill.core.publication.moving_together import group_of
from lakehouse_backfill.core.publication.progressive import Rollout
from lakehouse_backfill.core.publication.publishable import check_publishable
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.lease import KeptLease
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.versions import publications, rollout
from lakehouse_backfill.core.versions.reserving import REFUSALS, show_accepted
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, RunStatus, State


def publish(bench: Workbench, run_id: str, by: str, **detail: str) -> Published:
    """Make the accepted result of a run what readers see; a second call changes nothing.

    One that was cut off goes on: what landed is finished, whatever happened since. `detail` is
    written beside the move to publishing.

    Order of side effects: run -> publishing; version reserved; hooks; files swapped in by one
    commit; pointer moved; view shown; evidence; run -> published; checks and hooks after it. A
    conflict releases the version. Raises ApprovalMissing, NotAllowed, TargetChanged, PointerMoved,
    TooBusy, OutcomeUnknown, Blocked (a hook), ChecksFailed (after the publication).
    """
    plan = bench.runs.plan(run_id)
    done = _published(bench, plan, by, detail)
    follow_up.follow_publication(bench, plan, done.publication, by)
    require_accepted(bench, plan, done.publication)
    return done


def _published(bench: Workbench, plan: Plan, by: str, detail: dict[str, str]) -> Published:
    status = bench.runs.status(plan.run_id)
    if status.state is State.PUBLISHING:
        group = group_of(bench, plan.run_id)
        if group:
            return together.go_on(bench, group, by, detail)[plan.run_id]
        return _resume(bench, plan, status, by, detail)
    if status.state is State.PUBLISHED:
        visible = _visible(bench, plan)
        if visible is not None:
            show_accepted(bench, plan.resolved.contract)
            return Published(visible, None, was_published=True)
        # A rollback was cut off after it moved the pointer, before it told the run.
        status = bench.move(status, plan, "roll back", by, reason="its version is not accepted")
        follow_up.require_no_failure(bench, plan, by)
    events = trusted_events(bench, status)
    lifecycle.require_legal(status, "begin publishing")
    accepted = check_publishable(bench, plan, events, by)
    status = bench.drive(status, plan, "begin publishing", by, **detail)
    with KeptLease(bench, status):
        return _publish(bench, plan, status, events, accepted, by)


def _resume(
    bench: Workbench, plan: Plan, status: RunStatus, by: str, detail: dict[str, str]
) -> Published:
    """Go on with a publication that was cut off; look at the lake before anything is checked."""
    status = bench.drive(status, plan, "begin publishing", by, **detail)
    with KeptLease(bench, status):
        visible = None if rollout.is_stepwise(plan) else _visible(bench, plan)
        if visible is not None:
            # It was cut off after the pointer moved, before the run's last event.
            finish(bench, plan, status, visible, by)
            return Published(visible, None, was_published=True)
        landed = take_up(bench, plan, status)
        if landed is not None and not rollout.is_stepwise(plan):
            finish(bench, plan, status, landed[0], by)
            return Published(*landed, was_published=False)
        try:
            events = trusted_events(bench, status)
            accepted = check_publishable(bench, plan, events, by)
        except REFUSALS as error:
            give_back(bench, plan, status, by, error)
            raise
        return _publish(bench, plan, status, events, accepted, by)


def _visible(bench: Workbench, plan: Plan) -> Publication | None:
    return publications.visible(bench.versions.history(plan.product), plan.run_id)


def _publish(
    bench: Workbench,
    plan: Plan,
    status: RunStatus,
    events: tuple[Event, ...],
    accepted: Accepted,
    by: str,
) -> Published:
    """Publish at once, or step by step."""
    if rollout.is_stepwise(plan):
        row, swap = Rollout(bench, plan, status, events, accepted, by).go_on()
    else:
        wanted = draft(bench, plan, events, accepted, by)
        row, swap = land(bench, plan, status, wanted, accepted)
    finish(bench, plan, status, row, by)
    return Published(row, swap, was_published=False)
