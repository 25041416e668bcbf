"""Checks after a publication, and owner hooks after a publication or rollback (U14, U15).

Results are recorded under the token of the publication or rollback. After a crash the next
`publish` or `recover` runs only the missing checks and hooks.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication import rollback
from lakehouse_backfill.core.publication.groups import rollbacks
from lakehouse_backfill.core.publication.notice import record_notice
from lakehouse_backfill.core.runs import gate_registry, hooks
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import correction_topic, pointer, steps
from lakehouse_backfill.core.versions.reserve import REFUSALS
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import AfterPublish
from lakehouse_backfill.domain.guards.outside import HookCall
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
    """Checks of the rows that readers see after a publication, and hook calls."""

    checks: tuple[CheckResult, ...]
    calls: tuple[HookCall, ...]


def run_checks_and_hooks(context: Context, plan: Plan, row: Publication, by: str) -> None:
    """Send events to a topic, check what readers see now, and call the hooks.

    What was sent, checks and calls that are recorded are not repeated.

    Raises ChecksFailed when a check failed. The publication stays visible, unless the contract
    declares `rollback`: then readers see again what they saw before.
    """
    correction_topic.send_pending(context, plan.product)
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
    told = record_notice(context, plan, row, epoch) if is_seen else {}
    hooks.call_hooks(
        context, plan, "after_publish", row.token, epoch,
        outcome="published" if is_seen else "rolled back", version=row.version, **told,
    )  # fmt: skip
    if failed:
        raise _checks_failed_error(plan, row, failed, refused, is_seen=is_seen) from refused


def post_publish_outcome(context: Context, plan: Plan, row: Publication) -> PostPublishOutcome:
    """Return the recorded checks and hook calls of a publication."""
    checks = _recorded_checks(context, plan, row) or ()
    return PostPublishOutcome(checks, hooks.recorded_hook_calls(context, plan, row.token))


def pending_post_publish(context: Context, product: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the newest published run of a product, and its pending checks and hooks.

    They belong to the accepted publication or rollback.
    """
    history = context.versions.history(product)
    row = next(iter(pointer.accepted_rows(history)), None)
    run_id = pointer.newest_published_run(history)
    if row is None or run_id is None or row.action == "baseline":
        return None, ()
    plan = context.runs.plan(run_id)
    if context.runs.status(run_id).state in (RunState.PUBLISHING, RunState.PUBLISH_HALTED):
        return None, ()  # only some steps are visible: the run is not published yet
    unsent = correction_topic.pending_topics(context, product)
    left = tuple(f"rollback of {run}" for run in _left_of_group(context, plan, history))
    if row.action == "rollback":
        hooked = hooks.pending_hooks(context, plan, "after_rollback", row.token)
        return run_id, (*unsent, *hooked, *left)
    pending = (*unsent, *hooks.pending_hooks(context, plan, "after_publish", row.token), *left)
    if _declared_checks(plan) and _recorded_checks(context, plan, row) is None:
        pending = ("checks after publish", *pending)
    return run_id, pending


def run_post_publish(context: Context, product: str, by: str) -> None:
    """Run the pending checks and hooks of the accepted publication or rollback.

    Raises ChecksFailed as the first attempt would have.
    """
    history = context.versions.history(product)
    row = pointer.accepted_rows(history)[0]
    run_id = pointer.newest_published_run(history)
    if row.action == "rollback":
        rollback.call_after_rollback_hooks(context, row)
        if run_id is not None and _left_of_group(context, context.runs.plan(run_id), history):
            group = rollback.publication_group(context, run_id)
            reason = f"checks after publish of {run_id} failed"
            rollbacks.roll_back_group(context, group, reason, by)
    elif run_id is not None:
        run_checks_and_hooks(context, context.runs.plan(run_id), row, by)


def _left_of_group(
    context: Context, plan: Plan, history: tuple[Publication, ...]
) -> tuple[str, ...]:
    """Return the runs that readers still see of a group that the run's failed checks took back.

    Followed products go back one after the other, so that a process may stop between them.
    """
    rows = pointer.published_rows(history, plan.run_id)
    if not rows or not _is_rollback_declared(plan):
        return ()
    recorded = _recorded_checks(context, plan, rows[0])
    if recorded is None or not decisions.failed_blocking_checks(recorded):
        return ()
    group = rollback.publication_group(context, plan.run_id)
    left = rollbacks.accepted_members(context, group)
    return left if len(left) < len(group) else ()


def require_no_failed_checks(context: Context, plan: Plan, by: str) -> None:
    """Raise ChecksFailed again when the run's own checks rolled its last publication back.

    The process that rolled it back crashed before it moved the run. Without this check a retry
    would publish the same rows once more.
    """
    rows = pointer.published_rows(context.versions.history(plan.product), plan.run_id)
    if not rows or not _is_rollback_declared(plan):
        return
    recorded = _recorded_checks(context, plan, rows[0])
    if recorded is not None and decisions.failed_blocking_checks(recorded):
        run_post_publish(context, plan.product, by)
        run_checks_and_hooks(context, plan, rows[0], by)


def _run_checks(
    context: Context, plan: Plan, row: Publication, epoch: int
) -> tuple[CheckResult, ...]:
    declared = _declared_checks(plan)
    if declared is None:
        return ()
    recorded = _recorded_checks(context, plan, row)
    if recorded is not None:
        return recorded
    # In steps all of the run became visible: `row` covers the last step only.
    scope = plan.resolved.scope if steps.is_stepwise(plan) else row.scope
    results = [_check_visible_rows(context, plan, row, scope)]
    for suite in declared.suites if scope is not None else ():
        compute = context.compute()
        frame = compute.measuring.frame(row.table, row.snapshot_id, scope)
        results += compute.judge.judge(
            frame, suite.file, {}, "quality", redaction=context.redaction(plan.resolved.contract)
        )
    document = {
        "token": row.token,
        "version": row.version,
        "checks": [to_json_value(result.model_dump(mode="json")) for result in results],
    }
    context.evidence.record(plan.run_id, POST_PUBLISH_CHECKS, document, epoch)
    return tuple(results)


def _declared_checks(plan: Plan) -> AfterPublish | None:
    """Return the declared checks; None for correction events.

    Correction events do not change the rows that readers of the table see.
    """
    if plan.resolved.manifest.target.publish_mode == "correction_events":
        return None
    return plan.resolved.contract.after_publish


def _recorded_checks(
    context: Context, plan: Plan, row: Publication
) -> tuple[CheckResult, ...] | None:
    recorded = context.evidence.newest(plan.run_id, POST_PUBLISH_CHECKS)
    if recorded is None or recorded[1].get("token") != row.token:
        return None
    return tuple(CheckResult.model_validate(check) for check in recorded[1]["checks"])


def _check_visible_rows(
    context: Context, plan: Plan, row: Publication, scope: Scope | None
) -> CheckResult:
    """Check that readers see the rows of the candidate.

    Files that both tables share are not read.
    """
    shadow = context.tables.describe(plan.shadow_table)
    request = DiffRequest(
        old_table=plan.shadow_table,
        old_snapshot_id=None if shadow is None else shadow.snapshot_id,
        new_table=row.table,
        new_snapshot_id=row.snapshot_id,
        key=plan.resolved.contract.key,
        scope=scope,
        samples=1,
    )
    summary = context.differ("local").diff(request).summary
    differing = summary.added + summary.removed + summary.changed
    return CheckResult(
        name="readers see the candidate",
        group="technical",
        passed=differing == 0,
        detail=f"{differing} of {summary.new_rows} published rows are not those of the candidate",
        observed=differing,
        limit=0,
    )


def _is_rollback_declared(plan: Plan) -> bool:
    declared = _declared_checks(plan)
    return declared is not None and declared.on_failed == "rollback"


def _is_accepted(context: Context, plan: Plan, row: Publication) -> bool:
    accepted = context.versions.pointer(plan.product).accepted
    return accepted is not None and accepted.token == row.token


def _roll_back_publication(
    context: Context, plan: Plan, row: Publication, failed: tuple[CheckResult, ...], by: str
) -> None:
    names = ", ".join(map(gate_registry.check_title, failed))
    reason = f"checks after publish failed: {names}"
    group = rollback.publication_group(context, plan.run_id)
    if group:
        rollbacks.roll_back_group(context, group, reason, by)
        return
    version, labels = row.supersedes, tuple[str, ...]()
    if steps.is_stepwise(plan):
        # All steps of this run, but not the runs that were published between them.
        version = steps.version_before_run(context.versions.history(plan.product), plan.run_id)
        labels = plan.resolved.scope.partitions
    target = rollback.plan_rollback(context, plan.product, version, labels)
    rollback.apply_rollback(context, plan.resolved.contract, target, reason, by)


def _checks_failed_error(
    plan: Plan,
    row: Publication,
    failed: tuple[CheckResult, ...],
    refused: BackfillError | None,
    *,
    is_seen: bool,
) -> ChecksFailed:
    details = gate_registry.describe_checks(failed)
    if not is_seen:
        state = f"version {row.version} was rolled back; readers see what they saw before"
        if refused is not None:
            state += f"; another of its group could not be rolled back: {refused.problem}"
        fix = plan_command(plan.manifest_file, plan.run_id)
    elif refused is not None:
        reason = f"it could not be rolled back: {refused.problem}"
        state = f"version {row.version} is published, and readers see it; {reason}"
        fix = refused.fix or plan_command(plan.manifest_file, plan.run_id)
    else:
        state = f"version {row.version} is published, and readers see it"
        fix = f"lakehouse-backfill rollback {plan.product} --reason TEXT, if it is wrong"
    return ChecksFailed(
        f"{len(failed)} checks after publish failed: {details}", state=state, fix=fix
    )
