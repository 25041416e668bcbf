"""After a publication or rollback: read as a consumer does, tell who wants to be told (U14, U15).

All of it is recorded under the act's token, so that a process that dies in between is followed by
the next `publish` or `recover`, which does only what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication import rollback
from lakehouse_backfill.core.publication.rollback import publication_group, roll_back_group
from lakehouse_backfill.core.runs import hooks
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer, steps
from lakehouse_backfill.core.versions.reserve import REFUSALS
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import AfterPublish, HookCall
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import BackfillError, ChecksFailed
from lakehouse_backfill.ports.comparison import DiffRequest

POST_PUBLISH_CHECKS = "after-publish"


@dataclass(frozen=True)
class PostPublishOutcome:
    """What followed a publication: checks as a reader sees it, hooks that were called."""

    checks: tuple[CheckResult, ...]
    calls: tuple[HookCall, ...]


def run_checks_and_hooks(context: Context, plan: Plan, row: Publication, by: str) -> None:
    """Check what readers see now and call the hooks; what was done for this act is not repeated.

    Raises ChecksFailed when a check failed: the publication stands, unless the contract says
    `rollback`, and then readers see again what they saw before.
    """
    epoch = context.runs.status(plan.run_id).epoch
    failed = decisions.failed_blocking_checks(_run_checks(context, plan, row, epoch))
    refused: BackfillError | None = None
    if failed and _is_rollback_declared(plan) and _is_accepted(context, plan, row):
        try:
            _roll_back_publication(context, plan, row, failed, by)
        except REFUSALS as error:
            refused = error
    is_seen = (
        pointer.visible_publication(context.versions.history(plan.product), plan.run_id) is not None
    )
    outcome = "published" if is_seen else "rolled back"
    hooks.call_hooks(
        context, plan, "after_publish", row.token, epoch, outcome=outcome, version=row.version
    )
    if failed:
        raise _checks_failed_error(plan, row, failed, refused, is_seen=is_seen) from refused


def post_publish_outcome(context: Context, plan: Plan, row: Publication) -> PostPublishOutcome:
    """Give the checks and hook calls that followed a publication, as they are recorded."""
    checks = _recorded_checks(context, plan, row) or {"checks": []}
    return PostPublishOutcome(
        tuple(CheckResult.model_validate(check) for check in checks["checks"]),
        hooks.recorded_hook_calls(context, plan, row.token),
    )


def pending_post_publish(context: Context, product: str) -> tuple[str | None, tuple[str, ...]]:
    """Name the run of the accepted act and what was not done yet after it."""
    history = context.versions.history(product)
    row = next((row for row in history if row.action in pointer.ACCEPTED_ACTIONS), None)
    run_id = pointer.newest_published_run(history)
    if row is None or run_id is None or row.action == "baseline":
        return None, ()
    plan = context.runs.plan(run_id)
    if context.runs.status(run_id).state in (RunState.PUBLISHING, RunState.PUBLISH_HALTED):
        return None, ()  # only some steps of it are visible: it is not published yet
    if row.action == "rollback":
        return run_id, hooks.pending_hooks(context, plan, "after_rollback", row.token)
    left = hooks.pending_hooks(context, plan, "after_publish", row.token)
    if _declared_checks(plan) and _recorded_checks(context, plan, row) is None:
        left = ("checks after publish", *left)
    return run_id, left


def run_post_publish(context: Context, product: str, by: str) -> None:
    """Do what was not done yet after the accepted act; raises ChecksFailed as it would have."""
    history = context.versions.history(product)
    row = next(row for row in history if row.action in pointer.ACCEPTED_ACTIONS)
    run_id = pointer.newest_published_run(history)
    if row.action == "rollback":
        rollback.call_after_rollback_hooks(context, row)
    elif run_id is not None:
        run_checks_and_hooks(context, context.runs.plan(run_id), row, by)


def require_no_failed_checks(context: Context, plan: Plan, by: str) -> None:
    """Raise ChecksFailed again when the run's own checks rolled its last publication back.

    The process that did so died before the run was told: to repeat it must not publish once more.
    """
    history = context.versions.history(plan.product)
    mine = (row for row in history if row.action == "publish" and row.run_id == plan.run_id)
    row = next(mine, None)
    if (
        row is None
        or not _is_rollback_declared(plan)
        or _recorded_checks(context, plan, row) is None
    ):
        return
    if decisions.failed_blocking_checks(
        _run_checks(context, plan, row, context.runs.status(plan.run_id).epoch)
    ):
        run_post_publish(context, plan.product, by)
        run_checks_and_hooks(context, plan, row, by)


def _run_checks(
    context: Context, plan: Plan, row: Publication, epoch: int
) -> tuple[CheckResult, ...]:
    if _declared_checks(plan) is None:
        return ()
    known = _recorded_checks(context, plan, row)
    if known is not None:
        return tuple(CheckResult.model_validate(check) for check in known["checks"])
    results = (_check_visible_rows(context, plan, row), *_run_suites(context, plan, row))
    document = {
        "token": row.token,
        "version": row.version,
        "checks": [to_json_value(result.model_dump(mode="json")) for result in results],
    }
    context.evidence.record(plan.run_id, POST_PUBLISH_CHECKS, document, epoch)
    return results


def _declared_checks(plan: Plan) -> AfterPublish | None:
    """Give what is to be checked; correction events leave what readers see as it is."""
    if plan.resolved.manifest.target.publish_mode == "correction_events":
        return None
    return plan.resolved.contract.after_publish


def _visible_scope(plan: Plan, row: Publication) -> Scope | None:
    """Give what became visible: the last row of a run in steps is of its last step alone."""
    return plan.resolved.scope if steps.is_stepwise(plan) else row.scope


def _recorded_checks(context: Context, plan: Plan, row: Publication) -> dict[str, Any] | None:
    found = context.evidence.newest(plan.run_id, POST_PUBLISH_CHECKS)
    return found[1] if found is not None and found[1].get("token") == row.token else None


def _check_visible_rows(context: Context, plan: Plan, row: Publication) -> CheckResult:
    """The rows that readers get are those of the candidate; shared files are not read."""
    shadow = context.tables.describe(plan.shadow_table)
    request = DiffRequest(
        old_table=plan.shadow_table,
        old_snapshot_id=None if shadow is None else shadow.snapshot_id,
        new_table=row.table,
        new_snapshot_id=row.snapshot_id,
        key=plan.resolved.contract.key,
        scope=_visible_scope(plan, row),
        samples=1,
    )
    found = context.differ("local").diff(request).summary
    other = found.added + found.removed + found.changed
    return CheckResult(
        name="readers see the candidate",
        group="technical",
        passed=other == 0,
        detail=f"{other} of {found.new_rows} published rows are not those of the candidate",
        observed=other,
        limit=0,
    )


def _run_suites(context: Context, plan: Plan, row: Publication) -> tuple[CheckResult, ...]:
    wanted, scope = _declared_checks(plan), _visible_scope(plan, row)
    if wanted is None or not wanted.suites or scope is None:
        return ()
    compute = context.compute()
    results: list[CheckResult] = []
    for suite in wanted.suites:
        frame = compute.inspecting.snapshot(row.table, row.snapshot_id, scope)
        results += compute.judge.judge(frame, suite.file, {}, "quality")
    return tuple(results)


def _is_rollback_declared(plan: Plan) -> bool:
    wanted = _declared_checks(plan)
    return wanted is not None and wanted.on_failed == "rollback"


def _is_accepted(context: Context, plan: Plan, row: Publication) -> bool:
    accepted = context.versions.pointer(plan.product).accepted
    return accepted is not None and accepted.token == row.token


def _roll_back_publication(
    context: Context,
    plan: Plan,
    row: Publication,
    failed: tuple[CheckResult, ...],
    by: str,
) -> None:
    reason = f"checks after publish failed: {_check_names(failed)}"
    group = publication_group(context, plan.run_id)
    if group:
        roll_back_group(context, group, reason, by)
        return
    to, only = row.supersedes, tuple[str, ...]()
    if steps.is_stepwise(plan):
        # All steps of the run, and nothing of other runs that became visible between them.
        to = steps.version_before_run(context.versions.history(plan.product), plan.run_id)
        only = plan.resolved.scope.partitions
    way = rollback.plan_rollback(context, plan.product, to, only)
    rollback.apply_rollback(context, plan.resolved.contract, way, reason, by)


def _checks_failed_error(
    plan: Plan,
    row: Publication,
    failed: tuple[CheckResult, ...],
    refused: BackfillError | None,
    *,
    is_seen: bool,
) -> ChecksFailed:
    said = "; ".join(f"{check.name}: {check.detail}" for check in failed)
    if not is_seen:
        state = f"version {row.version} was rolled back; readers see what they saw before"
        fix = errors.plan_command(plan.manifest_file, plan.run_id)
    elif refused is not None:
        why = f"it could not be rolled back: {refused.problem}"
        state = f"version {row.version} is published, and readers see it; {why}"
        fix = refused.fix or errors.plan_command(plan.manifest_file, plan.run_id)
    else:
        state = f"version {row.version} is published, and readers see it"
        fix = f"lakehouse-backfill rollback {plan.product} --reason TEXT, if it is wrong"
    return ChecksFailed(f"{len(failed)} checks after publish failed: {said}", state=state, fix=fix)


def _check_names(failed: tuple[CheckResult, ...]) -> str:
    return ", ".join(check.name for check in failed)
