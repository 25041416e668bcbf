"""Publish one run, or several pinned products by one commit.

Several pinned products become visible, or go back, by one commit of the pointer table (U2).

Nothing has to be reserved: that commit is the only side effect that readers see. A process that
dies leaves the runs publishing; whoever goes on publishes all, or finds that all are visible.

publish: reserve the version, swap the files in, move the pointer, say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lakehouse_backfill.core.approval.decisions import trusted_events
from lakehouse_backfill.core.planning import publish_modes
from lakehouse_backfill.core.planning.pins import head_snapshot_id
from lakehouse_backfill.core.publication import post_publish
from lakehouse_backfill.core.publication.expose import AcceptedResult, expose_result
from lakehouse_backfill.core.publication.progressive import ProgressivePublication
from lakehouse_backfill.core.publication.publication import (
    PublishResult,
    check_publishable,
    finish_publication,
    new_publication,
    release_publication,
    require_published_rows_match,
    reserve_and_expose,
    resume_publication,
)
from lakehouse_backfill.core.publication.rollback import (
    GROUP_DETAIL,
    publication_group,
    when_pointers_are_free,
)
from lakehouse_backfill.core.runs import hooks, lifecycle
from lakehouse_backfill.core.runs.context import Context, RenewedLease
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
from lakehouse_backfill.errors import BackfillError, ChecksFailed, PointerMoved, Unsupported


@dataclass(frozen=True)
class _GroupMember:
    """One run of the group, and what of it was accepted (None: readers see it already)."""

    plan: Plan
    status: RunStatus
    accepted: AcceptedResult | None = None


def publish_together(bench: Context, run_ids: tuple[str, ...], by: str) -> dict[str, PublishResult]:
    """Make the accepted results of several runs visible at once; a second call changes nothing.

    Readers of all these products see the old or the new versions, never some of each, when they
    resolve the pointers together. Raises Unsupported (a product that is not pinned, or twice),
    PointerMoved, and what `publish` raises; then nothing has become visible.
    """
    plans = [bench.runs.plan(run_id) for run_id in dict.fromkeys(run_ids)]
    _require_pinned_products(plans)
    return publish_group(bench, tuple(plan.run_id for plan in plans), by, {})


def publish_group(
    bench: Context, group: tuple[str, ...], by: str, detail: dict[str, str]
) -> dict[str, PublishResult]:
    """Publish a group, or finish it: of one that was cut off all are visible, or none is."""
    plans = [bench.runs.plan(run_id) for run_id in group]
    rows = _visible_publications(bench, plans)
    if len(rows) == len(plans):
        for plan in plans:
            _finish_visible_run(bench, plan, rows[plan.run_id], by, detail)
        _run_group_checks(bench, plans, rows, by)
        return {
            run_id: PublishResult(row, None, was_published=True) for run_id, row in rows.items()
        }
    try:
        accepted = [_check_group_run(bench, plan, by) for plan in plans]
    except REFUSALS as error:
        for plan in plans:
            _release_group_run(bench, plan, by, error)
        raise
    with _drive_group(bench, plans, accepted, by, {GROUP_DETAIL: list(group), **detail}) as members:
        for member in members:
            act, epoch = hooks.group_act_id(bench, member.plan), member.status.epoch
            hooks.require_hooks(bench, member.plan, "before_publish", act, epoch)
        rows = _move_pointers(bench, members, by)
        for member in members:
            finish_publication(bench, member.plan, member.status, rows[member.plan.run_id], by)
    _run_group_checks(bench, plans, rows, by)
    return {run_id: PublishResult(row, None, was_published=False) for run_id, row in rows.items()}


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


def _visible_publications(bench: Context, plans: list[Plan]) -> dict[str, Publication]:
    found = {
        plan.run_id: visible_publication(bench.versions.history(plan.product), plan.run_id)
        for plan in plans
    }
    return {run_id: row for run_id, row in found.items() if row is not None}


def _finish_visible_run(
    bench: Context, plan: Plan, row: Publication, by: str, detail: dict[str, str]
) -> None:
    """Finish a run that readers see: it was cut off after the pointers moved, or told before."""
    status = bench.runs.status(plan.run_id)
    if status.state is RunState.PUBLISHING:
        status = bench.drive(status, plan, "begin publishing", by, **detail)
        finish_publication(bench, plan, status, row, by)


def _run_group_checks(
    bench: Context, plans: list[Plan], rows: dict[str, Publication], by: str
) -> None:
    """Check and tell after all of them, also when a check of one fails; raises the first."""
    failed: list[ChecksFailed] = []
    for plan in plans:
        try:
            post_publish.run_checks_and_hooks(bench, plan, rows[plan.run_id], by)
            require_published_rows_match(bench, plan, rows[plan.run_id])
        except ChecksFailed as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _check_group_run(bench: Context, plan: Plan, by: str) -> AcceptedResult:
    status = bench.runs.status(plan.run_id)
    return check_publishable(bench, plan, trusted_events(bench, status), by)


def _release_group_run(bench: Context, plan: Plan, by: str, error: BackfillError) -> None:
    status = bench.runs.status(plan.run_id)
    if status.state is RunState.PUBLISHING:
        act = hooks.group_act_id(bench, plan)
        hooks.notify_released(bench, plan, act, status.epoch, error.problem)
        bench.overtake(status, plan, "release", by, problem=error.problem)


@contextmanager
def _drive_group(
    bench: Context,
    plans: list[Plan],
    accepted: list[AcceptedResult],
    by: str,
    detail: dict[str, object],
) -> Iterator[list[_GroupMember]]:
    """Drive all runs of the group; what is refused inside gives all of them back."""
    members: list[_GroupMember] = []
    with ExitStack() as leases:
        try:
            for plan, found in zip(plans, accepted, strict=True):
                status = bench.runs.status(plan.run_id)
                status = bench.drive(status, plan, "begin publishing", by, **detail)
                leases.enter_context(RenewedLease(bench, status))
                members.append(_GroupMember(plan, status, found))
            yield members
        except REFUSALS as error:
            for member in members:
                status, plan, problem = member.status, member.plan, error.problem
                act = hooks.group_act_id(bench, plan)
                hooks.notify_released(bench, plan, act, status.epoch, problem)
                bench.move(status, plan, "release", by, problem=problem)
            raise


def _move_pointers(bench: Context, members: list[_GroupMember], by: str) -> dict[str, Publication]:
    """Keep the shadows' snapshots, and move all pointers in one commit."""
    rows = {member.plan.run_id: _pointer_row(bench, member, by) for member in members}
    heads = {
        m.plan.product: head_snapshot_id(bench, m.plan.resolved.contract.table) for m in members
    }

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        found: list[Publication] = []
        for member in members:
            row, plan = rows[member.plan.run_id], member.plan
            pointer, target = pointers[plan.product], plan.resolved.target
            if pointer.accepted is not None and pointer.accepted.token == row.token:
                continue
            head, own = heads[plan.product], row.model_copy(update={"table": target.table})
            require_pinned_base(pointer, own, head, (target.table, target.snapshot_id))
            if pointer.accepted is None:
                found.append(baseline_publication(own, head, row.scope, row.at))
            _require_next_version(pointer, row)
            current = pointer.accepted.version if pointer.accepted else 0
            found.append(row.model_copy(update={"supersedes": current}))
        return tuple(found)

    moved = when_pointers_are_free(bench, tuple(heads), decide)
    accepted = {m.plan.run_id: moved[m.plan.product].accepted for m in members}
    return {run_id: row or rows[run_id] for run_id, row in accepted.items()}


def _require_next_version(pointer: Pointer, row: Publication) -> None:
    """What was kept for the version bears its number: another one needs to be kept anew."""
    if pointer.last_version + 1 != row.version:
        raise PointerMoved(
            f"{row.product}: version {row.version} was taken meanwhile",
            state="nothing was published",
            fix="repeat the same command",
        )


def _pointer_row(bench: Context, member: _GroupMember, by: str) -> Publication:
    plan, accepted = member.plan, member.accepted
    if accepted is None:
        raise ValueError(f"{plan.run_id} was not checked")
    events = bench.runs.events(plan.run_id)
    row = new_publication(bench, plan, events, accepted, by)
    version = bench.versions.pointer(plan.product).last_version + 1
    row = row.model_copy(
        update={"version": version, "epoch": member.status.epoch, "driver": bench.driver}
    )
    swap = expose_result(bench, plan, row, accepted)
    return row.model_copy(
        update={
            "action": "publish",
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
        }
    )


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
    post_publish.run_checks_and_hooks(bench, plan, done.publication, by)
    require_published_rows_match(bench, plan, done.publication)
    return done


def _publish_or_resume(
    bench: Context, plan: Plan, by: str, detail: dict[str, str]
) -> PublishResult:
    status = bench.runs.status(plan.run_id)
    if status.state is RunState.PUBLISHING:
        group = publication_group(bench, plan.run_id)
        if group:
            return publish_group(bench, group, by, detail)[plan.run_id]
        return _resume_run(bench, plan, status, by, detail)
    if status.state is RunState.PUBLISHED:
        visible = _visible_publication(bench, plan)
        if visible is not None:
            refresh_view(bench, plan.resolved.contract)
            return PublishResult(visible, None, was_published=True)
        # A rollback was cut off after it moved the pointer, before it told the run.
        status = bench.move(status, plan, "roll back", by, reason="its version is not accepted")
        post_publish.require_no_failed_checks(bench, plan, by)
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
        visible = None if steps.is_stepwise(plan) else _visible_publication(bench, plan)
        if visible is not None:
            # It was cut off after the pointer moved, before the run's last event.
            finish_publication(bench, plan, status, visible, by)
            return PublishResult(visible, None, was_published=True)
        landed = resume_publication(bench, plan, status)
        if landed is not None and not steps.is_stepwise(plan):
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
    return visible_publication(bench.versions.history(plan.product), plan.run_id)


def _publish_accepted(
    bench: Context,
    plan: Plan,
    status: RunStatus,
    events: tuple[Event, ...],
    accepted: AcceptedResult,
    by: str,
) -> PublishResult:
    """Publish at once, or step by step."""
    if steps.is_stepwise(plan):
        row, swap = ProgressivePublication(bench, plan, status, events, accepted, by).publish_remaining_steps()
    else:
        wanted = new_publication(bench, plan, events, accepted, by)
        row, swap = reserve_and_expose(bench, plan, status, wanted, accepted)
    finish_publication(bench, plan, status, row, by)
    return PublishResult(row, swap, was_published=False)
