"""recover: look at the lake, then finish or undo what stopped half way.

What is found is worked out first, by reading alone; a dry run shows exactly that. Acting goes
through the verbs themselves, which look at the lake before they act. So a second recovery finds
nothing to do, and a recovery that is killed is recovered like any other process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from lakehouse_backfill.errors import BackfillError, NotFound
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.publication import Publication
from lakehouse_backfill.model.run import RunStatus, State
from lakehouse_backfill.rules import lifecycle, publications
from lakehouse_backfill.stages import publish, revising, rollback
from lakehouse_backfill.stages.plan import register_plan
from lakehouse_backfill.stages.reserving import REFUSALS, is_under_way, release
from lakehouse_backfill.stages.workbench import Workbench

#: A plan this young may still be on its way between its two commits.
DRAFT_GRACE = timedelta(minutes=1)
#: States that say whether readers see a run's output; the pointer knows it better.
_SETTLED = {State.PUBLISHED: False, State.ROLLED_BACK: True, State.ACCEPTED: True}


@dataclass(frozen=True)
class Work:
    """Something that stopped half way, and what finishes or undoes it."""

    subject: str
    action: str
    because: str
    act: Callable[[str], str]


@dataclass(frozen=True)
class Recovered:
    """One thing that was (or, in a dry run, would be) done, or why it was left as it is."""

    subject: str
    action: str
    because: str
    result: str
    is_done: bool


def recover(
    bench: Workbench, run_id: str | None, by: str, *, dry_run: bool = False
) -> tuple[Recovered, ...]:
    """Finish or undo what stopped half way: of one run and its product, or of all.

    Nothing is decided anew: publications and rollbacks go on in the name of who began them, or are
    given back when the lake refuses them now. A run that another process drives is left alone.
    Raises RunMoved (the named run is driven), NotFound; what fails for one of all is reported.
    """
    done: list[Recovered] = []
    for work in _find(bench, run_id, dry_run=dry_run):
        result, is_done = "dry run", True
        if not dry_run:
            try:
                result = work.act(by)
            except BackfillError as error:
                if run_id is not None:
                    raise
                result, is_done = f"{error.problem} ({error.state})", False
            bench.journal.log("recovered", subject=work.subject, action=work.action, result=result)
        done.append(Recovered(work.subject, work.action, work.because, result, is_done))
    return tuple(done)


def _find(bench: Workbench, run_id: str | None, *, dry_run: bool) -> Iterator[Work]:
    """Name the work, later parts only once earlier ones are done: they read what those left."""
    drafts = list(_drafts(bench, run_id))
    yield from drafts
    if dry_run and run_id is not None and drafts:
        return
    if run_id is None:
        open_runs = [item for item in bench.runs.list() if not bench.is_driven(item)]
    else:
        open_runs = [bench.runs.status(run_id)]
        bench.require_no_other_driver(open_runs[0])
    for status in open_runs:
        try:
            yield from _run(bench, status)
        except BackfillError as error:
            if run_id is not None:
                raise
            yield Work(status.run_id, "look at the run", error.problem, partial(_fail, error))
    products = {open_runs[0].product} if run_id is not None else None
    yield from _reservations(bench, products)
    yield from _told_wrong(bench, products)


def _fail(error: BackfillError, by: str) -> str:  # noqa: ARG001 (as every act)
    raise error


def _drafts(bench: Workbench, run_id: str | None) -> Iterator[Work]:
    youngest = bench.clock.now() - DRAFT_GRACE
    for plan in bench.audit.drafts():
        if plan.run_id == run_id or (run_id is None and plan.created_at < youngest):
            yield Work(
                plan.run_id,
                "register the plan",
                "it was stored, its first event was not",
                partial(_register, bench, plan),
            )


def _register(bench: Workbench, plan: Plan, by: str) -> str:
    register_plan(bench, plan, by)
    return f"planned; next: lakehouse-backfill approve {plan.run_id} --by WHO"


def _run(bench: Workbench, status: RunStatus) -> Iterator[Work]:
    if status.state not in lifecycle.OPEN:
        return
    plan = bench.runs.plan(status.run_id)
    if plan.revises is not None and _is_left_open(bench, plan.revises):
        yield Work(
            plan.revises,
            "supersede the revised run",
            f"{plan.run_id} takes its place",
            partial(_supersede, bench, plan),
        )
    because = f"its driver {status.driver} is gone"
    if status.state is State.STAGING:
        act = partial(_end, bench, status, plan)
        yield Work(status.run_id, "end the staging", because, act)
    if status.state is State.PUBLISHING:
        act = partial(_publish, bench, status)
        yield Work(status.run_id, "finish the publication", because, act)


def _is_left_open(bench: Workbench, run_id: str) -> bool:
    status = bench.runs.status(run_id)
    is_open = status.state in lifecycle.MOVES["supersede"][0] & lifecycle.OPEN
    return is_open and not bench.is_driven(status)


def _supersede(bench: Workbench, plan: Plan, by: str) -> str:
    revising.supersede(bench, plan, by)
    return "superseded"


def _end(bench: Workbench, status: RunStatus, plan: Plan, by: str) -> str:
    """Chunks that are in the shadow stay; what was under way is redone by the next `run`."""
    staged = 0
    if bench.tables.describe(plan.shadow_table) is not None:
        staged = len({item.chunk_id for item in bench.shadows.chunks(plan.shadow_table)})
    problem = f"its driver {status.driver} stopped without a word"
    bench.overtake(status, plan, "fail", by, problem=problem, chunks=staged)
    return (
        f"failed, with {staged} of {len(plan.resolved.chunks)} chunks staged; "
        f"next: lakehouse-backfill run {plan.run_id}"
    )


def _publish(bench: Workbench, status: RunStatus, by: str) -> str:
    """Go on in the name of who began: they held the role, and the result was accepted."""
    if bench.runs.status(status.run_id) != status:
        return "it went on meanwhile"
    events = bench.runs.events(status.run_id)
    begun = [event.actor for event in events if event.verb == "begin publishing"]
    try:
        done = publish.publish(bench, status.run_id, begun[-1] if begun else by, recovered_by=by)
    except REFUSALS as error:
        if bench.runs.status(status.run_id).state is State.PUBLISHING:
            raise
        return f"given back: {error.problem}"
    return f"published as version {done.publication.version}"


def _reservations(bench: Workbench, products: set[str] | None) -> Iterator[Work]:
    for pending in bench.versions.pending():
        if (products is not None and pending.product not in products) or is_under_way(
            bench, pending
        ):
            continue
        if pending.run_id is None:
            because = f"{pending.by} began it: {pending.reason}"
            act = partial(_roll_back, bench, pending)
            yield Work(pending.product, "finish the rollback", because, act)
        else:
            status = bench.runs.status(pending.run_id)
            if status.state is State.PUBLISHING:
                continue
            because = f"{pending.run_id} is {status.state.value}, its reservation is still there"
            act = partial(_settle, bench, pending)
            yield Work(pending.product, "settle the reservation", because, act)


def _roll_back(bench: Workbench, pending: Publication, by: str) -> str:
    """Go on in the name of who began, as for publications."""
    is_partial = pending.returns_to is not None and pending.returns_to != pending.version
    only = pending.scope.partitions if is_partial and pending.scope else ()
    to = pending.version if pending.returns_to is None else pending.returns_to
    way = rollback.plan_rollback(bench, pending.product, to, only)
    # The contract that the undone run was published by: the project's own may be gone by now.
    made = next((row.run_id for row in way.undone if row.run_id is not None), None)
    if made is None:
        raise NotFound(f"no run made what {pending.product} is to be rolled back from")
    contract = bench.runs.plan(made).resolved.contract
    try:
        done = rollback.finish_rollback(bench, contract, way, pending.reason, pending.by)
    except REFUSALS as error:
        now = bench.versions.pointer(pending.product).pending
        if now is not None and now.token == pending.token:
            raise
        return f"given back: {error.problem}"
    bench.journal.log("rollback recovered", product=pending.product, by=by)
    return f"version {done.publication.version} is accepted"


def _settle(bench: Workbench, pending: Publication, by: str) -> str:
    """Publish what has landed all the same; else give the version back."""
    run_id = str(pending.run_id)
    if bench.publisher.find(pending.table, pending.token) is not None:
        done = publish.publish(bench, run_id, pending.by, recovered_by=by)
        return f"it had landed: published as version {done.publication.version}"
    release(bench, pending, bench.runs.status(run_id).seq + 1)
    return "given back"


def _told_wrong(bench: Workbench, products: set[str] | None) -> Iterator[Work]:
    """Runs that were not told yet that their output became visible, or is so no more."""
    runs = bench.runs.list(open_only=False)
    for product in sorted({run.product for run in runs} if products is None else products):
        history = bench.versions.history(product)
        made = {row.run_id for row in history if row.action == "publish"}
        for run in runs:
            if run.run_id not in made or run.state not in _SETTLED or bench.is_driven(run):
                continue
            is_visible = publications.visible(history, run.run_id) is not None
            if is_visible is _SETTLED[run.state]:
                yield _telling(bench, run, is_visible=is_visible)


def _telling(bench: Workbench, run: RunStatus, *, is_visible: bool) -> Work:
    seen = "readers see its output" if is_visible else "readers do not see its output"
    because = f"it is {run.state.value}, and {seen}"
    return Work(run.run_id, "tell the run", because, partial(_tell, bench, run.run_id))


def _tell(bench: Workbench, run_id: str, by: str) -> str:
    reason = "recovered: the pointer says so"
    rollback.tell_runs(bench, (run_id,), (run_id,), by, reason)
    return bench.runs.status(run_id).state.value
