"""Publishes one run, or several by one commit: pinned products (U2), or followed ones.

`publish_with_catch_up` follows live commits by revisions; `run_until_decision` stages, validates
and, unless that is manual, publishes a run from any state.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval.decisions import trusted_events
from lakehouse_backfill.core.planning import stages
from lakehouse_backfill.core.planning.inputs.pins import head_snapshot_id
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.publication import catch_up, post_publish
from lakehouse_backfill.core.publication.expose import (
    AcceptedResult,
    preview_result,
)
from lakehouse_backfill.core.publication.groups import pointer_group, table_group
from lakehouse_backfill.core.publication.publication import (
    AcceptedRun,
    DrivenRun,
    PublishOutcome,
    check_publishable,
    require_published_rows_match,
)
from lakehouse_backfill.core.publication.rollback import (
    GROUP_DETAIL,
    is_taken_back,
    publication_group,
    show_and_align,
)
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.context import Context, RenewedLease
from lakehouse_backfill.core.staging.candidates import (
    cancel_and_plan_again,
    require_published_candidates,
)
from lakehouse_backfill.core.versions import correction_topic, pointer, reserve, steps
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.domain.tables.commits import CommitResult


def publish(context: Context, run_id: str, by: str, **detail: str) -> PublishOutcome:
    """Make the accepted result of a run visible to readers; a second call changes nothing.

    An interrupted publication continues, with all runs of its group: a swap that has landed is
    finished, whatever happened since. IllegalMove where it was rolled back since, which is kept.
    `detail` is recorded with the move to publishing.

    Order of side effects: events of earlier acts that a topic lacks; run -> publishing; version
    reserved; hooks; files swapped in by one commit; pointer moved; view refreshed; evidence; run ->
    published; events sent to a topic; checks and hooks after it. A conflict releases the version.
    Raises ApprovalMissing, NotAllowed, TargetChanged, PointerMoved, TooBusy, OutcomeUnknown,
    Blocked (a hook), ChecksFailed (after the publication); SourceDown (the topic).
    """
    group: tuple[str, ...] = ()
    if context.runs.status(run_id).state is RunState.PUBLISHING:
        group = publication_group(context, run_id)
    plans = {each: context.runs.plan(each) for each in group or (run_id,)}
    outcomes = _publish_and_check(context, list(plans.values()), by, group, detail)
    table_group.require_all_published(context, [plans[run_id]], outcomes)
    return outcomes[run_id]


def publish_together(
    context: Context, run_ids: tuple[str, ...], by: str
) -> dict[str, PublishOutcome]:
    """Make the accepted results of several runs visible at once; a second call changes nothing.

    Of pinned products, readers that resolve the pointers together see the old versions of all or
    the new ones, never a mix; of followed products, their tables change by one commit of the
    catalog. Raises Unsupported (products of both kinds, or one named twice; a catalog that takes no
    such commit), PointerMoved, and what `publish` raises before anything is visible.
    """
    plans = [context.runs.plan(run_id) for run_id in dict.fromkeys(run_ids)]
    _require_one_kind(context, plans)
    outcomes = _publish_and_check(context, plans, by, tuple(plan.run_id for plan in plans), {})
    table_group.require_all_published(context, plans, outcomes)
    return outcomes


def _require_one_kind(context: Context, plans: list[Plan]) -> None:
    products = [plan.product for plan in plans]
    if len(set(products)) < len(products):
        raise errors.Unsupported(
            "two of the runs are of the same product", fix="publish one after the other"
        )
    followed = [plan for plan in plans if not publish_modes.is_pinned_product(plan)]
    if followed and len(followed) < len(plans):
        raise errors.Unsupported(
            f"{followed[0].product} is followed, and others of the runs are of pinned products: "
            "tables and pointers change by commits of their own",
            fix="publish those of followed products by one command, and those of pinned products "
            "by another",
        )
    if followed:
        table_group.require_one_commit(context, followed)


def _publish_and_check(
    context: Context, plans: list[Plan], by: str, group: tuple[str, ...], detail: dict[str, Any]
) -> dict[str, PublishOutcome]:
    """Publish runs; then run the checks and hooks of all, and raise the first failure."""
    for plan in plans:
        roles.require_plan_environment(plan, context.profile.environment)
    for product in {plan.product for plan in plans}:
        # A topic gets the events of one act after the other.
        correction_topic.send_pending(context, product)
    if group:
        detail = {GROUP_DETAIL: list(group), **detail}
    with ExitStack() as leases:
        outcomes = _publish_or_resume(_Driver(context, plans, by, detail, leases))
    failed: list[errors.ChecksFailed] = []
    for plan in plans:
        if plan.run_id not in outcomes:
            continue
        row = outcomes[plan.run_id].publication
        try:
            post_publish.run_checks_and_hooks(context, plan, row, by)
            require_published_rows_match(context, plan, row)
        except errors.ChecksFailed as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return outcomes


@dataclass(frozen=True)
class _Driver:
    """Drives one run, or the runs of a group, through a publication."""

    context: Context
    plans: list[Plan]
    by: str
    detail: dict[str, Any]
    leases: ExitStack
    #: The runs of which this process became the driver.
    driven: dict[str, DrivenRun] = field(default_factory=dict)
    #: The runs that were rolled back after they became visible and before they were finished.
    taken_back: list[str] = field(default_factory=list)

    @property
    def is_group(self) -> bool:
        return GROUP_DETAIL in self.detail

    @property
    def is_followed_group(self) -> bool:
        return self.is_group and not publish_modes.is_pinned_product(self.plans[0])

    def drive(self, plan: Plan, status: RunStatus) -> None:
        status = self.context.drive(status, plan, "begin publishing", self.by, **self.detail)
        self.leases.enter_context(RenewedLease(self.context, plan, status))
        self.driven[plan.run_id] = DrivenRun(self.context, plan, status, self.by)

    def take_back(self, plan: Plan, status: RunStatus) -> None:
        """Complete a rollback that crashed after it moved the pointer, of an unfinished run."""
        self.context.require_no_other_driver(status)
        runs, reason = (plan.run_id,), "recovered: the pointer says so"
        show_and_align(self.context, plan.resolved.contract, runs, (), self.by, reason)
        self.taken_back.append(plan.run_id)

    def require_interrupted(self) -> None:
        """Raise IllegalMove when all that was interrupted had been rolled back."""
        if self.taken_back and not self.driven:
            run_id = self.taken_back[0]
            raise errors.IllegalMove(
                f"{run_id} was rolled back before its publication was finished",
                state="nothing was published; its state is rolled_back now",
                fix=f"lakehouse-backfill publish {run_id}, if readers are to see it again",
            )

    def visible(self, plan: Plan, status: RunStatus) -> Publication | None:
        """Return the publication of a run that readers see as a whole."""
        is_whole = status.state is RunState.PUBLISHED or (
            status.state is RunState.PUBLISHING and not steps.is_stepwise(plan)
        )
        if not (is_whole or self.is_group):
            return None
        return pointer.visible_publication(self.context.versions.history(plan.product), plan.run_id)

    def accept(self, plans: list[Plan]) -> list[AcceptedRun]:
        """Check all runs before the first of them is driven; a refusal releases the driven ones."""
        context = self.context
        checked: list[tuple[tuple[Event, ...], AcceptedResult]] = []
        try:
            for plan in plans:
                run = self.driven.get(plan.run_id)
                status = run.status if run else context.runs.status(plan.run_id)
                events = trusted_events(context, status)
                if not self.is_group:  # in a group, the checks name the run that is not ready
                    lifecycle.require_legal_move(status, "begin publishing")
                require_published_candidates(context, plan, self.detail.get(GROUP_DETAIL, ()))
                checked.append((events, check_publishable(context, plan, events, self.by)))
            for plan in plans:
                if plan.run_id not in self.driven:
                    self.drive(plan, context.runs.status(plan.run_id))
        except (*reserve.REFUSALS, errors.IllegalMove) as error:
            self.release(error)
            for plan in plans:
                history = context.versions.history(plan.product)
                if steps.is_stepwise(plan) and steps.visible_partitions(history, plan.run_id):
                    error.state = steps.describe_visible_partitions(history, plan)
            raise
        return [
            AcceptedRun(context, plan, self.driven[plan.run_id].status, self.by, *result)
            for plan, result in zip(plans, checked, strict=True)
        ]

    def release(self, error: errors.BackfillError) -> None:
        for plan in self.plans:
            if plan.run_id in self.driven:
                self.driven[plan.run_id].release(error)

    def finish(self, run: DrivenRun, row: Publication) -> None:
        """Finish a run; what is refused later does not concern it any more."""
        run.finish(row)
        del self.driven[run.plan.run_id]

    def release_unless_landed(self, error: errors.BackfillError) -> None:
        """Release the runs of a followed group; those whose tables have the new files finish.

        A catalog whose commit of several tables is not atomic may have taken a part of it.
        """
        landed = []
        for plan in self.plans:
            run = self.driven.get(plan.run_id)
            done = run.resume() if run else None
            if run and done:
                self.finish(run, done[0])
                landed.append(plan.product)
            elif run:
                run.release(error)
        if landed:
            error.state = f"readers see the new rows of {', '.join(landed)}, and of no other"


def _publish_or_resume(driver: _Driver) -> dict[str, PublishOutcome]:
    """Publish the runs, or finish them where the lake says that they are visible."""
    visible = _take_up(driver)
    driver.require_interrupted()
    if driver.is_followed_group:
        return _publish_or_resume_followed(driver, visible)
    # All pointers of a group moved by one commit: what is hidden was decided since.
    has_moved = bool(driver.driven) and driver.driven.keys() <= visible.keys()
    if len(visible) < len(driver.plans) and not has_moved:
        return _finish_landed(driver) or _publish_accepted(driver)
    return _finish_visible(driver, visible)


def _finish_visible(driver: _Driver, visible: dict[str, Publication]) -> dict[str, PublishOutcome]:
    """Finish the runs whose pointer has moved already."""
    for plan in driver.plans:
        row, run = visible.get(plan.run_id), driver.driven.get(plan.run_id)
        if row is not None and run is not None:
            # It crashed after the pointer moved and before the run's last event.
            run.require_vouched(row)
            driver.finish(run, row)
        elif row is not None:
            reserve.refresh_view(driver.context, plan.resolved.contract)
    return {
        run_id: PublishOutcome(row, None, was_published=True) for run_id, row in visible.items()
    }


def _publish_or_resume_followed(
    driver: _Driver, visible: dict[str, Publication]
) -> dict[str, PublishOutcome]:
    """Finish the runs of a group that have landed; swap in the files of the others together."""
    landed, begun = dict[str, PublishOutcome](), dict(driver.driven)
    for run_id, run in begun.items():
        done = None if run_id in visible else run.resume()
        if done is not None:
            driver.finish(run, done[0])
            landed[run_id] = PublishOutcome(*done, was_published=False)
    left = [plan for plan in driver.plans if plan.run_id not in (*visible, *landed)]
    if not begun:
        left = driver.plans if left else []  # Nothing was interrupted: all of them, or none.
    elif visible or landed or driver.taken_back:
        # The commit was made: what is not interrupted was decided since, e.g. rolled back.
        left = [plan for plan in left if plan.run_id in begun]
    finished = _finish_visible(driver, visible) | landed
    if not left:
        return finished
    runs = driver.accept(left)
    published = table_group.swap_together(driver.context, runs, driver.release_unless_landed)
    return finished | _finish_published(runs, published)


def _take_up(driver: _Driver) -> dict[str, Publication]:
    """Drive the interrupted runs, and return the publications that readers see."""
    context, visible = driver.context, dict[str, Publication]()
    table_group.require_same_group(context, driver.plans)
    for plan in driver.plans:
        status = context.runs.status(plan.run_id)
        if status.state is RunState.PUBLISHING:
            if is_taken_back(context, status):
                driver.take_back(plan, status)
                continue
            driver.drive(plan, status)
        row = driver.visible(plan, status)
        if row is not None:
            visible[plan.run_id] = row
        elif status.state is RunState.PUBLISHED:
            # A rollback crashed after it moved the pointer and before it moved the run.
            reason = "its version is not accepted"
            context.move(status, plan, "roll back", driver.by, reason=reason)
            post_publish.require_no_failed_checks(context, plan, driver.by)
    return visible


def _finish_landed(driver: _Driver) -> dict[str, PublishOutcome]:
    """Finish a run whose swap has landed; empty when none has, or when steps remain."""
    for run in driver.driven.values():
        landed = run.resume()
        if landed and not steps.is_stepwise(run.plan):
            run.finish(landed[0])
            return {run.plan.run_id: PublishOutcome(*landed, was_published=False)}
    return {}


def _publish_accepted(driver: _Driver) -> dict[str, PublishOutcome]:
    """Publish all runs by one move of their pointers; or one run at once, or step by step."""
    from lakehouse_backfill.core.publication.progressive import publish_in_steps

    runs = driver.accept(driver.plans)
    published: list[tuple[Publication, CommitResult | None]]
    if driver.is_group:
        try:
            published = [(row, None) for row in pointer_group.move_pointers(driver.context, runs)]
        except reserve.REFUSALS as error:
            driver.release(error)
            raise
    elif steps.is_stepwise(runs[0].plan):
        published = [publish_in_steps(runs[0])]
    else:
        published = [runs[0].reserve_and_expose(runs[0].draft())]
    return _finish_published(runs, published)


def _finish_published(
    runs: list[AcceptedRun], published: Sequence[tuple[Publication, CommitResult | None]]
) -> dict[str, PublishOutcome]:
    for run, (row, _) in zip(runs, published, strict=True):
        run.finish(row)
    return {
        run.plan.run_id: PublishOutcome(row, swap, was_published=False)
        for run, (row, swap) in zip(runs, published, strict=True)
    }


def publish_with_catch_up(context: Context, run_id: str, by: str) -> PublishOutcome:
    """Publish a run; follow live commits by revisions where manifest and contract allow it.

    A run of a cascade is not followed: the others were computed from its result, not a revision's.
    Raises what `publish` does; TargetChanged with the commits in `data`, TooBusy after the declared
    attempts, ApprovalMissing when a person must review the revision's result.
    """
    run_id = catch_up.newest_revision(context, run_id)
    while True:
        plan = context.runs.plan(run_id)
        if plan.resolved.catch_up is not None:
            catch_up.bring_to_accepted(context, plan, by)
        try:
            return publish(context, run_id, by)
        except errors.TargetChanged as error:
            _raise_unless_followed(plan, error)
            if publication_group(context, run_id):
                raise  # The commit may be one to another product's table.
            run_id = catch_up.plan_catch_up(context, plan, error, by).run_id


def _raise_unless_followed(plan: Plan, error: errors.TargetChanged) -> None:
    if plan.cascade is not None:
        error.fix = cancel_and_plan_again(plan.cascade.cascade_id)
        raise error
    if publish_modes.is_pinned_product(plan) or steps.is_stepwise(plan):
        raise error


def preview_publication(context: Context, run_id: str, by: str) -> Plan:
    """Raise what `publish_with_catch_up` raises before it commits; return the plan it publishes.

    Nothing is changed, no hook is called and no JVM started. Live commits that would be followed
    raise nothing. Of a run that is published, or half, only its decisions are checked.
    """
    run_id = catch_up.newest_revision(context, run_id)
    plan, status = context.runs.plan(run_id), context.runs.status(run_id)
    if status.state is not RunState.PUBLISHED:
        lifecycle.require_legal_move(status, "begin publishing")
        require_published_candidates(context, plan)
    events = trusted_events(context, status)
    accepted = check_publishable(context, plan, events, by)
    if status.state not in (RunState.ACCEPTED, RunState.ROLLED_BACK):
        return plan
    if publish_modes.is_pinned_product(plan):
        base, head = plan.resolved.target, head_snapshot_id(context, plan.resolved.contract.table)
        draft = AcceptedRun(context, plan, status, by, events, accepted).draft()
        current = context.versions.pointer(plan.product)
        pointer.require_pinned_base(current, draft, head, (base.table, base.snapshot_id))
        return plan
    try:
        preview_result(context, plan, accepted)
    except errors.TargetChanged as error:
        _raise_unless_followed(plan, error)
        catch_up.require_followable(context, plan, error)
    return plan


def finished_publication(context: Context, plan: Plan) -> Publication | None:
    """Return the publication of a published run that readers see: `publish` changes nothing."""
    if context.runs.status(plan.run_id).state is not RunState.PUBLISHED:
        return None
    return pointer.visible_publication(context.versions.history(plan.product), plan.run_id)


def run_until_decision(context: Context, run_id: str, by: str) -> dict[str, Any]:
    """Run the next steps that need no decision of a person; finished work is not repeated.

    A run that waits for a person after that (validated, rejected, accepted with manual publish) is
    left as it is: its next stage in the plan is a person's. Raises ApprovalMissing before the
    intent is approved and after a person rejected it, IllegalMove when the run is closed, and what
    the steps raise.
    """
    run_id = catch_up.newest_revision(context, run_id)
    status = catch_up.carry_over_approval(context, context.runs.plan(run_id), by)
    if status.state is RunState.PLANNED:
        raise errors.ApprovalMissing(
            f"{run_id} is not approved, so nothing was computed",
            fix=f"lakehouse-backfill approve {run_id}",
        )
    if status.state is RunState.REJECTED:
        # Rejected by gates: staged again. Rejected by a person: only a revision may continue.
        roles.require_approval(trusted_events(context, status), context.runs.plan(run_id))
    if status.state in catch_up.CLOSED_STATES:
        lifecycle.require_legal_move(status, "begin staging")
    status, done = catch_up.stage_and_validate(context, status, by)
    plan = context.runs.plan(run_id)
    status = catch_up.carry_over_acceptance(context, plan, by)
    stage = stages.next_stage(plan, status.state)
    if stage is not None and stage.phase == "publication" and stage.by == "toolkit":
        run_id = str(publish_with_catch_up(context, run_id, by).publication.run_id)
        status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    return {
        "run_id": run_id,
        "state": status.state.value,
        "chunks_done": 0,
        "chunks_redone": 0,
        "rows": 0,
        **done,
        "product": plan.product,
        "manifest_file": plan.manifest_file,
    }
