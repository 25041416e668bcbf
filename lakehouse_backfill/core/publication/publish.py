"""Publishes one run, or several pinned products by one commit of the pointer table (U2).

`publish_with_catch_up` follows live commits by revisions; `run_until_decision` stages, validates
and, unless that is manual, publishes a run from any state.

A group reserves no version: that commit is its only side effect that readers see. After a crash the
runs stay in state publishing. A retry publishes all of them, or finds that all are visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.core.approval.decisions import trusted_events
from lakehouse_backfill.core.planning import publish_modes
from lakehouse_backfill.core.planning.pins import head_snapshot_id
from lakehouse_backfill.core.publication import catch_up, post_publish
from lakehouse_backfill.core.publication.expose import (
    AcceptedResult,
    expose_result,
    release_publication,
    reserve_and_expose,
    resume_publication,
)
from lakehouse_backfill.core.publication.progressive import ProgressivePublication
from lakehouse_backfill.core.publication.publication import (
    PublishOutcome,
    check_publishable,
    finish_publication,
    new_publication,
    require_published_rows_match,
)
from lakehouse_backfill.core.publication.rollback import (
    GROUP_DETAIL,
    publication_group,
    when_pointers_are_free,
)
from lakehouse_backfill.core.runs import hooks, lifecycle, roles
from lakehouse_backfill.core.runs.context import Context, RenewedLease
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.core.versions import steps
from lakehouse_backfill.core.versions.pointer import (
    baseline_publication,
    require_pinned_base,
    visible_publication,
)
from lakehouse_backfill.core.versions.reserve import REFUSALS, refresh_view
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.errors import (
    ApprovalMissing,
    BackfillError,
    ChecksFailed,
    PointerMoved,
    TargetChanged,
    Unsupported,
)


@dataclass(frozen=True)
class _GroupMember:
    """One run of the group, and its accepted result (None: readers see it already)."""

    plan: Plan
    status: RunStatus
    accepted: AcceptedResult | None = None


def publish_together(
    context: Context, run_ids: tuple[str, ...], by: str
) -> dict[str, PublishOutcome]:
    """Make the accepted results of several runs visible at once; a second call changes nothing.

    Readers that resolve the pointers together see the old versions of all these products or the new
    ones, never a mix. Raises Unsupported (a product that is not pinned, or named twice),
    PointerMoved, and what `publish` raises before the pointers move; then nothing has become
    visible.
    """
    plans = [context.runs.plan(run_id) for run_id in dict.fromkeys(run_ids)]
    _require_pinned_products(plans)
    return publish_group(context, tuple(plan.run_id for plan in plans), by, {})


def publish_group(
    context: Context, group: tuple[str, ...], by: str, detail: dict[str, str]
) -> dict[str, PublishOutcome]:
    """Publish a group, or finish an interrupted one: all its runs are visible, or none is."""
    plans = [context.runs.plan(run_id) for run_id in group]
    rows = _visible_publications(context, plans)
    if len(rows) == len(plans):
        for plan in plans:
            _finish_visible_run(context, plan, rows[plan.run_id], by, detail)
        _run_group_checks(context, plans, rows, by)
        return {
            run_id: PublishOutcome(row, None, was_published=True) for run_id, row in rows.items()
        }
    try:
        accepted = [_check_group_run(context, plan, by) for plan in plans]
    except REFUSALS as error:
        for plan in plans:
            _release_group_run(context, plan, by, error)
        raise
    with _drive_group(
        context, plans, accepted, by, {GROUP_DETAIL: list(group), **detail}
    ) as members:
        for member in members:
            act_id, epoch = hooks.group_act_id(context, member.plan), member.status.epoch
            hooks.require_hooks(context, member.plan, "before_publish", act_id, epoch)
        rows = _move_pointers(context, members, by)
        for member in members:
            finish_publication(context, member.plan, member.status, rows[member.plan.run_id], by)
    _run_group_checks(context, plans, rows, by)
    return {run_id: PublishOutcome(row, None, was_published=False) for run_id, row in rows.items()}


def _require_pinned_products(plans: list[Plan]) -> None:
    for plan in plans:
        if not publish_modes.is_pinned_product(plan):
            raise Unsupported(
                f"{plan.product} is followed: its table is restated by a commit of its own, so it "
                "cannot become visible together with others",
                fix=f"lakehouse-backfill publish {plan.run_id}; only pinned products move together",
            )
    products = [plan.product for plan in plans]
    if len(set(products)) < len(products):
        raise Unsupported(
            "two of the runs are of the same product", fix="publish one after the other"
        )


def _visible_publications(context: Context, plans: list[Plan]) -> dict[str, Publication]:
    rows = {
        plan.run_id: visible_publication(context.versions.history(plan.product), plan.run_id)
        for plan in plans
    }
    return {run_id: row for run_id, row in rows.items() if row is not None}


def _finish_visible_run(
    context: Context, plan: Plan, row: Publication, by: str, detail: dict[str, str]
) -> None:
    """Finish a visible run that crashed after the pointers moved; others stay as they are."""
    status = context.runs.status(plan.run_id)
    if status.state is RunState.PUBLISHING:
        status = context.drive(status, plan, "begin publishing", by, **detail)
        finish_publication(context, plan, status, row, by)


def _run_group_checks(
    context: Context, plans: list[Plan], rows: dict[str, Publication], by: str
) -> None:
    """Run the checks and hooks of all runs, also after a failure; raise the first failure."""
    failed: list[ChecksFailed] = []
    for plan in plans:
        try:
            post_publish.run_checks_and_hooks(context, plan, rows[plan.run_id], by)
            require_published_rows_match(context, plan, rows[plan.run_id])
        except ChecksFailed as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _check_group_run(context: Context, plan: Plan, by: str) -> AcceptedResult:
    status = context.runs.status(plan.run_id)
    return check_publishable(context, plan, trusted_events(context, status), by)


def _release_group_run(context: Context, plan: Plan, by: str, error: BackfillError) -> None:
    status = context.runs.status(plan.run_id)
    if status.state is RunState.PUBLISHING:
        act_id = hooks.group_act_id(context, plan)
        hooks.notify_released(context, plan, act_id, status.epoch, error.problem)
        context.overtake(status, plan, "release", by, problem=error.problem)


@contextmanager
def _drive_group(
    context: Context,
    plans: list[Plan],
    accepted: list[AcceptedResult],
    by: str,
    detail: dict[str, object],
) -> Iterator[list[_GroupMember]]:
    """Drive all runs of the group; a refusal inside the block releases all of them."""
    members: list[_GroupMember] = []
    with ExitStack() as leases:
        try:
            for plan, result in zip(plans, accepted, strict=True):
                status = context.runs.status(plan.run_id)
                status = context.drive(status, plan, "begin publishing", by, **detail)
                leases.enter_context(RenewedLease(context, status))
                members.append(_GroupMember(plan, status, result))
            yield members
        except REFUSALS as error:
            for member in members:
                status, plan, problem = member.status, member.plan, error.problem
                act_id = hooks.group_act_id(context, plan)
                hooks.notify_released(context, plan, act_id, status.epoch, problem)
                context.move(status, plan, "release", by, problem=problem)
            raise


def _move_pointers(
    context: Context, members: list[_GroupMember], by: str
) -> dict[str, Publication]:
    """Keep the shadows' snapshots, and move all pointers in one commit."""
    rows = {member.plan.run_id: _pointer_row(context, member, by) for member in members}
    heads = {
        m.plan.product: head_snapshot_id(context, m.plan.resolved.contract.table) for m in members
    }

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        new_rows: list[Publication] = []
        for member in members:
            row, plan = rows[member.plan.run_id], member.plan
            pointer, target = pointers[plan.product], plan.resolved.target
            if pointer.accepted is not None and pointer.accepted.token == row.token:
                continue
            head, own = heads[plan.product], row.model_copy(update={"table": target.table})
            require_pinned_base(pointer, own, head, (target.table, target.snapshot_id))
            if pointer.accepted is None:
                new_rows.append(baseline_publication(own, head, row.scope, row.at))
            _require_next_version(pointer, row)
            current = pointer.accepted.version if pointer.accepted else 0
            new_rows.append(row.model_copy(update={"supersedes": current}))
        return tuple(new_rows)

    moved = when_pointers_are_free(context, tuple(heads), decide)
    accepted = {m.plan.run_id: moved[m.plan.product].accepted for m in members}
    return {run_id: row or rows[run_id] for run_id, row in accepted.items()}


def _require_next_version(pointer: Pointer, row: Publication) -> None:
    """Raise PointerMoved when the version number of the row was taken meanwhile.

    The tags and tables that were kept for the version carry its number.
    """
    if pointer.last_version + 1 != row.version:
        raise PointerMoved(
            f"{row.product}: version {row.version} was taken meanwhile",
            state="nothing was published",
            fix="repeat the same command",
        )


def _pointer_row(context: Context, member: _GroupMember, by: str) -> Publication:
    plan, accepted = member.plan, member.accepted
    if accepted is None:
        raise ValueError(f"{plan.run_id} was not checked")
    events = context.runs.events(plan.run_id)
    row = new_publication(context, plan, events, accepted, by)
    version = context.versions.pointer(plan.product).last_version + 1
    row = row.model_copy(
        update={"version": version, "epoch": member.status.epoch, "driver": context.driver}
    )
    swap = expose_result(context, plan, row, accepted)
    return row.model_copy(
        update={
            "action": "publish",
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
        }
    )


def publish(context: Context, run_id: str, by: str, **detail: str) -> PublishOutcome:
    """Make the accepted result of a run visible to readers; a second call changes nothing.

    An interrupted publication continues: a swap that has landed is finished, whatever happened
    since. `detail` is recorded with the move to publishing.

    Order of side effects: run -> publishing; version reserved; hooks; files swapped in by one
    commit; pointer moved; view refreshed; evidence; run -> published; checks and hooks after it. A
    conflict releases the version. Raises ApprovalMissing, NotAllowed, TargetChanged, PointerMoved,
    TooBusy, OutcomeUnknown, Blocked (a hook), ChecksFailed (after the publication).
    """
    plan = context.runs.plan(run_id)
    result = _publish_or_resume(context, plan, by, detail)
    post_publish.run_checks_and_hooks(context, plan, result.publication, by)
    require_published_rows_match(context, plan, result.publication)
    return result


def _publish_or_resume(
    context: Context, plan: Plan, by: str, detail: dict[str, str]
) -> PublishOutcome:
    status = context.runs.status(plan.run_id)
    if status.state is RunState.PUBLISHING:
        group = publication_group(context, plan.run_id)
        if group:
            return publish_group(context, group, by, detail)[plan.run_id]
        return _resume_run(context, plan, status, by, detail)
    if status.state is RunState.PUBLISHED:
        visible = _visible_publication(context, plan)
        if visible is not None:
            refresh_view(context, plan.resolved.contract)
            return PublishOutcome(visible, None, was_published=True)
        # A rollback crashed after it moved the pointer and before it moved the run.
        status = context.move(status, plan, "roll back", by, reason="its version is not accepted")
        post_publish.require_no_failed_checks(context, plan, by)
    events = trusted_events(context, status)
    lifecycle.require_legal_move(status, "begin publishing")
    accepted = check_publishable(context, plan, events, by)
    status = context.drive(status, plan, "begin publishing", by, **detail)
    with RenewedLease(context, status):
        return _publish_accepted(context, plan, status, events, accepted, by)


def _resume_run(
    context: Context, plan: Plan, status: RunStatus, by: str, detail: dict[str, str]
) -> PublishOutcome:
    """Continue an interrupted publication; inspect the lake before anything is checked."""
    status = context.drive(status, plan, "begin publishing", by, **detail)
    with RenewedLease(context, status):
        visible = None if steps.is_stepwise(plan) else _visible_publication(context, plan)
        if visible is not None:
            # It crashed after the pointer moved and before the run's last event.
            finish_publication(context, plan, status, visible, by)
            return PublishOutcome(visible, None, was_published=True)
        landed = resume_publication(context, plan, status)
        if landed is not None and not steps.is_stepwise(plan):
            finish_publication(context, plan, status, landed[0], by)
            return PublishOutcome(*landed, was_published=False)
        try:
            events = trusted_events(context, status)
            accepted = check_publishable(context, plan, events, by)
        except REFUSALS as error:
            release_publication(context, plan, status, by, error)
            raise
        return _publish_accepted(context, plan, status, events, accepted, by)


def _visible_publication(context: Context, plan: Plan) -> Publication | None:
    return visible_publication(context.versions.history(plan.product), plan.run_id)


def _publish_accepted(
    context: Context,
    plan: Plan,
    status: RunStatus,
    events: tuple[Event, ...],
    accepted: AcceptedResult,
    by: str,
) -> PublishOutcome:
    """Publish at once, or step by step."""
    if steps.is_stepwise(plan):
        row, swap = ProgressivePublication(
            context, plan, status, events, accepted, by
        ).publish_remaining_steps()
    else:
        draft = new_publication(context, plan, events, accepted, by)
        row, swap = reserve_and_expose(context, plan, status, draft, accepted)
    finish_publication(context, plan, status, row, by)
    return PublishOutcome(row, swap, was_published=False)


def publish_with_catch_up(context: Context, run_id: str, by: str) -> PublishOutcome:
    """Publish a run; follow live commits by revisions where manifest and contract allow it.

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
        except TargetChanged as error:
            if publish_modes.is_pinned_product(plan) or steps.is_stepwise(plan):
                raise
            run_id = catch_up.plan_catch_up(context, plan, error, by).run_id


def run_until_decision(context: Context, run_id: str, by: str) -> dict[str, Any]:
    """Run the next steps that need no decision of a person; finished work is not repeated.

    A run that waits for a person after that (validated, rejected, accepted with manual publish) is
    left as it is. Raises ApprovalMissing before the intent is approved and after a person rejected
    it, IllegalMove when the run is closed, and what the steps raise.
    """
    progress: dict[str, Any] = {"chunks_done": 0, "chunks_redone": 0, "rows": 0}
    run_id = catch_up.newest_revision(context, run_id)
    status = catch_up.carry_over_approval(context, context.runs.plan(run_id), by)
    if status.state is RunState.PLANNED:
        raise ApprovalMissing(
            f"{run_id} is not approved, so nothing was computed",
            state="nothing was changed",
            fix=f"lakehouse-backfill approve {run_id} --by WHO",
        )
    if status.state is RunState.REJECTED:
        # Rejected by gates: staged again. Rejected by a person: only a revision may continue.
        roles.require_approval(trusted_events(context, status), context.runs.plan(run_id))
    if status.state in catch_up.CLOSED_STATES:
        lifecycle.require_legal_move(status, "begin staging")
    if status.state in catch_up.STAGEABLE_STATES:
        _, numbers = stage(context, run_id, by)
        progress |= numbers
        # No process holds the lease between two steps: another one may have moved the run.
        status = context.runs.status(run_id)
    if status.state is RunState.STAGED:
        status, result, _ = validate(context, run_id, by)
        progress["checks"] = result.checks
    plan = context.runs.plan(run_id)
    status = catch_up.carry_over_acceptance(context, plan, by)
    manual = plan.resolved.manifest.safety.manual_publish
    if status.state is RunState.PUBLISHING or (status.state is RunState.ACCEPTED and not manual):
        run_id = str(publish_with_catch_up(context, run_id, by).publication.run_id)
        status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    progress |= {"product": plan.product, "manifest_file": plan.manifest_file}
    return {"run_id": run_id, "state": status.state.value, **progress}
