"""The status of a run, and of all runs; nothing here writes.

The status of a run answers three questions first: is my data safe, what do readers see, and what is
the next command.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace

from lakehouse_backfill.command_lines import PROGRAM, command_line, plan_command, with_remark
from lakehouse_backfill.core.evidence.next_commands import exceptional_command
from lakehouse_backfill.core.planning.target import column_scope, publish_modes
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer, readers, steps
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.errors import EnvironmentDown, NotFound, Tampered, Unsupported

S = RunState


@dataclass(frozen=True)
class SafetySummary:
    """The three answers for a worried person: is data safe, what do readers see, what next."""

    is_safe: str
    readers_see: str
    next_command: str


_OLD = "the accepted version as before; nothing of this run"
#: Completed by what was looked at: the head of the target, or nothing.
_SAFE = "this run has published nothing"
_NOT_LOOKED_AT = f"{_SAFE}; whether others changed the target was not looked at"

_SUMMARY_BY_STATE: dict[RunState, tuple[str, str, str]] = {
    S.DRAFT: (_SAFE, _OLD, "recover {run}"),
    S.PLANNED: (_SAFE, _OLD, "approve {run}"),
    S.APPROVED: (_SAFE, _OLD, "run {run}"),
    S.STAGING: (_SAFE, _OLD, "run {run}"),
    S.STAGED: (_SAFE, _OLD, "validate {run}"),
    S.VALIDATED: (_SAFE, _OLD, "accept {run}"),
    S.ACCEPTED: (_SAFE, _OLD, "publish {run}"),
    S.PUBLISHING: (
        "yes: publication is one commit; it landed whole or not at all",
        "either the old or the new partitions, never a mix",
        "publish {run}",
    ),
    S.PUBLISH_HALTED: (
        "yes: each step was one commit, and what it replaced is pinned and can come back",
        "the steps of this run that were published; the other partitions as before",
        "publish {run}   # goes on when the cause is gone",
    ),
    S.PUBLISHED: (
        "yes: the old partitions are pinned and can come back",
        "the restated partitions of this run",
        "rollback {product} --reason TEXT   # only if you want them back",
    ),
    S.ROLLED_BACK: (
        "yes: the old partitions are back",
        "the version from before this run",
        "publish {run}   # publishes it again",
    ),
    S.FAILED: (_SAFE, _OLD, "run {run}   # redoes only unfinished chunks"),
    S.HALTED: (_SAFE, _OLD, "{replan}   # once manifest or code is corrected"),
    S.PAUSED: (_SAFE, _OLD, "unpause {run}   # then run it: chunks that are done stay done"),
    S.REJECTED: (_SAFE, _OLD, "{replan}   # once manifest or code is corrected"),
    S.CANCELLED: (_SAFE, _OLD, "{plan}"),
    S.SUPERSEDED: (_SAFE, "what the run that replaced it says", "status"),
}


#: Texts for runs whose partitions had no rows before.
_FIRST_ROWS_BY_STATE: dict[RunState, tuple[str, str, str]] = {
    S.PUBLISHING: (
        "yes: publication is one commit; it landed whole or not at all",
        "either the first rows of these partitions or none, never some of them",
        "publish {run}",
    ),
    S.PUBLISHED: (
        "yes: nothing was there before, so nothing was replaced",
        "the first rows of these partitions, by this run",
        "rollback {product} --reason TEXT   # only to empty these partitions again",
    ),
    S.ROLLED_BACK: (
        "yes: the partitions are empty again, as before",
        "no rows in these partitions, as before this run",
        "publish {run}   # publishes it again",
    ),
}
_NO_ROWS = "no rows in these partitions, as before; nothing of this run"


#: States in which readers get, or got, output of the run. Their texts hold if the table was looked
#: at and nothing was found; `_compare_with_readers` adds what was found.
_VISIBLE_STATES = frozenset({S.PUBLISHED, S.PUBLISH_HALTED, S.ROLLED_BACK})
_TABLE_NOT_LOOKED_AT = "; by its log: the table was not looked at"

#: The next command where another engine writes the shadow.
_EXTERNAL_COMMANDS = {
    S.APPROVED: "shadow open {run}",
    S.PAUSED: "shadow close {run}   # once it is written",
    S.FAILED: "shadow close {run}",
    S.HALTED: "shadow close {run}   # once it is corrected",
}

#: States in which a run has a driver, and what the driver does.
_DRIVER_ACTIVITY = {S.STAGING: "staging", S.PUBLISHING: "publishing"}


def _summary_texts(state: RunState, *, was_empty: bool) -> tuple[str, str, str]:
    is_safe, readers_see, command = _SUMMARY_BY_STATE[state]
    if not was_empty:
        return is_safe, readers_see, command
    return _FIRST_ROWS_BY_STATE.get(
        state, (is_safe, _NO_ROWS if readers_see == _OLD else readers_see, command)
    )


def summarise_safety(
    state: RunState,
    run_id: str,
    product: str,
    *,
    gone: tuple[str, ...] = (),
    version: int = 0,
    driver: str | None = None,
    is_driven: bool = False,
    manifest_file: str = "",
    was_empty: bool = False,
    is_external: bool = False,
    exception: str | None = None,
) -> SafetySummary:
    """Return the three answers for a run in `state`.

    `gone` are partitions of a published run that were rolled back since its output `version`.
    `driver` is the process that works on the run; unless `is_driven`, that process is gone.
    `manifest_file` is the file that the run was planned from. `was_empty`: its partitions had no
    rows before. `is_external`: another engine writes its shadow. `exception` replaces the
    next command of a state in which it would be refused.
    """
    is_safe, readers_see, command = _summary_texts(state, was_empty=was_empty)
    activity = _DRIVER_ACTIVITY.get(state, "validating")
    if driver is not None and not is_driven:
        is_safe += f"; {driver} was {activity} it and is gone"
    if is_driven:
        command = f"status {{run}}   # {driver} is {activity} it"
    elif driver is not None and state in _DRIVER_ACTIVITY:
        command = "recover {run}"
    elif exception is not None:
        command = exception
    elif is_external:
        command = _EXTERNAL_COMMANDS.get(state, command)
    if gone:
        readers_see += f", except {partitions.describe_labels(gone)}, rolled back since"
        command = f"rollback {{product}} --to {version} --reason TEXT   # brings them back"
    replan = plan_command(manifest_file, run_id)
    plan = plan_command(manifest_file) if manifest_file else command_line("status", run_id)
    texts = {"run": shlex.quote(run_id), "product": shlex.quote(product)}
    whole = {"plan": plan, "replan": replan}
    lines = {name: line.removeprefix(f"{PROGRAM} ") for name, line in whole.items()}
    text = f"{PROGRAM} {command.format(**texts, **lines)}"
    return SafetySummary(is_safe=is_safe, readers_see=readers_see, next_command=text)


WAITING_FOR_PEOPLE = (
    "planned", "validated", "accepted", "rejected", "halted", "publish_halted", "failed",
)  # fmt: skip

#: States whose next command depends on the plan (its file, who writes the shadow, whether it may
#: be published) or that describe its partitions: only then is the plan read.
_PLAN_STATES = frozenset(
    {
        S.PLANNED,
        S.ACCEPTED,
        S.REJECTED,
        S.CANCELLED,
        S.PUBLISH_HALTED,
        S.ROLLED_BACK,
        *_EXTERNAL_COMMANDS,
    }
)


def list_runs(context: Context, *, everything: bool) -> list[RunStatus]:
    """List runs: those that wait for a person first, then the newest."""
    statuses = context.runs.list(open_only=not everything)
    newest = sorted(statuses, key=lambda item: item.at, reverse=True)
    return sorted(newest, key=lambda item: item.state.value not in WAITING_FOR_PEOPLE)


def summarise_run_safety(
    context: Context, status: RunStatus, *, was_empty: bool = False, look: bool = False
) -> SafetySummary:
    """Return whether data is safe, what readers see, and the next command.

    `was_empty`: its partitions had no rows before. With `look`, the target of a run that has
    published nothing is read; else the summary says that it was not.
    """
    rolled_back: tuple[str, ...] = ()
    version = 0
    history: tuple[Publication, ...] = ()
    if status.state in _VISIBLE_STATES:
        history = context.versions.history(status.product)
    if status.state is RunState.PUBLISHED:
        version, rolled_back = pointer.rolled_back_since(history, status.run_id)
    plan = _known_plan(context, status.run_id) if status.state in _PLAN_STATES else None
    summary = summarise_safety(
        status.state, status.run_id, status.product, gone=rolled_back, version=version,
        driver=status.driver, is_driven=context.is_driven_elsewhere(status),
        manifest_file=plan.manifest_file if plan else "",
        was_empty=was_empty,
        is_external=plan is not None and publish_modes.is_externally_written(plan),
        exception=exceptional_command(context, status, plan, look=look),
    )  # fmt: skip
    if summary.is_safe.startswith(_SAFE):
        target = _look_at_target(context, status) if look else _NOT_LOOKED_AT
        summary = replace(summary, is_safe=target + summary.is_safe.removeprefix(_SAFE))
    if status.state is RunState.PUBLISH_HALTED and plan is not None:
        visible = steps.describe_visible_partitions(history, plan)
        summary = replace(summary, readers_see=visible)
    if status.state not in _VISIBLE_STATES:
        return summary
    if not look:
        is_safe = summary.is_safe.removeprefix("yes: ") + _TABLE_NOT_LOOKED_AT
        return replace(
            summary, is_safe=is_safe, readers_see=summary.readers_see + _TABLE_NOT_LOOKED_AT
        )
    summary = _with_restated_columns(context, status, summary)
    return _compare_with_readers(context, status, summary, history)


def _with_restated_columns(
    context: Context, status: RunStatus, summary: SafetySummary
) -> SafetySummary:
    """Say which columns readers see restated, where a published run restates only some."""
    if status.state is not RunState.PUBLISHED:
        return summary
    plan = _known_plan(context, status.run_id)
    if plan is None or not publish_modes.restates_columns(plan):
        return summary
    columns = column_scope.describe_columns(plan.resolved.manifest.target)
    return replace(summary, readers_see=f"only columns {columns} of {summary.readers_see}")


def with_log_fault(
    summary: SafetySummary, status: RunStatus, events: tuple[Event, ...]
) -> SafetySummary:
    """Say first that the run's log was edited, if it was: its state is read from there."""
    try:
        event_log.require_intact_log(status, events)
    except Tampered as error:
        rest = summary.is_safe.removeprefix("yes: ")
        return replace(summary, is_safe=f"{error.problem}; by the tables, {rest}")
    return summary


def _compare_with_readers(
    context: Context, status: RunStatus, summary: SafetySummary, history: tuple[Publication, ...]
) -> SafetySummary:
    """Add what the table shows now: partitions that others changed, old rows that are not held."""
    view = readers.look_at_readers(context, history, status.run_id)
    is_safe, before = summary.is_safe, summary.is_safe.removeprefix("yes: ")
    if view.changed:
        is_safe = f"readers do not get all of its partitions; before that, {before}"
    elif view.unknown:
        is_safe = f"its partitions could not be compared; by its log, {before}"
    is_other = view.changed or view.unknown
    if is_other and status.state is RunState.PUBLISHED and " rollback " in summary.next_command:
        dry_run = f"{summary.next_command.partition('   # ')[0]} --dry-run"
        line = with_remark(dry_run, "says whether the old rows can come back")
        summary = replace(summary, next_command=line)
    if status.state is not RunState.ROLLED_BACK:
        is_safe = _with_restorability(context, status, history, is_safe)
    see = "; ".join(filter(None, (summary.readers_see, view.exceptions())))
    return replace(summary, is_safe=is_safe, readers_see=see)


def _with_restorability(
    context: Context, status: RunStatus, history: tuple[Publication, ...], is_safe: str
) -> str:
    """Replace `is_safe` where the rows that the run replaced are not held any more."""
    try:
        plan = context.runs.plan(status.run_id)
    except (NotFound, Tampered) as error:
        return f"{is_safe.removeprefix('yes: ')}; by its log only: {error.problem}"
    if plan.resolved.manifest.target.publish_mode == "correction_events":
        return "yes: its corrections are events beside the table; a rollback appends opposites"
    is_pinned, run_id = publish_modes.is_pinned_product(plan), status.run_id
    try:
        lost = readers.why_not_restorable(context, history, run_id, is_pinned=is_pinned)
    except Unsupported as error:
        return f"not known: what it replaced could not be looked at: {error.problem}"
    return f"NO: what it replaced cannot be restored: {lost}" if lost else is_safe


def _look_at_target(context: Context, status: RunStatus) -> str:
    """Describe the target of a run that has published nothing, from its head of this moment."""
    try:
        pinned = context.runs.plan(status.run_id).resolved.target
        found = context.tables.describe(pinned.table)
    except (NotFound, Tampered, EnvironmentDown, Unsupported) as error:
        return f"{_SAFE}; its target could not be looked at: {error.problem}"
    if (found and found.snapshot_id) == pinned.snapshot_id:
        return f"yes: {_SAFE}, and {pinned.table} is still at the snapshot that it started from"
    now = found.snapshot_id if found else "dropped"
    return (
        f"{_SAFE}; {pinned.table} was changed by other commits since it was planned (snapshot "
        f"{pinned.snapshot_id}, now {now}); publish looks at what they changed in its partitions"
    )


def _known_plan(context: Context, run_id: str) -> Plan | None:
    """Return the plan of a run; None when it is missing or was edited."""
    with suppress(NotFound, Tampered):
        return context.runs.plan(run_id)
    return None
