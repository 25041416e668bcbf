"""The pinned input is judged before staging costs anything (Q0)."""

from __future__ import annotations

from collections.abc import Iterator

from lakehouse_backfill import commands
from lakehouse_backfill.core.approval import waivers
from lakehouse_backfill.core.planning import completeness
from lakehouse_backfill.core.runs.workbench import ComputePorts, Context
from lakehouse_backfill.core.validation.suites import declared_suites, suite_parameters
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Assumption
from lakehouse_backfill.domain.plain import to_json_value
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import ChecksFailed

INPUT_CHECKS = "input-checks"


def judge_inputs(
    bench: Context,
    compute: ComputePorts,
    plan: Plan,
    epoch: int,
    waived: tuple[waivers.Waiver, ...],
) -> None:
    """Check completeness, suites and assumptions of the pinned input; the verdict is evidence.

    A verdict that let the run go on holds for all of it: input and checks are pinned by the
    manifest hash. Raises ChecksFailed, which names every closed gate.
    """
    judged = waivers.WaiverSubject(waivers.INPUT_SCOPE, plan.manifest_hash)
    known = bench.evidence.newest(plan.run_id, INPUT_CHECKS)
    if known is not None:
        before = [CheckResult.model_validate(check) for check in known[1]["checks"]]
        if not waivers.unwaived_failures(before, judged, waived):
            return
    with bench.journal.bind(**plan.labels).span("judge input"):
        results = (
            *_completeness_results(compute, plan),
            *_input_suite_results(compute, plan),
            *(_assumption_result(compute, plan, one) for one in plan.resolved.contract.assumptions),
        )
    if results:
        document = {"checks": [to_json_value(result.model_dump(mode="json")) for result in results]}
        digest = bench.evidence.record(plan.run_id, INPUT_CHECKS, document, epoch)
        _require_open_gates(
            plan, results, waivers.unwaived_failures(results, judged, waived), digest
        )


def _require_open_gates(
    plan: Plan, results: tuple[CheckResult, ...], closed: tuple[CheckResult, ...], digest: str
) -> None:
    if not closed:
        return
    said = "; ".join(f"{result.name}: {result.detail}" for result in closed)
    judged = waivers.WaiverSubject(waivers.INPUT_SCOPE, plan.manifest_hash)
    raise ChecksFailed(
        f"the pinned input failed {len(closed)} of {len(results)} checks: {said}",
        state="nothing was staged; readers see what they saw before",
        fix=f"pin a corrected input: {commands.plan_command(plan.manifest_file, plan.run_id)}; "
        f"or let it pass, for the record: {waivers.waive_instructions(plan.run_id, closed)}",
        stop=waivers.stop_detail(judged, digest, closed),
    )


def _completeness_results(compute: ComputePorts, plan: Plan) -> Iterator[CheckResult]:
    for pin in plan.resolved.sources:
        source = plan.resolved.manifest.sources.get(pin.name)
        if source is None or pin.range is None:
            continue
        unit = completeness.completeness_period(source)
        wanted = completeness.expected_periods(pin, plan.resolved.scope, unit)
        found = compute.inspecting.periods(plan, pin.name, unit)
        yield completeness.check_completeness(pin.name, source, wanted, found)


def _input_suite_results(compute: ComputePorts, plan: Plan) -> Iterator[CheckResult]:
    for suite in declared_suites(plan):
        if suite.on == "output":
            continue
        frame = compute.measuring.input(plan, suite.on)
        parameters = suite_parameters(compute, plan, suite)
        for result in compute.judge.judge(frame, suite.file, parameters, "input"):
            # Two inputs may be held to the same expectation: a waiver is for one of them.
            yield result.model_copy(update={"name": f"{suite.on}: {result.name}"})


def _assumption_result(compute: ComputePorts, plan: Plan, assumption: Assumption) -> CheckResult:
    """One gate for each assumption, under its own words: they are what people decide on."""
    frame = compute.measuring.input(plan, assumption.on)
    parameters = suite_parameters(compute, plan, assumption)
    results = compute.judge.judge(frame, assumption.file, parameters, "input")
    failed = waivers.failed_blocking_checks(results)
    said = "; ".join(f"{result.name}: {result.detail}" for result in failed or results)
    return CheckResult(
        name=assumption.text,
        group="input",
        passed=not failed,
        detail=f"assumed of {assumption.on}: {said}",
        observed=len(failed),
        limit=0,
    )
