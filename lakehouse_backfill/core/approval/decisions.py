"""Decisions of people: approve, accept, reject, cancel, waive; each is bound to what they saw.

A waiver lets a run pass a failed gate, by name, for a reason, for exactly what was judged (Q8). It
is bound to that: for an input gate to the manifest hash, which names the pinned snapshots; for a
chunk gate to the chunk's checksum; for a result gate to the digest of the validation. Another
input, chunk or result needs another waiver. A rejection takes back every waiver before it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.approval import acceptance, signatures
from lakehouse_backfill.core.guards.outside.effect_log import undo_messages
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.planning.other_runs import find_conflicting_runs
from lakehouse_backfill.core.runs import event_log, gate_registry, lifecycle, roles, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult, ValidationResult
from lakehouse_backfill.domain.identity.statement import SIGNATURE
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, Event, RunState, RunStatus

INPUT_SCOPE, RESULT_SCOPE = "input", "result"
#: Verbs with which checks stop a run.
STOP_VERBS = ("halt", "fail validation")


class WaiverSubject(NamedTuple):
    """What checks were about: its name (`input`, a chunk's id, `result`), and its exact content."""

    scope: str
    bound_to: str


class Waiver(NamedTuple):
    """One failed gate that may be passed, once, by whom and why."""

    gate: str
    group: str
    subject: WaiverSubject
    by: str
    at: str
    observed: Any
    reason: str
    signature: Any = None


def chunk_subject(record: ChunkRecord) -> WaiverSubject:
    """Name a staged chunk and its content."""
    return WaiverSubject(record.chunk_id, f"{record.chunk_id}@{record.checksum}")


def waivers_in_force(events: Iterable[Event]) -> tuple[Waiver, ...]:
    """List the waivers that no rejection took back since, oldest first."""
    return tuple(
        Waiver(
            gate=event.detail["gate"],
            group=event.detail["group"],
            subject=WaiverSubject(event.detail["scope"], event.detail["bound_to"]),
            by=event.actor,
            at=event.at.isoformat(),
            observed=event.detail.get("observed"),
            reason=event.detail.get("reason", ""),
            signature=event.detail.get(SIGNATURE),
        )
        for event in event_log.events_since_rejection(events)
        if event.verb == "waive"
    )


def find_waiver(
    check: CheckResult, judged: WaiverSubject, waivers: Iterable[Waiver]
) -> Waiver | None:
    """Return the waiver that lets a check pass: of this gate, and on exactly this content."""
    if not check.waivable:
        return None
    wanted = (check.name, check.group, judged)
    return next((one for one in waivers if (one.gate, one.group, one.subject) == wanted), None)


def failed_blocking_checks(checks: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Keep the blocking checks that did not pass."""
    return tuple(check for check in checks if check.blocking and not check.passed)


def unwaived_failures(
    checks: Iterable[CheckResult], judged: WaiverSubject, waivers: Iterable[Waiver]
) -> tuple[CheckResult, ...]:
    """Keep the blocking checks that neither passed nor were waived."""
    waivers = tuple(waivers)
    return tuple(
        one for one in failed_blocking_checks(checks) if find_waiver(one, judged, waivers) is None
    )


def stopping_event(events: Iterable[Event]) -> Event | None:
    """Return the event with which checks stopped the run, if nothing moved it since.

    A person's rejection is no such stop: waivers do not undo it.
    """
    moves = [event for event in events if event.verb not in lifecycle.NOTES]
    last = max(moves, key=lambda event: event.seq, default=None)
    return last if last is not None and last.verb in STOP_VERBS else None


def stop_detail(
    judged: WaiverSubject, digest: str, closed: Iterable[CheckResult]
) -> dict[str, Any]:
    """Build the log entry of the gates that stopped a run; `digest` names the checks' document."""
    detail = {**judged._asdict(), "digest": digest, "failed": [check.name for check in closed]}
    is_chunk = judged.scope not in (INPUT_SCOPE, RESULT_SCOPE)
    return detail | ({"chunk_id": judged.scope} if is_chunk else {})


def waive_command(run_id: str, gate: str) -> str:
    """Return what people type to waive a gate."""
    return f"lakehouse-backfill waive {run_id} {shlex.quote(gate)} --reason TEXT"


def waive_instructions(run_id: str, closed: Iterable[CheckResult]) -> str:
    """Return the command for the first gate that may be waived, and what lists the others."""
    found = [gate_registry.check_title(check) for check in closed if check.waivable]
    if not found:
        return "none of these gates may be waived"
    more = f" (all: lakehouse-backfill waive {run_id} --list)" if len(found) > 1 else ""
    return f"{waive_command(run_id, found[0])}{more}, then lakehouse-backfill run {run_id}"


VALIDATION = "validation"


def approve(context: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Record the decision on the intent, bound to the manifest hash.

    Raises what `require_approvable` does.
    """
    status, plan = require_approvable(context, run_id, by)
    return context.move(status, plan, "approve", by, bound_to=plan.manifest_hash, reason=reason)


def require_approvable(context: Context, run_id: str, by: str) -> tuple[RunStatus, Plan]:
    """Return a run that this person may approve now, and its plan; nothing is written.

    Raises NotAllowed, Blocked (open checklist), Conflict (an overlapping open run); ApprovalMissing
    and Tampered when the plan is not signed as it has to be, or not the one that was registered.
    """
    # What answers the checklist loads the rules over code; other decisions need none of it.
    from lakehouse_backfill.core.planning.checklist import unanswered_questions

    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    require_decider(context, plan, "approve", by)
    open_questions = unanswered_questions(plan.checklist)
    if open_questions:
        raise errors.Blocked(
            f"{run_id}: the checklist has no answer to {'; '.join(open_questions)}",
            fix=f"write the answers, then {plan_command(plan.manifest_file, run_id)}",
        )
    environments = (plan.resolved.environment, context.profile.environment)
    job_code.require_committed(plan.resolved.git_commit, *environments)
    lifecycle.require_legal_move(status, "approve")
    signatures.require_registered_plan(context, plan, context.runs.events(run_id))
    signatures.require_named_approver(context, plan, by)
    for conflict in find_conflicting_runs(context, plan.resolved, {run_id, plan.revises}):
        raise errors.Conflict(
            f"{run_id} overlaps open run {conflict.run_id} ({conflict.state}) in "
            f"{partitions.describe_labels(conflict.partitions)}",
            state="nothing was approved; both runs stay as they are",
            fix=f"lakehouse-backfill status {conflict.run_id} says how to finish it; or close it: "
            f"lakehouse-backfill cancel {conflict.run_id}, then "
            f"lakehouse-backfill approve {run_id}",
        )
    return status, plan


def accept(context: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Record the decision on the result, bound to the digest of checks and diff."""
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    require_decider(context, plan, "accept", by)
    lifecycle.require_legal_move(status, "accept")
    events = trusted_events(context, status)
    signatures.require_registered_plan(context, plan, events)
    found = logged_validation(context, events, run_id)
    if found is None:
        raise errors.ApprovalMissing(
            f"{run_id} has no validation to accept", fix=f"lakehouse-backfill validate {run_id}"
        )
    digest, validation = found
    require_gates_open(events, run_id, digest, validation)
    archive = acceptance.archive_acceptance(context, plan, status, found, (by,))
    return context.move(status, plan, "accept", by, bound_to=digest, reason=reason, archive=archive)


def reject(context: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Record that a person says no; nothing is deleted."""
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    roles.require_plan_environment(plan, context.profile.environment)
    roles.require_role(plan.resolved.contract, "accept", by, context.profile.environment)
    return context.move(status, plan, "reject", by, reason=reason)


#: How often a cancellation is decided again when the run's driver moves it in between.
_CANCEL_ATTEMPTS = 5


def cancel(context: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Close a run before publication; its shadow and evidence stay.

    A living process that stages the run is shut out, and cuts the chunk in flight off. Raises
    NotAllowed unless `by` requested or planned the run, or may approve or publish it, RunMoved
    while another living process judges the run, unless it is taken over.
    """
    status = context.runs.status(run_id)
    try:
        plan = context.runs.plan(run_id)
    except errors.Tampered as fault:
        return _cancel_unreadable(context, status, by, reason, fault)
    roles.require_plan_environment(plan, context.profile.environment)
    requester = plan.resolved.manifest.run.requested_by
    if by != plan.created_by:
        roles.require_any_role(
            plan.resolved.contract, ("approve", "publish"), requester, by,
            context.profile.environment,
        )  # fmt: skip
    attempts = _CANCEL_ATTEMPTS
    while True:
        lifecycle.require_legal_move(status, "cancel")
        _require_may_be_stopped(context, status)
        try:
            status = context.move(status, plan, "cancel", by, reason=reason)
            break
        except errors.RunMoved:
            # A driver moves its run, too: then this is decided again.
            attempts -= 1
            if status.state is not RunState.STAGING or not attempts:
                raise
            status = context.runs.status(run_id)
    undo_messages(context, run_id)
    return status


def _require_may_be_stopped(context: Context, status: RunStatus) -> None:
    """Raise RunMoved while a living process drives the run, unless it stages it: see `pause`."""
    if status.state is not RunState.STAGING:
        context.require_no_other_driver(status)


def _cancel_unreadable(
    context: Context, status: RunStatus, by: str, reason: str, fault: errors.Tampered
) -> RunStatus:
    """Close a run whose plan was edited, by what its log and the contract of today say.

    Raises `fault` where signatures are required: what would be signed cannot be read.
    """
    profile, events = context.profile, trusted_events(context, status)
    if profile.requires_signatures:
        fault.fix = event_log.restore_row_fix(status.run_id)
        raise fault
    contract, planner = context.contract(status.product), events[0].actor
    signers.require_bound_environment(
        profile, context.versions, context.tables, status.product, contract.table
    )
    if by != planner:
        holders = ("approve", "publish")
        roles.require_any_role(contract, holders, planner, by, profile.environment)
    lifecycle.require_legal_move(status, "cancel")
    _require_may_be_stopped(context, status)
    event = lifecycle.next_event(
        status, "cancel", actor=by, mode=events[-1].mode, at=context.clock.now(),
        detail={"reason": reason, "problem": fault.problem},
    )  # fmt: skip
    if status.driver is not None:
        context.runs.fence(status.run_id, event.seq)
    placed = {"product": status.product, "previous": status.head}
    return context.runs.append(event.model_copy(update=placed))


def trusted_events(context: Context, status: RunStatus) -> tuple[Event, ...]:
    """Return the run's log, from which decisions are read; raises Tampered when it was edited."""
    events = context.runs.events(status.run_id)
    event_log.require_intact_log(status, events)
    return events


def logged_validation(
    context: Context, events: tuple[Event, ...], run_id: str
) -> tuple[str, ValidationResult] | None:
    """Return the validation that the run's log names last, with its digest, or None.

    Not the newest document: a validation that lost a race left one behind, but moved nothing.
    """
    found = logged_validation_document(context, events, run_id)
    return None if found is None else (found[0], ValidationResult.model_validate(found[1]))


def logged_validation_document(
    context: Context, events: tuple[Event, ...], run_id: str
) -> tuple[str, dict[str, Any]] | None:
    """Return the same as it is stored; the port raises Tampered when its digest is another."""
    ends = [event for event in events if event.verb in ("pass validation", "fail validation")]
    if not ends:
        return None
    digest = str(max(ends, key=lambda event: event.seq).detail["digest"])
    document = context.evidence.document(run_id, digest)
    return None if document is None else (digest, document)


def require_gates_open(
    events: tuple[Event, ...], run_id: str, digest: str, validation: ValidationResult
) -> None:
    """Raise ChecksFailed unless every gate passed, or was waived for exactly this result."""
    subject = WaiverSubject(RESULT_SCOPE, digest)
    closed = unwaived_failures(validation.checks, subject, waivers_in_force(events))
    if closed:
        raise errors.ChecksFailed(
            f"{run_id}: a check failed: {gate_registry.describe_checks(closed)}",
            state="nothing was decided or published",
            fix=f"{plan_command(revise=run_id)}; or, for the record: "
            + waive_command(run_id, gate_registry.check_title(closed[0])),
        )


def require_decider(context: Context, plan: Plan, role: str, by: str) -> None:
    """Raise NotAllowed unless `by` has the role, and four eyes where they are required."""
    environment = context.profile.environment
    roles.require_plan_environment(plan, environment)
    roles.require_role(plan.resolved.contract, role, by, environment)
    roles.require_four_eyes(plan, environment, by)


@dataclass(frozen=True)
class FailedGate:
    """A gate that stopped a run; `command` waives it, `why_not` says why none does."""

    name: str
    question: str
    group: str
    scope: str
    detail: str
    waived_by: str | None
    why_not: str
    command: str | None


def failed_gates(context: Context, run_id: str) -> tuple[FailedGate, ...]:
    """List the gates that stopped the run, waived ones included; none when nothing stopped it."""
    events = context.runs.events(run_id)
    stopped = _stopping_checks(context, events)
    if stopped is None:
        return ()
    judged, failed = stopped
    waivers, gates = waivers_in_force(events), []
    for check in failed:
        why_not = gate_registry.why_not_waivable(check)
        waiver = find_waiver(check, judged, waivers)
        gates.append(
            FailedGate(
                name=check.name,
                question=gate_registry.check_title(check),
                group=check.group,
                scope=judged.scope,
                detail=check.detail,
                waived_by=waiver.by if waiver else None,
                why_not=why_not,
                command=None
                if why_not or waiver
                else waive_command(run_id, gate_registry.check_title(check)),
            )
        )
    return tuple(gates)


def waive(context: Context, run_id: str, gate: str, by: str, reason: str) -> RunStatus:
    """Record that a failed gate may be passed; the same waiver again changes nothing.

    When no gate of the result stays closed, the run moves to validated. Raises NotAllowed,
    ApprovalMissing (a person rejected the run), IllegalMove, NotFound (no such failed gate),
    Blocked (it guards the data itself).
    """
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    require_decider(context, plan, "waive", by)
    roles.require_switched_on(context.profile, "waivers", plan.product, "nothing was waived")
    if not reason.strip():
        raise errors.ConfigError("a waiver needs a reason", fix="add --reason TEXT")
    lifecycle.require_legal_move(status, "waive")
    context.require_no_other_driver(status)
    events = trusted_events(context, status)
    roles.require_approval(events, plan)
    signatures.require_registered_plan(context, plan, events)
    judged, checks = _waivable_checks(context, plan, events, gate)
    waivers = waivers_in_force(events)
    for group in dict.fromkeys(check.group for check in checks):
        found = [check for check in checks if check.group == group]
        if find_waiver(found[0], judged, waivers) is None:
            observed = "; ".join(check.detail for check in found)
            detail: dict[str, Any] = {"gate": found[0].name, "group": group, **judged._asdict()}
            status = context.move(
                status, plan, "waive", by, observed=observed, reason=reason, **detail
            )
    return pass_by_waiver(context, status, plan, by)


def pass_by_waiver(context: Context, status: RunStatus, plan: Plan, by: str) -> RunStatus:
    """Move a run whose validation failed to validated, if each closed gate was waived for it."""
    events = context.runs.events(status.run_id)
    stopped = _stopping_checks(context, events)
    if stopped is None or stopped[0].scope != RESULT_SCOPE:
        return status
    judged, failed = stopped
    if unwaived_failures(failed, judged, waivers_in_force(events)):
        return status
    return context.move(status, plan, "pass by waiver", by, digest=judged.bound_to)


def _waivable_checks(
    context: Context, plan: Plan, events: tuple[Event, ...], gate: str
) -> tuple[WaiverSubject, list[CheckResult]]:
    stopped, run_id = _stopping_checks(context, events), plan.run_id
    if stopped is None:
        raise errors.Blocked(
            f"{run_id} was not stopped by a gate, so there is nothing to waive",
            fix=f"lakehouse-backfill log {run_id}, to see who stopped it and why",
        )
    judged, failed = stopped
    wanted = gate.strip()
    checks = [one for one in failed if wanted in (gate_registry.check_title(one), one.name)]
    if not checks:
        names = "; ".join(dict.fromkeys(map(gate_registry.check_title, failed)))
        raise errors.NotFound(
            f"{run_id} failed no gate that is called {gate!r}; it failed: {names}",
            fix=f"lakehouse-backfill waive {run_id} --list",
        )
    reasons = [why for check in checks if (why := gate_registry.why_not_waivable(check))]
    if reasons:
        raise errors.Blocked(
            f"{gate} cannot be waived: {reasons[0]}",
            fix=plan_command(plan.manifest_file, run_id),
        )
    return judged, checks


def _stopping_checks(
    context: Context, events: tuple[Event, ...]
) -> tuple[WaiverSubject, tuple[CheckResult, ...]] | None:
    """Return what stopped the run: what was judged, and the checks that failed."""
    event = stopping_event(events)
    if event is None or "digest" not in event.detail:
        return None  # a job that cannot run also halts the run, and no waiver lets it go on
    digest = str(event.detail["digest"])
    document = context.evidence.document(event.run_id, digest)
    if document is None:
        return None
    scope = str(event.detail.get("scope", RESULT_SCOPE))
    judged = WaiverSubject(scope, str(event.detail.get("bound_to", digest)))
    checks = document.get("checks", [])
    if scope not in (INPUT_SCOPE, RESULT_SCOPE):
        checks = next(item for item in document["chunks"] if item["chunk_id"] == scope)["checks"]
    return judged, failed_blocking_checks(CheckResult.model_validate(check) for check in checks)
