"""Publication in steps: each step is a publication of its own, checked as readers see it (U6).

A visible step is not published again. A step without checks, or with failed checks, is checked
again before the next step. So the same command continues the publication after any interruption.
"""

from __future__ import annotations

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication.publication import AcceptedRun
from lakehouse_backfill.core.runs import gate_registry, hooks
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.suites import suite_parameters
from lakehouse_backfill.core.versions import pointer, steps
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.core.versions.reserve import REFUSALS
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.rollout import Progressive
from lakehouse_backfill.domain.tables.commits import CommitResult
from lakehouse_backfill.errors import ChecksFailed

#: Evidence document: each step with its version and its checks.
ROLLOUT_STEPS = "rollout"


def publish_in_steps(run: AcceptedRun) -> tuple[Publication, CommitResult | None]:
    """Publish and check the remaining steps.

    Returns the last publication, and the sum of the swaps of this call (None: no swap). Raises
    ChecksFailed (the run is halted), and what a publication raises.
    """
    pause_s = _declared(run).pause_seconds
    swaps: list[CommitResult] = []
    planned, progress = steps.publish_steps(run.plan), run.context.progress
    progress.start("publish", len(planned), "steps")
    for step in planned:
        swap = _publish_step(run, step)
        _judge_step(run, step)
        progress.advance(was_done=swap is None)
        if swap is not None:
            swaps.append(swap)
            if step.number < step.count and pause_s:
                run.context.clock.sleep(pause_s)
    progress.finish()
    row = pointer.visible_publication(run.history, run.plan.run_id)
    if row is None:
        raise ChecksFailed(f"{run.plan.run_id} was rolled back while it was published")
    return row, _sum_swaps(swaps)


def _declared(run: AcceptedRun) -> Progressive:
    return run.plan.resolved.manifest.target.progressive or Progressive()


def _publish_step(run: AcceptedRun, step: steps.PublishStep) -> CommitResult | None:
    """Publish the partitions of the step that readers do not see; None if there are none."""
    seen = steps.visible_partitions(run.history, run.plan.run_id)
    remaining = tuple(label for label in step.scope.partitions if label not in seen)
    if not remaining:
        return None
    scope = step.scope.model_copy(update={"partitions": remaining})
    try:
        _, swap = run.reserve_and_expose(run.draft(scope))
    except REFUSALS as error:
        if step.number > 1:
            error.state = steps.describe_visible_partitions(run.history, run.plan)
            error.fix = f"{error.fix}; {_error_fix(run)}" if error.fix else _error_fix(run)
        raise
    return swap


def _judge_step(run: AcceptedRun, step: steps.PublishStep) -> None:
    """Check the step as readers see it, unless it passed before; a failure halts the run."""
    context, plan = run.context, run.plan
    recorded = context.evidence.newest(plan.run_id, ROLLOUT_STEPS)
    records = {int(record["step"]): record for record in recorded[1]["steps"]} if recorded else {}
    row = steps.newest_step_publication(run.history, plan.run_id, step)
    last_record = records.get(step.number, {})
    if last_record.get("token") == row.token and last_record["passed"]:
        return
    checks = _check_step(run, step)
    failed = decisions.failed_blocking_checks(checks)
    records[step.number] = {
        "step": step.number,
        "of": step.count,
        "partitions": list(step.scope.partitions),
        "version": row.version,
        "token": row.token,
        "snapshot_id": row.snapshot_id,
        "passed": not failed,
        "checks": [check.model_dump(mode="json") for check in checks],
        "checked_at": context.clock.now().isoformat(),
    }
    document = {"steps": [records[number] for number in sorted(records)]}
    digest = context.evidence.record(plan.run_id, ROLLOUT_STEPS, document, run.status.epoch)
    if failed:
        names = gate_registry.describe_checks(failed)
        problem = f"{plan.run_id}: {step} failed its check: {names}"
        context.move(
            run.status, plan, "halt publication", run.by,
            step=step.number, problem=problem, digest=digest,
        )  # fmt: skip
        hooks.notify_halted(context, plan)
        state = steps.describe_visible_partitions(run.history, plan)
        raise ChecksFailed(problem, state=state, fix=_error_fix(run))


def _error_fix(run: AcceptedRun) -> str:
    version = steps.version_before_run(run.history, run.plan.run_id)
    rollback_command = command_line(
        "rollback", run.plan.product, "--to", str(version), "--reason", "TEXT"
    )
    publish_command = command_line("publish", run.plan.run_id)
    return f"when the cause is gone, {publish_command} goes on; {rollback_command} undoes the steps"


def _check_step(run: AcceptedRun, step: steps.PublishStep) -> list[CheckResult]:
    """Compare the rows of the step with the candidate, and check its suites and limits.

    The rows are read as readers see them.
    """
    plan, declared, compute = run.plan, _declared(run), run.context.compute()
    visible = resolve_accepted(run.context, plan.resolved.contract, strict=False)
    measure_names = {item.measure for item in declared.thresholds}
    measured = compute.measuring.measure(
        (plan.resolved.target.table, plan.resolved.target.snapshot_id),
        (visible.table, visible.snapshot_id),
        step.scope,
        tuple(item for item in plan.resolved.contract.measures if item.name in measure_names),
    )
    candidate = compute.measuring.checksums(
        plan.shadow_table, run.accepted.shadow_snapshot_id, step.scope
    )
    rows = sum(part.rows for part in measured.old.values())
    results = [
        _check_same_content(
            step,
            {label: checksum.text for label, checksum in candidate.items()},
            {label: checksum.text for label, checksum in measured.new.items()},
        ),
        *gates.check_thresholds(declared.thresholds, measured.totals, rows),
    ]
    for suite in declared.suites:
        frame = compute.measuring.frame(visible.table, visible.snapshot_id, step.scope)
        parameters = suite_parameters(compute, plan, suite)
        results += compute.judge.judge(
            frame,
            suite.file,
            parameters,
            "quality",
            redaction=run.context.redaction(plan.resolved.contract),
        )
    return results


def _check_same_content(
    step: steps.PublishStep, wanted: dict[str, str], seen: dict[str, str]
) -> CheckResult:
    """Check that readers see the accepted rows, by the checksum of each partition."""
    labels = step.scope.partitions
    differing = tuple(label for label in labels if wanted.get(label) != seen.get(label))
    detail = f"{len(labels)} of {len(labels)} partitions equal the candidate"
    if differing:
        detail = f"{partitions.describe_labels(differing)} differ from the candidate"
    return CheckResult(
        name="readers see what was accepted", group="reconciliation", passed=not differing,
        detail=detail, observed=len(differing), limit=0, waivable=False,
    )  # fmt: skip


_SUMMED_FIELDS = (
    "files_added",
    "files_removed",
    "rows_added",
    "rows_removed",
    "attempts",
    "seconds",
)


def _sum_swaps(swaps: list[CommitResult]) -> CommitResult | None:
    """Add up the swaps of the steps of one call.

    `before_snapshot_id` is that of the first swap; the table and snapshot are those of the last.
    """
    if not swaps:
        return None
    totals = {name: sum(getattr(swap, name) for swap in swaps) for name in _SUMMED_FIELDS}
    first = swaps[0].before_snapshot_id
    return swaps[-1].model_copy(update={**totals, "before_snapshot_id": first})
