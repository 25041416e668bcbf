"""approve, accept, reject, cancel: decisions of people, each bound to what they saw."""

from __future__ import annotations

from lakehouse_backfill.errors import ApprovalMissing, Blocked, Conflict
from lakehouse_backfill.model.checks import CheckResult, Validation
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import RunStatus
from lakehouse_backfill.rules import checklist, lifecycle, partitions, roles
from lakehouse_backfill.stages.plan import find_conflicts
from lakehouse_backfill.stages.workbench import Workbench

VALIDATION = "validation"


def approve(bench: Workbench, run_id: str, by: str, reason: str) -> RunStatus:
    """Record the decision on the intent, bound to the manifest hash.

    Raises NotAllowed, Blocked (open checklist), Conflict (an overlapping open run).
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    _require_decider(bench, plan, "approve", by)
    open_questions = checklist.unanswered(plan.checklist)
    if open_questions:
        raise Blocked(
            f"{run_id}: the checklist has no answer to {'; '.join(open_questions)}",
            fix="answer it in the run manifest, then plan again",
        )
    lifecycle.require_legal(status, "approve")
    _require_no_overlap(bench, plan)
    return bench.move(status, plan, "approve", by, bound_to=plan.manifest_hash, reason=reason)


def accept(bench: Workbench, run_id: str, by: str, reason: str) -> RunStatus:
    """Record the decision on the result, bound to the digest of checks and diff."""
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    _require_decider(bench, plan, "accept", by)
    lifecycle.require_legal(status, "accept")
    found = bench.evidence.newest(run_id, VALIDATION)
    if found is None:
        raise ApprovalMissing(
            f"{run_id} has no validation to accept", fix=f"lakehouse-backfill validate {run_id}"
        )
    digest, document = found
    failed = [check.name for check in failed_gates(Validation.model_validate(document))]
    if failed:
        raise Blocked(f"{run_id}: {', '.join(failed)} failed", fix=f"see evidence {run_id}")
    return bench.move(status, plan, "accept", by, bound_to=digest, reason=reason)


def reject(bench: Workbench, run_id: str, by: str, reason: str) -> RunStatus:
    """Record that a person says no; nothing is deleted."""
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    roles.require_role(plan.resolved.contract, "accept", by)
    return bench.move(status, plan, "reject", by, reason=reason)


def cancel(bench: Workbench, run_id: str, by: str, reason: str) -> RunStatus:
    """Close a run before publication; its shadow and evidence stay."""
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    return bench.move(status, plan, "cancel", by, reason=reason)


def failed_gates(validation: Validation) -> list[CheckResult]:
    """List the blocking checks that did not pass."""
    return [check for check in validation.checks if check.blocking and not check.passed]


def _require_decider(bench: Workbench, plan: Plan, role: str, by: str) -> None:
    contract = plan.resolved.contract
    roles.require_role(contract, role, by)
    requester = plan.resolved.manifest.run.requested_by
    roles.require_four_eyes(contract, bench.profile.environment, requester, by)


def _require_no_overlap(bench: Workbench, plan: Plan) -> None:
    for conflict in find_conflicts(bench, plan.resolved, {plan.run_id, plan.revises}):
        raise Conflict(
            f"{plan.run_id} overlaps open run {conflict.run_id} ({conflict.state}) in "
            f"{partitions.describe(conflict.partitions)}",
            state="nothing was approved; both runs stay as they are",
            fix=f"finish or cancel {conflict.run_id}, or plan --revise {conflict.run_id}",
        )
