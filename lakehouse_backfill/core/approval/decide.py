"""approve, accept, reject, cancel: decisions of people, each bound to what they saw."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.core.approval import acceptance, waivers
from lakehouse_backfill.core.planning import checklist, code_identity
from lakehouse_backfill.core.planning.plan import find_conflicting_runs
from lakehouse_backfill.core.runs import audit, lifecycle, roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.domain.value import digest as digest_of
from lakehouse_backfill.errors import ApprovalMissing, Blocked, ChecksFailed, Conflict, Tampered

VALIDATION = "validation"


def approve(bench: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Record the decision on the intent, bound to the manifest hash.

    Raises NotAllowed, Blocked (open checklist), Conflict (an overlapping open run).
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    _require_decider(bench, plan, "approve", by)
    open_questions = checklist.unanswered_questions(plan.checklist)
    if open_questions:
        raise Blocked(
            f"{run_id}: the checklist has no answer to {'; '.join(open_questions)}",
            fix=f"write the answers, then {commands.plan_command(plan.manifest_file, run_id)}",
        )
    environments = (plan.resolved.environment, bench.profile.environment)
    code_identity.require_committed(plan.resolved.git_commit, *environments)
    lifecycle.require_legal_move(status, "approve")
    _require_no_overlap(bench, plan)
    return bench.move(status, plan, "approve", by, bound_to=plan.manifest_hash, reason=reason)


def accept(bench: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Record the decision on the result, bound to the digest of checks and diff."""
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    _require_decider(bench, plan, "accept", by)
    lifecycle.require_legal_move(status, "accept")
    events = trusted_events(bench, status)
    found = logged_validation(bench, events, run_id)
    if found is None:
        raise ApprovalMissing(
            f"{run_id} has no validation to accept", fix=f"lakehouse-backfill validate {run_id}"
        )
    digest, validation = found
    require_gates_open(events, run_id, digest, validation)
    archive = acceptance.archive_acceptance(bench, plan, status, found, (by,))
    return bench.move(status, plan, "accept", by, bound_to=digest, reason=reason, archive=archive)


def reject(bench: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Record that a person says no; nothing is deleted."""
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    roles.require_role(plan.resolved.contract, "accept", by)
    return bench.move(status, plan, "reject", by, reason=reason)


def cancel(bench: Context, run_id: str, by: str, reason: str) -> RunStatus:
    """Close a run before publication; its shadow and evidence stay.

    Whoever asked for the run may, and whoever may approve or publish it; else raises NotAllowed.
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    requester = plan.resolved.manifest.run.requested_by
    if by != plan.created_by:
        roles.require_any_role(plan.resolved.contract, ("approve", "publish"), requester, by)
    return bench.move(status, plan, "cancel", by, reason=reason)


def trusted_events(bench: Context, status: RunStatus) -> tuple[Event, ...]:
    """Give the run's log, from which decisions are read; raises Tampered when it was edited."""
    events = bench.runs.events(status.run_id)
    audit.require_intact_log(status, events)
    return events


def logged_validation(
    bench: Context, events: tuple[Event, ...], run_id: str
) -> tuple[str, ValidationResult] | None:
    """Give the validation that the run's own log names last, with its digest; None: there is none.

    Not the newest document: a validation that lost a race left one behind, but moved nothing.
    """
    found = logged_validation_document(bench, events, run_id)
    return None if found is None else (found[0], ValidationResult.model_validate(found[1]))


def logged_validation_document(
    bench: Context, events: tuple[Event, ...], run_id: str
) -> tuple[str, dict[str, Any]] | None:
    """Give the same as it is stored; raises Tampered when it is not what its digest says."""
    told = [event for event in events if event.verb in ("pass validation", "fail validation")]
    if not told:
        return None
    digest = str(max(told, key=lambda event: event.seq).detail["digest"])
    document = bench.evidence.document(run_id, digest)
    if document is not None and digest_of(document) != digest:
        raise Tampered(
            f"the validation of {run_id} was edited after it was recorded",
            state="nothing was decided or published",
            fix=f"lakehouse-backfill validate {run_id}, then accept it again",
        )
    return None if document is None else (digest, document)


def require_gates_open(
    events: tuple[Event, ...], run_id: str, digest: str, validation: ValidationResult
) -> None:
    """Raise ChecksFailed unless every gate passed, or was waived for exactly this result."""
    subject = waivers.WaiverSubject(waivers.RESULT_SCOPE, digest)
    closed = waivers.unwaived_failures(validation.checks, subject, waivers.waivers_in_force(events))
    if closed:
        raise ChecksFailed(
            f"{run_id}: {', '.join(check.name for check in closed)} failed",
            state="nothing was decided or published",
            fix=f"lakehouse-backfill plan MANIFEST --revise {run_id}; or, for the record: "
            + waivers.waive_command(run_id, closed[0].name),
        )


def _require_decider(bench: Context, plan: Plan, role: str, by: str) -> None:
    contract = plan.resolved.contract
    roles.require_role(contract, role, by)
    roles.require_four_eyes(plan, bench.profile.environment, by)


def _require_no_overlap(bench: Context, plan: Plan) -> None:
    for conflict in find_conflicting_runs(bench, plan.resolved, {plan.run_id, plan.revises}):
        raise Conflict(
            f"{plan.run_id} overlaps open run {conflict.run_id} ({conflict.state}) in "
            f"{partitions.describe_labels(conflict.partitions)}",
            state="nothing was approved; both runs stay as they are",
            fix=f"finish or cancel {conflict.run_id}, or plan --revise {conflict.run_id}",
        )
