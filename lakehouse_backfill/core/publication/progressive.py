"""Publication in steps: each step is a publication of its own, checked as readers see it (U6).

A visible step is not published again. A step without checks, or with failed checks, is checked
again before the next step. So the same command continues the publication after any interruption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication.expose import AcceptedResult
from lakehouse_backfill.core.publication.publication import DrivenRun, reserve_and_expose
from lakehouse_backfill.core.runs import hooks
from lakehouse_backfill.core.runs.context import ComputePorts, Context
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.suites import suite_parameters
from lakehouse_backfill.core.versions import pointer, steps
from lakehouse_backfill.core.versions.accepted import resolve_accepted
from lakehouse_backfill.core.versions.reserve import REFUSALS
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import CommitResult, Publication
from lakehouse_backfill.domain.rollout import Progressive
from lakehouse_backfill.errors import ChecksFailed

#: Evidence document: each step with its version and its checks.
ROLLOUT_STEPS = "rollout"


@dataclass(frozen=True)
class ProgressivePublication:
    """A run whose driver publishes it in steps."""

    run: DrivenRun

    def publish_remaining_steps(self) -> tuple[Publication, CommitResult | None]:
        """Publish and check the remaining steps.

        Returns the last publication, and the sum of the swaps of this call (None: no swap). Raises
        ChecksFailed (the run is halted), and what a publication raises.
        """
        swaps: list[CommitResult] = []
        for step in steps.publish_steps(self.run.plan):
            swap = self._publish_step(step)
            self._judge_step(step)
            if swap is not None:
                swaps.append(swap)
                self._pause(step)
        row = pointer.visible_publication(self._history, self.run.plan.run_id)
        if row is None:
            raise ChecksFailed(f"{self.run.plan.run_id} was rolled back while it was published")
        return row, _sum_swaps(swaps)

    @property
    def _history(self) -> tuple[Publication, ...]:
        return self.run.context.versions.history(self.run.plan.product)

    @property
    def _declared(self) -> Progressive:
        return self.run.plan.resolved.manifest.target.progressive or Progressive()

    def _publish_step(self, step: steps.PublishStep) -> CommitResult | None:
        """Publish the partitions of the step that readers do not see; None if there are none."""
        remaining = steps.remaining_scope(
            step, steps.visible_partitions(self._history, self.run.plan.run_id)
        )
        if remaining is None:
            return None
        try:
            _, swap = reserve_and_expose(self.run, self.run.draft(remaining))
        except REFUSALS as error:
            if step.number > 1:
                error.state = self._error_state()
                error.fix = f"{error.fix}; {self._error_fix()}" if error.fix else self._error_fix()
            raise
        return swap

    def _pause(self, step: steps.PublishStep) -> None:
        if step.number < step.count and self._declared.pause_seconds:
            self.run.context.clock.sleep(self._declared.pause_seconds)

    def _judge_step(self, step: steps.PublishStep) -> None:
        """Check the step as readers see it, unless it passed before; a failure halts the run."""
        recorded = self.run.context.evidence.newest(self.run.plan.run_id, ROLLOUT_STEPS)
        records = steps.newest_step_records(recorded[1] if recorded else None)
        row = steps.newest_step_publication(self._history, self.run.plan.run_id, step)
        last_record = records.get(step.number, {})
        if last_record.get("token") == row.token and last_record["passed"]:
            return
        checks = check_step(self.run.context, self.run.plan, self.run.accepted, step)
        failed = decisions.failed_blocking_checks(checks)
        records[step.number] = self._step_record(step, row, checks, passed=not failed)
        document = {"steps": [records[number] for number in sorted(records)]}
        digest = self.run.context.evidence.record(
            self.run.plan.run_id, ROLLOUT_STEPS, document, self.run.status.epoch
        )
        if failed:
            self._halt_run(step, failed, digest)

    def _step_record(
        self, step: steps.PublishStep, row: Publication, checks: list[CheckResult], *, passed: bool
    ) -> dict[str, Any]:
        return {
            "step": step.number,
            "of": step.count,
            "partitions": list(step.scope.partitions),
            "version": row.version,
            "token": row.token,
            "snapshot_id": row.snapshot_id,
            "passed": passed,
            "checks": [check.model_dump(mode="json") for check in checks],
            "checked_at": self.run.context.clock.now().isoformat(),
        }

    def _halt_run(
        self, step: steps.PublishStep, failed: tuple[CheckResult, ...], digest: str
    ) -> None:
        names = "; ".join(f"{check.name} ({check.detail})" for check in failed)
        problem = f"{self.run.plan.run_id}: {step} failed its check: {names}"
        self.run.context.move(
            self.run.status, self.run.plan, "halt publication", self.run.by,
            step=step.number, problem=problem, digest=digest,
        )  # fmt: skip
        hooks.notify_halted(self.run.context, self.run.plan)
        raise ChecksFailed(problem, state=self._error_state(), fix=self._error_fix())

    def _error_state(self) -> str:
        return steps.describe_visible_partitions(self._history, self.run.plan)

    def _error_fix(self) -> str:
        version = steps.version_before_run(self._history, self.run.plan.run_id)
        rollback_command = errors.command_line(
            "rollback", self.run.plan.product, "--to", str(version), "--reason", "TEXT"
        )
        publish_command = errors.command_line("publish", self.run.plan.run_id)
        return (
            f"when the cause is gone, {publish_command} goes on; "
            f"{rollback_command} undoes the steps"
        )


def check_step(
    context: Context, plan: Plan, accepted: AcceptedResult, step: steps.PublishStep
) -> list[CheckResult]:
    """Compare the rows of the step with the candidate, and check its suites and limits.

    The rows are read as readers see them.
    """
    declared = plan.resolved.manifest.target.progressive or Progressive()
    visible = resolve_accepted(context, plan.resolved.contract, strict=False)
    compute = context.compute()
    measure_names = {item.measure for item in declared.thresholds}
    measured = compute.measuring.measure(
        (plan.resolved.target.table, plan.resolved.target.snapshot_id),
        (visible.table, visible.snapshot_id),
        step.scope,
        tuple(item for item in plan.resolved.contract.measures if item.name in measure_names),
    )
    candidate = compute.measuring.checksums(
        plan.shadow_table, accepted.shadow_snapshot_id, step.scope
    )
    rows = sum(part.rows for part in measured.old.values())
    return [
        _check_same_content(step, {k: v.text for k, v in candidate.items()},
                      {k: v.text for k, v in measured.new.items()}),
        *gates.check_thresholds(declared.thresholds, measured.totals, rows),
        *_run_suites(compute, plan, (visible.table, visible.snapshot_id), step),
    ]  # fmt: skip


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


def _run_suites(
    compute: ComputePorts, plan: Plan, seen: tuple[str, int], step: steps.PublishStep
) -> list[CheckResult]:
    declared = plan.resolved.manifest.target.progressive
    results: list[CheckResult] = []
    for suite in declared.suites if declared else ():
        frame = compute.inspecting.visible(*seen, step.scope)
        parameters = suite_parameters(compute, plan, suite)
        results += compute.judge.judge(frame, suite.file, parameters, "quality")
    return results


def _sum_swaps(swaps: list[CommitResult]) -> CommitResult | None:
    """Add up the swaps of the steps of one call.

    `before_snapshot_id` is that of the first swap; the table and snapshot are those of the last.
    """
    if not swaps:
        return None
    summed_fields = (
        "files_added",
        "files_removed",
        "rows_added",
        "rows_removed",
        "attempts",
        "seconds",
    )
    totals = {name: sum(getattr(swap, name) for swap in swaps) for name in summed_fields}
    first = swaps[0].before_snapshot_id
    return swaps[-1].model_copy(update={**totals, "before_snapshot_id": first})
