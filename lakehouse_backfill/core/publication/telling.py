"""What a recovery finds untold: runs that were rolled back, hooks and checks that were cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from lakehouse_backfill.core.publication import follow_up, rollback
from lakehouse_backfill.core.runs import hooks
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.versions import publications
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunStatus, State

#: States that say whether readers see a run's output; the pointer knows it better.
SETTLED = {
    State.PUBLISHED: False,
    State.PUBLISH_HALTED: False,
    State.ROLLED_BACK: True,
    State.ACCEPTED: True,
}


@dataclass(frozen=True)
class Work:
    """Something that stopped half way, and what finishes or undoes it."""

    subject: str
    action: str
    because: str
    act: Callable[[str], str]


def halts(bench: Workbench, status: RunStatus, plan: Plan) -> Iterator[Work]:
    """The hooks that were to be called when the run halted."""
    if status.state not in (State.HALTED, State.PUBLISH_HALTED):
        return
    left = hooks.untold_halt(bench, plan)
    if left:
        because = f"it halted, and was not told: {', '.join(left)}"
        yield Work(status.run_id, "tell of the halt", because, partial(_halted, bench, plan))


def _halted(bench: Workbench, plan: Plan, by: str) -> str:  # noqa: ARG001 (as every act)
    failed = hooks.tell_halted(bench, plan)
    return f"failed again: {', '.join(failed)}" if failed else "done"


def told_wrong(bench: Workbench, products: set[str] | None) -> Iterator[Work]:
    """Runs that were not told yet that their output became visible, or is so no more."""
    runs = bench.runs.list(open_only=False)
    for product in sorted({run.product for run in runs} if products is None else products):
        history = bench.versions.history(product)
        made = {row.run_id for row in history if row.action == "publish"}
        for run in runs:
            if run.run_id not in made or run.state not in SETTLED or bench.is_driven(run):
                continue
            is_visible = publications.visible(history, run.run_id) is not None
            if is_visible is SETTLED[run.state]:
                yield _telling(bench, run, is_visible=is_visible)


def _telling(bench: Workbench, run: RunStatus, *, is_visible: bool) -> Work:
    seen = "readers see its output" if is_visible else "readers do not see its output"
    because = f"it is {run.state.value}, and {seen}"
    return Work(run.run_id, "tell the run", because, partial(_tell, bench, run.run_id))


def _tell(bench: Workbench, run_id: str, by: str) -> str:
    reason = "recovered: the pointer says so"
    rollback.tell_runs(bench, (run_id,), (run_id,), by, reason)
    return bench.runs.status(run_id).state.value


def unfollowed(bench: Workbench, products: set[str] | None) -> Iterator[Work]:
    """Checks and hooks after the last act of a product that were cut off, or failed."""
    runs = bench.runs.list(open_only=False)
    for product in sorted({run.product for run in runs} if products is None else products):
        run_id, left = follow_up.left_undone(bench, product)
        if run_id is None or not left or bench.is_driven(bench.runs.status(run_id)):
            continue
        because = f"after its last act was not done: {', '.join(left)}"
        yield Work(product, "follow it up", because, partial(_follow, bench, product))
    for run in runs:
        if products is None or run.product in products:
            yield from _returned(bench, run)


def _returned(bench: Workbench, run: RunStatus) -> Iterator[Work]:
    """What before_publish paused, for a publication that was given back, has to go on."""
    if run.state not in (State.ACCEPTED, State.PUBLISH_HALTED) or bench.is_driven(run):
        return
    act = hooks.given_back(bench.versions.history(run.product), run.run_id)
    left = () if act is None else hooks.untold_return(bench, bench.runs.plan(run.run_id), act)
    if act is not None and left:
        because = f"its publication was given back, and was not told: {', '.join(left)}"
        tell = partial(_tell_returned, bench, run, act)
        yield Work(run.run_id, "tell of the return", because, tell)


def _tell_returned(bench: Workbench, run: RunStatus, act: str, by: str) -> str:  # noqa: ARG001
    released = [event for event in bench.runs.events(run.run_id) if "problem" in event.detail]
    problem = str(released[-1].detail["problem"]) if released else ""
    plan = bench.runs.plan(run.run_id)
    failed = hooks.tell_given_back(bench, plan, act, run.epoch, problem)
    return f"failed again: {', '.join(failed)}" if failed else "done"


def _follow(bench: Workbench, product: str, by: str) -> str:
    follow_up.follow(bench, product, by)
    left = follow_up.left_undone(bench, product)[1]
    return f"failed again: {', '.join(left)}" if left else "done"
