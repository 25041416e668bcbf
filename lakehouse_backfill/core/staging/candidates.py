"""Inputs that another run of the cascade stages: the snapshot that is read, and if it still holds.

A run that reads candidates is staged once these are validated, and published with or after them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval.decisions import logged_validation, trusted_events
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import BIND_VERB, REUSED, reads_candidates
from lakehouse_backfill.domain.cascade.graph import CandidatePin
from lakehouse_backfill.domain.plan import Plan, ReusedPartition, SourcePin
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import Blocked, Conflict

S = RunState
#: States in which a candidate is validated, and can be read by another run.
_READABLE = frozenset({S.VALIDATED, S.ACCEPTED, S.PUBLISHING, S.PUBLISHED, S.ROLLED_BACK})
_NOTHING_COMPUTED = "nothing was computed; readers see what they saw before"
_NOTHING_PUBLISHED = "nothing was published; readers see what they saw before"


#: Says which partitions of a run need not be computed, once its candidates are bound.
FindReused = Callable[[Plan], tuple[ReusedPartition, ...]]


def bind_candidates(
    context: Context, plan: Plan, by: str, find_reused: FindReused | None = None
) -> Plan:
    """Return the plan with the validated snapshots of its candidates, which the run's log names.

    When a candidate was staged again since, the run's shadow is dropped first, as its chunks were
    computed from another input. The same event names what `find_reused` finds, if the approved
    intent allows it. The same again changes nothing. Raises Blocked when a candidate is
    not validated, Conflict when its run was planned again.
    """
    if not reads_candidates(plan):
        return plan
    bound = {
        pin.name: {"run_id": pin.candidate.run_id, **_validated_snapshot(context, plan, pin)}
        for pin in plan.resolved.sources
        if pin.candidate is not None
    }
    if all(_reads(pin, bound[pin.name]) for pin in plan.resolved.sources if pin.name in bound):
        return plan
    if any(pin.candidate and pin.is_bound for pin in plan.resolved.sources):
        context.shadows.retire(plan.shadow_table)
    detail: dict[str, Any] = {"inputs": bound}
    if find_reused is not None and plan.resolved.may_reuse:
        reused = find_reused(plan.with_inputs(bound))
        if reused:
            detail[REUSED] = [one.model_dump(mode="json") for one in reused]
    context.move(context.runs.status(plan.run_id), plan, BIND_VERB, by, **detail)
    return context.runs.plan(plan.run_id)


def stale_candidates(context: Context, plan: Plan) -> tuple[str, ...]:
    """Return the inputs whose candidate is not the one that the run read, each with the reason."""
    found = []
    for pin in plan.resolved.sources:
        if pin.candidate is None or not pin.is_bound:
            continue
        try:
            current = _validated_snapshot(context, plan, pin)
        except (Blocked, Conflict) as error:
            found.append(error.problem)
            continue
        if not _reads(pin, current):
            found.append(f"{pin.candidate.run_id}, which {pin.name} reads, was staged again since")
    return tuple(found)


def require_published_candidates(
    context: Context, plan: Plan, together: Collection[str] = ()
) -> None:
    """Raise Blocked unless readers see the candidates that the run read, or will by the same act.

    `together` are the runs that become visible by one commit. A pinned product of a cascade does
    not become visible alone. Raises Conflict when a candidate was staged again since it was read.
    """
    _require_whole_group(context, plan, together)
    if stale := stale_candidates(context, plan):
        raise Conflict(
            f"{plan.run_id} was computed from another input: {'; '.join(stale)}",
            state=_NOTHING_PUBLISHED,
            fix=f"{command_line('run', _cascade_of(plan))}, which stages it again",
        )
    for pin in plan.resolved.sources:
        if pin.candidate is None or pin.candidate.run_id in together:
            continue
        state = context.runs.status(pin.candidate.run_id).state
        if state is not RunState.PUBLISHED:
            raise Blocked(
                f"{plan.run_id} was computed from {pin.candidate.run_id}, which is {state.value}: "
                f"readers would see {plan.product} without what it was made of",
                state=_NOTHING_PUBLISHED,
                fix=command_line("publish", _cascade_of(plan)),
            )


def _require_whole_group(context: Context, plan: Plan, together: Collection[str]) -> None:
    """Raise Blocked when a pinned product of a cascade would become visible without the others."""
    if plan.cascade is None or not publish_modes.is_pinned_product(plan):
        return
    first = context.runs.plan(plan.cascade.first_run_id)
    nodes = first.cascade.nodes if first.cascade else ()
    pinned = {node.run_id for node in nodes if node.run_id and node.publication == "pinned"}
    missing = sorted(run for run in pinned - set(together) - {plan.run_id} if run)
    if missing:
        raise Blocked(
            f"{plan.run_id} belongs to {plan.cascade.cascade_id}, whose pinned products become "
            f"visible by one commit; missing here: {', '.join(missing)}",
            state=_NOTHING_PUBLISHED,
            fix=command_line("publish", plan.cascade.cascade_id),
        )


def _cascade_of(plan: Plan) -> str:
    return plan.cascade.cascade_id if plan.cascade else plan.run_id


def _reads(pin: SourcePin, snapshot: dict[str, Any]) -> bool:
    return (pin.table, pin.snapshot_id) == (snapshot["table"], snapshot["snapshot_id"])


def _validated_snapshot(context: Context, plan: Plan, pin: SourcePin) -> dict[str, Any]:
    """Return table and snapshot of a candidate. Raises Blocked, Conflict."""
    candidate = pin.candidate
    if candidate is None:
        raise ValueError(f"{pin.name} is no candidate")
    status, upstream = context.runs.status(candidate.run_id), context.runs.plan(candidate.run_id)
    if upstream.manifest_hash != candidate.manifest_hash or status.state in (
        S.CANCELLED, S.SUPERSEDED,
    ):  # fmt: skip
        raise _gone_error(plan, candidate, status.state)
    logged = None
    if status.state in _READABLE:
        logged = logged_validation(context, trusted_events(context, status), candidate.run_id)
    if logged is None or logged[1].shadow_snapshot_id is None:
        raise Blocked(
            f"{candidate.run_id} of {candidate.product}, which {plan.run_id} reads as {pin.name}, "
            f"is {status.state.value}: its result is not validated",
            state=_NOTHING_COMPUTED,
            fix=command_line("run", _cascade_of(plan)),
        )
    return {"table": upstream.shadow_table, "snapshot_id": logged[1].shadow_snapshot_id}


def _gone_error(plan: Plan, candidate: CandidatePin, state: RunState) -> Conflict:
    return Conflict(
        f"{candidate.run_id} of {candidate.product}, which {plan.run_id} reads, is {state.value}",
        state=_NOTHING_COMPUTED,
        fix=cancel_and_plan_again(_cascade_of(plan)),
    )


def cancel_and_plan_again(cascade_id: str) -> str:
    """Return what to do when a run of a cascade cannot go on as it was planned."""
    return f"{command_line('cancel', cascade_id)}, then plan the cascade again"
