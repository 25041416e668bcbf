"""Recovery actions: finish or undo publications, rollbacks and runs that were interrupted.

Covers plans without a first event, runs without a driver, reservations, runs whose state disagrees
with the pointer, and checks or hooks that did not finish.

The actions are found by reading alone; a dry run lists exactly them. Executing an action calls the
verbs themselves, which inspect the lake before they write. So a second recovery finds nothing to
do, and an interrupted recovery is recovered like any other process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.planning.other_runs import supersede_revised_run
from lakehouse_backfill.core.planning.plan import register_plan
from lakehouse_backfill.core.publication import catch_up, post_publish, publish, rollback
from lakehouse_backfill.core.publication.expose import find_landed_swap
from lakehouse_backfill.core.runs import anchors, hooks, lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.core.versions.reserve import (
    REFUSALS,
    is_reservation_active,
    release_version,
)
from lakehouse_backfill.domain.identity.statement import AnchorRecord
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication, missing_rows_error, pointer_fault
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import BackfillError, IllegalMove, NotFound

#: States that imply whether readers see a run's output, and the visibility that disproves each.
#: The pointer decides.
CONTRADICTED_BY_VISIBILITY = {
    RunState.PUBLISHED: False,
    RunState.PUBLISH_HALTED: False,
    RunState.ROLLED_BACK: True,
    RunState.ACCEPTED: True,
}


@dataclass(frozen=True)
class RecoveryAction:
    """Something that was interrupted, and the action that finishes or undoes it."""

    subject: str
    action: str
    because: str
    execute: Callable[[str], str]


def halt_hook_actions(context: Context, status: RunStatus, plan: Plan) -> Iterator[RecoveryAction]:
    """Yield an action for the pending hooks of a run that halted."""
    if status.state not in (RunState.HALTED, RunState.PUBLISH_HALTED):
        return
    pending = hooks.pending_halt_hooks(context, plan)
    if pending:
        because = f"it halted, and was not told: {', '.join(pending)}"
        yield RecoveryAction(
            status.run_id, "tell of the halt", because,
            lambda _: _describe_retry(hooks.notify_halted(context, plan)),
        )  # fmt: skip


@dataclass(frozen=True)
class _Subjects:
    """Looks at one run or product after the other; of all, one that is bad does not stop the rest.

    The error of a bad one is an action that fails, once for each problem.
    """

    is_one_run: bool
    told: set[str] = field(default_factory=set)

    def look(self, subject: str, actions: Iterable[RecoveryAction]) -> Iterator[RecoveryAction]:
        """Yield the actions; raises what is wrong with the subject only when one run is named."""
        try:
            yield from actions
        except BackfillError as error:
            if self.is_one_run:
                raise
            if error.problem not in self.told:
                self.told.add(error.problem)
                yield RecoveryAction(
                    subject, "look at it", error.problem, partial(_raise_error, error)
                )


def _runs_out_of_step_with_pointer(
    context: Context, product: str, runs: Iterable[RunStatus]
) -> Iterator[RecoveryAction]:
    """Yield an action for each run whose state disagrees with the pointer."""
    history = context.versions.history(product)
    published_runs = {row.run_id for row in history if row.action == "publish"}
    for run in runs:
        seen = _contradiction(history, run) if run.run_id in published_runs else ""
        if seen and not context.is_driven_elsewhere(run):
            because = f"it is {run.state.value}, and {seen}"
            execute = partial(_align_run_state, context, run.run_id)
            yield RecoveryAction(run.run_id, "tell the run", because, execute)


def _contradiction(history: tuple[Publication, ...], run: RunStatus) -> str:
    """Describe what readers see where that disproves the run's state; empty if it does not."""
    is_visible = pointer.visible_publication(history, run.run_id) is not None
    if is_visible is not CONTRADICTED_BY_VISIBILITY.get(run.state):
        return ""
    return "readers see its output" if is_visible else "readers do not see its output"


def _align_run_state(context: Context, run_id: str, by: str) -> str:
    reason = "recovered: the pointer says so"
    contract = context.runs.plan(run_id).resolved.contract
    rollback.show_and_align(context, contract, (run_id,), (run_id,), by, reason)
    status = context.runs.status(run_id)
    return "; ".join((status.state.value, *effect_log.messages_lost(context, status)))


def _post_publish_actions(context: Context, product: str) -> Iterator[RecoveryAction]:
    """Yield an action for missing or failed checks and hooks after the newest act on a product."""
    run_id, pending = post_publish.pending_post_publish(context, product)
    if run_id is None or not pending or context.is_driven_elsewhere(context.runs.status(run_id)):
        return
    because = f"after its last act was not done: {', '.join(pending)}"
    yield RecoveryAction(
        product, "follow it up", because, partial(_complete_post_publish, context, product)
    )


def _inverse_actions(context: Context, run: RunStatus) -> Iterator[RecoveryAction]:
    """Yield an action for messages of a void run that its sinks were not told to undo."""
    if run.state in effect_log.VOID_STATES and (
        pending := effect_log.pending_inverses(context, run.run_id)
    ):
        because = f"it is {run.state.value}, and was not done: {', '.join(pending)}"
        execute = partial(_undo_messages, context, run.run_id)
        yield RecoveryAction(run.run_id, "undo its messages", because, execute)


def _undo_messages(context: Context, run_id: str, by: str) -> str:  # noqa: ARG001
    return _describe_retry(effect_log.undo_messages(context, run_id))


def _release_hook_actions(context: Context, run: RunStatus) -> Iterator[RecoveryAction]:
    """Yield an action for the pending hooks of a released publication.

    They resume what before_publish paused.
    """
    if run.state not in (RunState.ACCEPTED, RunState.PUBLISH_HALTED) or context.is_driven_elsewhere(
        run
    ):
        return
    token = hooks.released_token(context.versions.history(run.product), run.run_id)
    pending = (
        ()
        if token is None
        else hooks.pending_release_hooks(context, context.runs.plan(run.run_id), token)
    )
    if token is not None and pending:
        because = f"its publication was given back, and was not told: {', '.join(pending)}"
        execute = partial(_call_release_hooks, context, run, token)
        yield RecoveryAction(run.run_id, "tell of the return", because, execute)


def _call_release_hooks(context: Context, run: RunStatus, act: str, by: str) -> str:  # noqa: ARG001
    released = [event for event in context.runs.events(run.run_id) if "problem" in event.detail]
    problem = str(released[-1].detail["problem"]) if released else ""
    plan = context.runs.plan(run.run_id)
    return _describe_retry(hooks.notify_released(context, plan, act, run.epoch, problem))


def _complete_post_publish(context: Context, product: str, by: str) -> str:
    post_publish.run_post_publish(context, product, by)
    return _describe_retry(post_publish.pending_post_publish(context, product)[1])


def _describe_retry(failed: Iterable[str]) -> str:
    names = ", ".join(failed)
    return f"failed again: {names}" if names else "done"


#: The process that stores a younger plan may still be between its two commits.
DRAFT_GRACE = timedelta(minutes=1)


@dataclass(frozen=True)
class RecoveryOutcome:
    """One action that was executed (in a dry run: would be), or why it failed."""

    subject: str
    action: str
    because: str
    result: str
    is_done: bool


def recover(
    context: Context, run_id: str | None, by: str, *, dry_run: bool = False
) -> tuple[RecoveryOutcome, ...]:
    """Finish or undo what was interrupted: of one run and its product, or of all.

    Makes no new decision: publications and rollbacks continue in the name of the actor who began
    them, or are released when the lake refuses them now. A run that another process drives is left
    alone. Raises RunMoved (another process drives the named run), NotFound. With `run_id` None, the
    failure of one action is reported in its outcome.
    """
    outcomes: list[RecoveryOutcome] = []
    for recovery in _find_actions(context, run_id, dry_run=dry_run):
        result, is_done = "dry run", True
        if not dry_run:
            try:
                result = recovery.execute(by)
            except BackfillError as error:
                if run_id is not None:
                    raise
                result, is_done = f"{error.problem} ({error.state}); fix: {error.fix}", False
            context.journal_of(recovery.subject).log(
                "recovered", subject=recovery.subject, action=recovery.action, result=result
            )
        outcomes.append(
            RecoveryOutcome(recovery.subject, recovery.action, recovery.because, result, is_done)
        )
    return tuple(outcomes)


def _find_actions(
    context: Context, run_id: str | None, *, dry_run: bool
) -> Iterator[RecoveryAction]:
    """Yield the actions lazily: later ones read what earlier ones have written.

    The caller executes each action before it asks for the next one.
    """
    drafts = list(_draft_actions(context, run_id))
    yield from drafts
    if dry_run and run_id is not None and drafts:
        return
    if run_id is None:
        open_runs = [run for run in context.runs.list() if not context.is_driven_elsewhere(run)]
    else:
        open_runs = [context.runs.status(run_id)]
        context.require_no_other_driver(open_runs[0])
    products = {open_runs[0].product} if run_id is not None else None
    yield from _pointer_actions(context, products)
    subjects = _Subjects(is_one_run=run_id is not None)
    context.progress.count("recover", len(open_runs), "open runs")
    for status in open_runs:
        yield from subjects.look(status.run_id, _run_actions(context, status))
        context.progress.advance()
    context.progress.finish()
    for pending in context.versions.pending():
        if products is None or pending.product in products:
            subject = pending.run_id or pending.product
            yield from subjects.look(subject, _reservation_actions(context, pending))
    yield from _closing_actions(context, products, subjects)
    yield from _anchor_actions(context, run_id, products)


def _closing_actions(
    context: Context, products: set[str] | None, subjects: _Subjects
) -> Iterator[RecoveryAction]:
    """Yield what is left to do for runs that are over: states, checks, hooks and messages."""
    runs = context.runs.list(open_only=False)
    names = sorted({run.product for run in runs} if products is None else products)
    for product in names:
        found = _runs_out_of_step_with_pointer(context, product, runs)
        yield from subjects.look(product, found)
    for product in names:
        yield from subjects.look(product, _post_publish_actions(context, product))
    for run in context.runs.list(open_only=False):
        if run.product in names:
            yield from subjects.look(run.run_id, _release_hook_actions(context, run))
            yield from subjects.look(run.run_id, _inverse_actions(context, run))


def _anchor_actions(
    context: Context, run_id: str | None, products: set[str] | None
) -> Iterator[RecoveryAction]:
    """Yield an action for each head of a log that the anchor outside the lake lacks."""
    missing = anchors.missing_records(context, run_id, next(iter(products or ()), None))
    for record in list(missing):
        because = f"event or row {record.count} is not in the anchor"
        execute = partial(_anchor, context, record)
        yield RecoveryAction(record.subject, "anchor the log", because, execute)


def _anchor(context: Context, record: AnchorRecord, by: str) -> str:  # noqa: ARG001 (as all actions)
    if context.anchor is not None:
        context.anchor.keep(record)
    return "anchored"


def _raise_error(error: BackfillError, by: str) -> str:  # noqa: ARG001 (as all actions)
    raise error


def _pointer_actions(context: Context, products: set[str] | None) -> Iterator[RecoveryAction]:
    """Yield an action for each pointer that is not the one that its rows lead to."""
    for product, (rows, found) in context.audit.products().items():
        fault = pointer_fault(product, rows, found)
        if fault is not None and (products is None or product in products):
            execute = partial(_rebuild_pointer, context, product, rows)
            yield RecoveryAction(product, "rebuild the pointer", fault, execute)


def _rebuild_pointer(context: Context, product: str, rows: tuple[Publication, ...], by: str) -> str:
    """Write the pointer again from its rows, unless a run knows of a row that is missing."""
    history = tuple(reversed(rows))
    runs = [run for run in context.runs.list(open_only=False) if run.product == product]
    for run in runs:
        seen = _contradiction(history, run)
        if seen:
            raise missing_rows_error(
                f"{product}: by its rows {seen}, but {run.run_id} is {run.state.value}: rows are "
                "missing, or the run was cut off"
            )
    events = (event for run in runs for event in context.runs.events(run.run_id))
    published = (event.detail for event in events if event.verb == "finish publishing")
    tokens = {str(detail["token"]) for detail in published if "token" in detail}
    rebuilt = context.versions.rebuild(product, tokens).accepted
    context.journal.log("pointer rebuilt", product=product, by=by)
    return f"version {rebuilt.version} is accepted" if rebuilt else "nothing is accepted yet"


def _draft_actions(context: Context, run_id: str | None) -> Iterator[RecoveryAction]:
    newest_created_at = context.clock.now() - DRAFT_GRACE
    for plan in context.audit.drafts():
        if plan.run_id == run_id or (run_id is None and plan.created_at < newest_created_at):
            yield RecoveryAction(
                plan.run_id,
                "register the plan",
                "it was stored, its first event was not",
                partial(_register_draft, context, plan),
            )


def _register_draft(context: Context, plan: Plan, by: str) -> str:
    register_plan(context, plan, by)
    return f"planned; next: lakehouse-backfill approve {plan.run_id}"


def _run_actions(context: Context, status: RunStatus) -> Iterator[RecoveryAction]:
    if status.state not in lifecycle.OPEN_STATES:
        return
    plan = context.runs.plan(status.run_id)
    if plan.revises is not None and _is_left_open(context, plan.revises):
        yield RecoveryAction(
            plan.revises,
            "supersede the revised run",
            f"{plan.run_id} takes its place",
            partial(_supersede_revised, context, plan),
        )
    if status.state is RunState.PLANNED and plan.resolved.catch_up is not None:
        yield RecoveryAction(
            status.run_id,
            "carry the approval over",
            f"it catches up with live commits for {plan.resolved.catch_up.of}",
            partial(_carry_over, context, plan),
        )
    yield from halt_hook_actions(context, status, plan)
    because = f"its driver {status.driver} is gone"
    if status.state is RunState.STAGING:
        execute = partial(_end_staging, context, status, plan)
        yield RecoveryAction(status.run_id, "end the staging", because, execute)
    if status.state is RunState.PUBLISHING:
        execute = partial(_finish_publication, context, status)
        yield RecoveryAction(status.run_id, "finish the publication", because, execute)


def _carry_over(context: Context, plan: Plan, by: str) -> str:
    """Carry the approval over; the next steps need Spark and are run by `publish`."""
    catch_up.carry_over_approval(context, plan, by)
    return f"approved; next: lakehouse-backfill publish {plan.run_id}"


def _is_left_open(context: Context, run_id: str) -> bool:
    status = context.runs.status(run_id)
    is_open = status.state in lifecycle.MOVES["supersede"][0] & lifecycle.OPEN_STATES
    return is_open and not context.is_driven_elsewhere(status)


def _supersede_revised(context: Context, plan: Plan, by: str) -> str:
    supersede_revised_run(context, plan, by)
    return "superseded"


def _end_staging(context: Context, status: RunStatus, plan: Plan, by: str) -> str:
    """Fail the run; staged chunks stay, and the next `run` stages the others again."""
    staged = 0
    if context.tables.describe(plan.shadow_table) is not None:
        staged = len({chunk.chunk_id for chunk in context.shadows.chunks(plan.shadow_table)})
    problem = f"its driver {status.driver} stopped without a word"
    context.require_no_other_driver(status)
    context.move(status, plan, "fail", by, problem=problem, chunks=staged)
    return (
        f"failed, with {staged} of {len(plan.resolved.chunks)} chunks staged; "
        f"next: lakehouse-backfill run {plan.run_id}"
    )


def _finish_publication(context: Context, status: RunStatus, by: str) -> str:
    """Publish in the name of the actor who began.

    That actor held the role, and the result was accepted.
    """
    if context.runs.status(status.run_id) != status:
        return "it went on meanwhile"
    events = context.runs.events(status.run_id)
    actors = [event.actor for event in events if event.verb == "begin publishing"]
    try:
        result = publish.publish(
            context, status.run_id, actors[-1] if actors else by, recovered_by=by
        )
    except (*REFUSALS, IllegalMove) as error:
        state = context.runs.status(status.run_id).state
        if state is RunState.PUBLISHING:
            raise
        if state in CONTRADICTED_BY_VISIBILITY and state is not RunState.ACCEPTED:
            return f"{state.value}, but {error.problem}"
        return f"given back: {error.problem}"
    return f"published as version {result.publication.version}"


def _reservation_actions(context: Context, pending: Publication) -> Iterator[RecoveryAction]:
    if is_reservation_active(context, pending):
        return
    if pending.run_id is None:
        because = f"{pending.by} began it: {pending.reason}"
        execute = partial(_finish_rollback, context, pending)
        yield RecoveryAction(pending.product, "finish the rollback", because, execute)
        return
    status = context.runs.status(pending.run_id)
    if status.state is not RunState.PUBLISHING:
        because = f"{pending.run_id} is {status.state.value}, its reservation is still there"
        execute = partial(_resolve_reservation, context, pending)
        yield RecoveryAction(pending.product, "settle the reservation", because, execute)


def _finish_rollback(context: Context, pending: Publication, by: str) -> str:
    """Roll back in the name of the actor who began, as for publications."""
    is_partial = pending.returns_to is not None and pending.returns_to != pending.version
    labels = pending.scope.partitions if is_partial and pending.scope else ()
    version = pending.version if pending.returns_to is None else pending.returns_to
    target = rollback.plan_rollback(context, pending.product, version, labels)
    # The contract by which the undone run was published: the project may have dropped its own.
    # If only a rollback is undone, it is the contract of the run that was published last.
    run_id = next((row.run_id for row in target.undone if row.run_id is not None), None)
    run_id = run_id or pointer.newest_published_run(context.versions.history(pending.product))
    if run_id is None:
        raise NotFound(f"no run made what {pending.product} is to be rolled back from")
    contract = context.runs.plan(run_id).resolved.contract
    try:
        result = rollback.apply_rollback(context, contract, target, pending.reason, pending.by)
    except REFUSALS as error:
        reservation = context.versions.pointer(pending.product).pending
        if reservation is not None and reservation.token == pending.token:
            raise
        return f"given back: {error.problem}"
    context.journal_of(run_id).log("rollback recovered", product=pending.product, by=by)
    return f"version {result.publication.version} is accepted"


def _resolve_reservation(context: Context, pending: Publication, by: str) -> str:
    """Finish the publication if its swap has landed; else release the version."""
    run_id = str(pending.run_id)
    if find_landed_swap(context, context.runs.plan(run_id), pending) is not None:
        result = publish.publish(context, run_id, pending.by, recovered_by=by)
        return f"it had landed: published as version {result.publication.version}"
    release_version(context, pending, context.runs.status(run_id).seq + 1)
    return "given back"
