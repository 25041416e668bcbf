"""The next command of a run where the one of its state would be refused.

A command is a template: `{run}`, `{product}`, and for the commands that plan the run's file, alone
or as a revision of the run, `{plan}` and `{replan}`.
"""

from __future__ import annotations

from contextlib import suppress

from lakehouse_backfill.core.planning.other_runs import find_conflicting_runs
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import (
    EnvironmentDown,
    NotFound,
    PointerMoved,
    Tampered,
    TargetChanged,
    Unsupported,
)

_CHANGED = "{replan}   # its partitions changed since it was planned"
_OVERTAKEN = "{replan}   # another version became accepted since it was planned"
_UNANSWERED = "{replan}   # once the questions of its checklist are answered"
_RETIRED = "{plan}   # its shadow was removed; planned again, it is a new run"

_CORRECTED = "cancel {cascade}   # once manifest or code is corrected; then plan it again"
#: The next command of a run of a cascade, where it is not published, revised or planned alone.
_MEMBER_COMMANDS = {
    RunState.ACCEPTED: "publish {cascade}",
    RunState.ROLLED_BACK: "publish {cascade}",
    RunState.HALTED: _CORRECTED,
    RunState.REJECTED: _CORRECTED,
    RunState.CANCELLED: "status {cascade}",
}


def exceptional_command(
    context: Context, status: RunStatus, plan: Plan | None, *, look: bool
) -> str | None:
    """Return the next command where that of the run's state would be refused; else None.

    With `look`, the target's metadata and other open runs are read for conflicts; else the run's
    log alone decides.
    """
    if plan is None:
        return _of_edited_plan(context, status) if look else None
    found = _exceptional_command(context, status, plan, look=look)
    return found if plan.cascade is None else _of_member(plan, status, found)


def _of_edited_plan(context: Context, status: RunStatus) -> str | None:
    """Return what frees the product of an open run whose plan was edited; None for other runs."""
    if status.state not in lifecycle.MOVES["cancel"][0]:
        return None
    try:
        context.runs.plan(status.run_id)
    except Tampered:
        if context.profile.requires_signatures:
            return "log {run}   # its row in pipeline_run was edited: put it back"
        return "cancel {run} --reason TEXT   # its row in pipeline_run was edited"
    except NotFound:
        return None
    return None


def _of_member(plan: Plan, status: RunStatus, found: str | None) -> str | None:
    """Return the command of the cascade where the run's own would be refused."""
    cascade_id = plan.cascade.cascade_id if plan.cascade else ""
    if found == _RETIRED:
        return f"status {cascade_id}   # {found.partition('# ')[2]}"
    if found in (_CHANGED, _OVERTAKEN, _UNANSWERED):
        if status.state in (RunState.ACCEPTED, RunState.PLANNED):
            return f"cancel {cascade_id}   # {found.partition('# ')[2]}; then plan it again"
        return f"status {cascade_id}   # {found.partition('# ')[2]}"
    if found is not None or publish_modes.is_externally_written(plan):
        return found
    command = _MEMBER_COMMANDS.get(status.state)
    return command.format(cascade=cascade_id) if command else None


def _exceptional_command(
    context: Context, status: RunStatus, plan: Plan, *, look: bool
) -> str | None:
    if status.state is RunState.ROLLED_BACK:
        if any(event.verb == "retire" for event in context.runs.events(status.run_id)):
            return _RETIRED
        return _conflict(context, plan) if look else None
    if status.state is RunState.PLANNED:
        return _before_approval(context, plan, look=look)
    if status.state is not RunState.ACCEPTED:
        return None
    if publish_modes.is_never_published(plan):
        return "evidence {run}   # it is never published"
    return _after_conflict(context, status, plan) or (_conflict(context, plan) if look else None)


def _before_approval(context: Context, plan: Plan, *, look: bool) -> str | None:
    """Return what comes first where an approval would be refused."""
    # What makes the answers loads the rules over code; few runs wait for an approval.
    from lakehouse_backfill.core.planning.checklist import unanswered_questions

    if unanswered_questions(plan.checklist):
        return _UNANSWERED
    if look:
        for other in find_conflicting_runs(context, plan.resolved, {plan.run_id, plan.revises}):
            return (
                f"status {other.run_id}   # it restates the same partitions: finish it, or close "
                "it by cancel"
            )
    return None


def _after_conflict(context: Context, status: RunStatus, plan: Plan) -> str | None:
    """Return what follows a conflict that stopped the last publication, and that stays."""
    moves = [one for one in context.runs.events(status.run_id) if one.from_state != one.to_state]
    stopped_by = moves[-1].detail.get("stopped_by") if moves else None
    if stopped_by == TargetChanged.code:
        return _CHANGED
    is_overtaken = stopped_by == PointerMoved.code and publish_modes.is_pinned_product(plan)
    return _OVERTAKEN if is_overtaken else None


def _conflict(context: Context, plan: Plan) -> str | None:
    """Return what follows when the lake shows now that the run cannot be published."""
    target, manifest = plan.resolved.target, plan.resolved.manifest
    with suppress(NotFound, EnvironmentDown, Unsupported):
        if publish_modes.is_pinned_product(plan):
            accepted = context.versions.pointer(plan.product).accepted
            base = (target.table, target.snapshot_id)
            is_base = accepted is None or (accepted.table, accepted.snapshot_id) == base
            return None if is_base else _OVERTAKEN
        replaces = manifest.target.publish_mode == "replace_partitions"
        follows = manifest.safety.on_conflict == "catch_up"
        if replaces and not follows and target.snapshot_id is not None:
            scope = plan.resolved.scope
            if context.publisher.changes(target.table, scope, target.snapshot_id):
                return _CHANGED
    return None
