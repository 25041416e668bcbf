"""Take the runs of a cascade through their steps: each verb goes on from where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.cascade.plan import Cascade, publication_steps
from lakehouse_backfill.core.cascade.reuse import reusable_partitions
from lakehouse_backfill.core.cascade.visibility import is_visible, pinned_runs
from lakehouse_backfill.core.publication.catch_up import stage_and_validate
from lakehouse_backfill.core.publication.publish import publish, publish_together
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.candidates import cancel_and_plan_again, stale_candidates
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.cascade.graph import CascadeNode
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState, RunStatus

S = RunState
_CLOSED = frozenset({S.CANCELLED, S.SUPERSEDED})
#: States in which readers may see a run's version: a state may be behind the pointer.
_AT_READERS = frozenset({S.PUBLISHING, S.PUBLISH_HALTED, S.PUBLISHED, S.ROLLED_BACK})
#: States in which a run has a result that was judged, and nothing is left to compute.
_COMPUTED = frozenset({S.VALIDATED, S.ACCEPTED, S.PUBLISHING, S.PUBLISHED, S.ROLLED_BACK})


@dataclass(frozen=True)
class CascadeMember:
    """A product of the cascade, and where its run stands; no status: it is left out.

    `stale` says why what the run staged was computed from another input; `is_visible` whether
    readers see what the run published, whatever its state says after a process was killed.
    """

    node: CascadeNode
    status: RunStatus | None
    stale: tuple[str, ...] = ()
    is_visible: bool = False
    #: Partitions that were not computed, as their inputs are equal to live.
    kept: tuple[str, ...] = ()


def cascade_members(context: Context, cascade: Cascade) -> tuple[CascadeMember, ...]:
    """Return the products of a cascade in the order of the work, and where each stands."""
    return tuple(_member(context, node) for node in cascade.nodes)


def _member(context: Context, node: CascadeNode) -> CascadeMember:
    if not node.run_id:
        return CascadeMember(node, None)
    status = context.runs.status(node.run_id)
    is_seen = status.state in _AT_READERS and is_visible(context, node.product, node.run_id)
    kept: tuple[str, ...] = ()
    if status.state not in (S.PLANNED, S.APPROVED):
        kept = tuple(one.partition for one in context.runs.plan(node.run_id).reused)
    return CascadeMember(node, status, _stale(context, node.run_id), is_seen, kept)


def _stale(context: Context, run_id: str) -> tuple[str, ...]:
    # The plan is loaded anew: its candidates may have been bound since the cascade was.
    is_computed = context.runs.status(run_id).state in _COMPUTED - {S.PUBLISHED, S.ROLLED_BACK}
    return stale_candidates(context, context.runs.plan(run_id)) if is_computed else ()


def approve_cascade(context: Context, cascade: Cascade, by: str, reason: str) -> None:
    """Approve the intent of all runs; those that are approved already are left as they are.

    All are looked at before the first is approved. Raises what `approve` does.
    """
    _require_open(context, cascade)
    run_ids = (plan.run_id for plan in cascade.plans)
    wanted = [run for run in run_ids if context.runs.status(run).state is S.PLANNED]
    for run_id in wanted:
        decisions.require_approvable(context, run_id, by)
    for run_id in wanted:
        decisions.approve(context, run_id, by, reason)


def run_cascade(context: Context, cascade: Cascade, by: str) -> None:
    """Stage and validate the runs in order; what is computed is not computed again.

    Each reads the validated candidates before it. Stops at the first run that fails, or that its
    gates reject; the same call goes on there. Raises ApprovalMissing before anything is computed,
    ChecksFailed, and what staging and validation raise.
    """
    _require_open(context, cascade)
    for plan in cascade.plans:
        status = context.runs.status(plan.run_id)
        if status.state is S.PLANNED:
            raise errors.ApprovalMissing(
                f"{plan.run_id} of {plan.product} is not approved, so nothing was computed",
                fix=command_line("approve", cascade.cascade_id),
            )
    progress = context.progress
    with progress.within(f"run {cascade.cascade_id}", len(cascade.plans), "products"):
        for plan in cascade.plans:
            before = context.runs.status(plan.run_id).state
            _require_passed(context, cascade, plan, _computed(context, plan.run_id, by))
            rows = sum(chunk.output_rows for chunk in context.runs.chunks(plan.run_id))
            progress.advance(1, rows, was_done=before in _COMPUTED)


def _require_passed(context: Context, cascade: Cascade, plan: Plan, status: RunStatus) -> None:
    if status.state is not S.REJECTED:
        return
    by_gates = _is_rejected_by_gates(context, status)
    raise errors.ChecksFailed(
        f"{plan.run_id} of {plan.product} is rejected; what is downstream of it was not computed",
        state="readers see what they saw before; what passed is kept",
        fix=f"{command_line('validate', plan.run_id)}  # names the gates; then "
        f"{command_line('run', cascade.cascade_id)}"
        if by_gates
        else f"a person rejected it: {cancel_and_plan_again(cascade.cascade_id)}",
    )


def _computed(context: Context, run_id: str, by: str) -> RunStatus:
    """Return the status of a run once it is staged and validated on the candidates before it."""
    reuse = partial(reusable_partitions, context)
    plan, status = context.runs.plan(run_id), context.runs.status(run_id)
    if status.state in (S.PUBLISHING, S.PUBLISHED, S.ROLLED_BACK):
        return status
    if stale_candidates(context, plan) or _is_rejected_by_gates(context, status):
        stage(context, run_id, by, find_reused=reuse)
        status = context.runs.status(run_id)
    if status.state in _COMPUTED:
        return status
    status, _ = stage_and_validate(context, status, by, find_reused=reuse)
    return status


def _is_rejected_by_gates(context: Context, status: RunStatus) -> bool:
    if status.state is not S.REJECTED:
        return False
    return decisions.stopping_event(context.runs.events(status.run_id)) is not None


def accept_cascade(context: Context, cascade: Cascade, by: str, reason: str) -> None:
    """Accept the results of all runs, once all of them are validated.

    Raises Blocked while a run is not validated or was computed from another input, and what
    `accept` does.
    """
    _require_open(context, cascade)
    _require_all(context, cascade, _COMPUTED, "accepted", "run")
    for plan in cascade.plans:
        if context.runs.status(plan.run_id).state is S.VALIDATED:
            decisions.accept(context, plan.run_id, by, reason)


def publish_cascade(context: Context, cascade: Cascade, by: str, *, together: bool = False) -> None:
    """Make all results visible: pinned products by one commit, followed ones in order.

    With `together`, followed ones by one commit too: those before the pinned ones, and those that
    are computed from pinned ones after them. A second call changes nothing; an interrupted one
    continues. Raises Blocked while a run is not accepted, and what `publish` and `publish_together`
    raise.
    """
    publishable = frozenset({S.ACCEPTED, S.PUBLISHING, S.PUBLISHED, S.ROLLED_BACK})
    _require_open(context, cascade)
    _require_all(context, cascade, publishable, "published", "accept")
    _require_no_half_rollback(context, cascade)
    runs = {plan.product: plan.run_id for plan in cascade.plans}
    pinned = {node.product for node in cascade.nodes if node.publication == "pinned"}
    steps, progress = publication_steps(cascade.nodes), context.progress
    with progress.within(f"publish {cascade.cascade_id}", len(runs), "products"):
        for is_pinned, acts in groupby(steps, lambda products: products[0] in pinned):
            members = [runs[product] for products in acts for product in products]
            if is_pinned:
                publish_together(context, tuple(members), by)
                progress.advance(len(members))
                continue
            left = [run for run in members if context.runs.status(run).state is not S.PUBLISHED]
            progress.advance(len(members) - len(left), was_done=True)
            for group in [left] if together and left else [[run] for run in left]:
                _publish_followed(context, group, cascade.cascade_id, by)
                progress.advance(len(group))


def _publish_followed(context: Context, runs: list[str], cascade_id: str, by: str) -> None:
    """Publish runs. Raises TargetChanged for live commits: a member is not revised alone."""
    try:
        if len(runs) == 1:
            publish(context, runs[0], by)
        else:
            publish_together(context, tuple(runs), by)
    except errors.TargetChanged as error:
        error.fix = cancel_and_plan_again(cascade_id)
        raise


def _require_no_half_rollback(context: Context, cascade: Cascade) -> None:
    """Raise Blocked while some pinned products are rolled back, and others are visible."""
    runs = pinned_runs(cascade.nodes)
    states = {context.runs.status(run).state for run in runs}
    if {S.PUBLISHED, S.ROLLED_BACK} <= states:
        raise errors.Blocked(
            f"some pinned products of {cascade.cascade_id} are rolled back, and others are "
            "published; they become visible by one commit",
            state="nothing was published",
            fix=f"{command_line('rollback', cascade.cascade_id, '--reason', 'TEXT')}, then "
            f"{command_line('publish', cascade.cascade_id)}",
        )


def _require_all(
    context: Context, cascade: Cascade, states: frozenset[RunState], done: str, verb: str
) -> None:
    """Raise Blocked when a run is in none of the states, or was computed from another input."""
    for member in cascade_members(context, cascade):
        if member.status is None:
            continue
        problem = "; ".join(member.stale)
        if member.status.state not in states:
            problem = f"it is {member.status.state.value}"
        if problem:
            raise errors.Blocked(
                f"{cascade.cascade_id} cannot be {done}: {member.status.run_id} of "
                f"{member.node.product}: {problem}",
                state="nothing was changed; readers see what they saw before",
                fix=command_line("run" if member.stale else verb, cascade.cascade_id),
            )


def reject_cascade(context: Context, cascade: Cascade, by: str, reason: str) -> None:
    """Reject the runs that can be; nothing is deleted."""
    _decide_backwards(context, cascade, "reject", by, reason)


def cancel_cascade(context: Context, cascade: Cascade, by: str, reason: str) -> None:
    """Close the runs before publication; shadows and evidence stay."""
    _decide_backwards(context, cascade, "cancel", by, reason)


def _decide_backwards(context: Context, cascade: Cascade, verb: str, by: str, reason: str) -> None:
    """Decide on the runs that allow the verb, the last first: what a run reads goes after it."""
    decide = {"reject": decisions.reject, "cancel": decisions.cancel}[verb]
    for plan in reversed(cascade.plans):
        if context.runs.status(plan.run_id).state in lifecycle.MOVES[verb][0]:
            decide(context, plan.run_id, by, reason)


def products_to_roll_back(context: Context, cascade: Cascade) -> tuple[tuple[str, ...], ...]:
    """Return the published products, by the acts that take them back: the last visible first.

    Raises Conflict when readers of one of them see a later version: that is to be rolled back
    before, as others may have been computed from it.
    """
    runs = {plan.product: plan.run_id for plan in cascade.plans}
    found = []
    for products in reversed(publication_steps(cascade.nodes)):
        published = tuple(
            one for one in products if context.runs.status(runs[one]).state is S.PUBLISHED
        )
        for product in published:
            accepted = context.versions.pointer(product).accepted
            if not is_visible(context, product, runs[product]):
                raise errors.Conflict(
                    f"readers of {product} do not see the version of {cascade.cascade_id} any "
                    f"more: a rollback was cut off, and {runs[product]} was not told of it",
                    state="nothing was rolled back by this command",
                    fix=f"{command_line('recover', '--all')}, then repeat the same command",
                )
            if accepted is None or accepted.run_id != runs[product]:
                raise errors.Conflict(
                    f"readers of {product} see a later version than that of {cascade.cascade_id}",
                    state="nothing was rolled back",
                    fix=f"{command_line('versions', product)}; roll that one back first",
                )
        if published:
            found.append(published)
    return tuple(found)


def _require_open(context: Context, cascade: Cascade) -> None:
    """Raise Conflict when a run of the cascade was closed: the others would lack it."""
    for plan in cascade.plans:
        status = context.runs.status(plan.run_id)
        if status.state in _CLOSED:
            raise errors.Conflict(
                f"{plan.run_id} of {plan.product} is {status.state.value}, so "
                f"{cascade.cascade_id} cannot go on",
                state="nothing was changed",
                fix=cancel_and_plan_again(cascade.cascade_id),
            )
