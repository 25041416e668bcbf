"""waive: let a run pass a failed gate, by name, for a reason, for exactly what was judged."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill import commands
from lakehouse_backfill.core.approval import waivers
from lakehouse_backfill.core.approval.decide import trusted_events
from lakehouse_backfill.core.runs import gate_list, lifecycle, roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.errors import Blocked, ConfigError, NotFound


@dataclass(frozen=True)
class FailedGate:
    """A gate that stopped a run; `command` waives it, `why_not` says why none does."""

    name: str
    group: str
    scope: str
    detail: str
    waived_by: str | None
    why_not: str
    command: str | None


def failed_gates(bench: Context, run_id: str) -> tuple[FailedGate, ...]:
    """List the gates that stopped the run, waived ones included; none when nothing stopped it."""
    events = bench.runs.events(run_id)
    stopped = _stopping_checks(bench, events)
    if stopped is None:
        return ()
    judged, failed = stopped
    standing = waivers.waivers_in_force(events)
    return tuple(_to_failed_gate(run_id, check, judged, standing) for check in failed)


def waive(bench: Context, run_id: str, gate: str, by: str, reason: str) -> RunStatus:
    """Record that a failed gate may be passed; the same waiver again changes nothing.

    When no gate of the result stays closed, the run moves to validated. Raises NotAllowed,
    ApprovalMissing (a person rejected the run), IllegalMove, NotFound (no such failed gate),
    Blocked (it guards the data itself).
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    contract = plan.resolved.contract
    roles.require_role(contract, "waive", by)
    roles.require_four_eyes(plan, bench.profile.environment, by)
    if not reason.strip():
        raise ConfigError("a waiver needs a reason", fix="add --reason TEXT")
    lifecycle.require_legal_move(status, "waive")
    bench.require_no_other_driver(status)
    events = trusted_events(bench, status)
    roles.require_approval(events, plan)
    judged, checks = _waivable_checks(bench, plan, events, gate)
    standing = waivers.waivers_in_force(events)
    for group in dict.fromkeys(check.group for check in checks):
        found = [check for check in checks if check.group == group]
        if waivers.find_waiver(found[0], judged, standing) is None:
            status = bench.move(
                status,
                plan,
                "waive",
                by,
                gate=found[0].name,
                group=group,
                scope=judged.scope,
                bound_to=judged.bound_to,
                observed="; ".join(check.detail for check in found),
                reason=reason,
            )
    return pass_by_waiver(bench, status, plan, by)


def pass_by_waiver(bench: Context, status: RunStatus, plan: Plan, by: str) -> RunStatus:
    """Move a run whose validation failed to validated, if each closed gate was waived for it."""
    events = bench.runs.events(status.run_id)
    stopped = _stopping_checks(bench, events)
    if stopped is None or stopped[0].scope != waivers.RESULT_SCOPE:
        return status
    judged, failed = stopped
    if waivers.unwaived_failures(failed, judged, waivers.waivers_in_force(events)):
        return status
    return bench.move(status, plan, "pass by waiver", by, digest=judged.bound_to)


def _waivable_checks(
    bench: Context, plan: Plan, events: tuple[Event, ...], gate: str
) -> tuple[waivers.WaiverSubject, list[CheckResult]]:
    stopped, run_id = _stopping_checks(bench, events), plan.run_id
    if stopped is None:
        raise Blocked(
            f"{run_id} was not stopped by a gate, so there is nothing to waive",
            fix=f"lakehouse-backfill log {run_id}, to see who stopped it and why",
        )
    judged, failed = stopped
    checks = [check for check in failed if check.name == gate.strip()]
    if not checks:
        names = "; ".join(dict.fromkeys(check.name for check in failed))
        raise NotFound(
            f"{run_id} failed no gate that is called {gate!r}; it failed: {names}",
            fix=f"lakehouse-backfill waive {run_id} --list",
        )
    reasons = [why for check in checks if (why := gate_list.why_not_waivable(check))]
    if reasons:
        raise Blocked(
            f"{gate} cannot be waived: {reasons[0]}",
            fix=commands.plan_command(plan.manifest_file, run_id),
        )
    return judged, checks


def _stopping_checks(
    bench: Context, events: tuple[Event, ...]
) -> tuple[waivers.WaiverSubject, tuple[CheckResult, ...]] | None:
    """Give what stopped the run: what was judged, and the checks that failed."""
    event = waivers.stopping_event(events)
    if event is None or "digest" not in event.detail:
        return None  # a job that cannot run also halts the run, and no waiver lets it go on
    digest = str(event.detail["digest"])
    document = bench.evidence.document(event.run_id, digest)
    if document is None:
        return None
    scope = str(event.detail.get("scope", waivers.RESULT_SCOPE))
    judged = waivers.WaiverSubject(scope, str(event.detail.get("bound_to", digest)))
    checks = document.get("checks", [])
    if scope not in (waivers.INPUT_SCOPE, waivers.RESULT_SCOPE):
        checks = next(item for item in document["chunks"] if item["chunk_id"] == scope)["checks"]
    return judged, waivers.failed_blocking_checks(
        CheckResult.model_validate(check) for check in checks
    )


def _to_failed_gate(
    run_id: str,
    check: CheckResult,
    judged: waivers.WaiverSubject,
    standing: tuple[waivers.Waiver, ...],
) -> FailedGate:
    why_not, waiver = (
        gate_list.why_not_waivable(check),
        waivers.find_waiver(check, judged, standing),
    )
    return FailedGate(
        name=check.name,
        group=check.group,
        scope=judged.scope,
        detail=check.detail,
        waived_by=waiver.by if waiver else None,
        why_not=why_not,
        command=None if why_not or waiver else waivers.waive_command(run_id, check.name),
    )
