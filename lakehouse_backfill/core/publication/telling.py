"""What a recovery finds untold: runs that were rolled back, hooks and checks that were cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from lakehouse_backfill.core.publication import follow_up, rollback
from lakehouse_backfill.core.runs import hooks
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import publications
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState, RunStatus

#: States that say whether readers see a run's output; the pointer knows it better.
CONTRADICTED_BY_VISIBILITY = {
    RunState.PUBLISHED: False,
    RunState.PUBLISH_HALTED: False,
    RunState.ROLLED_BACK: True,
    RunState.ACCEPTED: True,
}


@dataclass(frozen=True)
class RecoveryAction:
    """Something that stopped half way, and what finishes or undoes it."""

    subject: str
    action: str
    because: str
    act: Callable[[str], str]


def halt_hook_actions(bench: Context, status: RunStatus, plan: Plan) -> Iterator[RecoveryAction]:
    """The hooks that were to be called when the run halted."""
    if status.state not in (RunState.HALTED, RunState.PUBLISH_HALTED):
        return
    left = hooks.pending_halt_hooks(bench, plan)
    if left:
        because = f"it halted, and was not told: {', '.join(left)}"
        yield RecoveryAction(
            status.run_id, "tell of the halt", because, partial(_call_halt_hooks, bench, plan)
        )


def _call_halt_hooks(bench: Context, plan: Plan, by: str) -> str:  # noqa: ARG001 (as every act)
    failed = hooks.notify_halted(bench, plan)
    return f"failed again: {', '.join(failed)}" if failed else "done"


def runs_out_of_step_with_pointer(
    bench: Context, products: set[str] | None
) -> Iterator[RecoveryAction]:
    """Runs that were not told yet that their output became visible, or is so no more."""
    runs = bench.runs.list(open_only=False)
    for product in sorted({run.product for run in runs} if products is None else products):
        history = bench.versions.history(product)
        made = {row.run_id for row in history if row.action == "publish"}
        for run in runs:
            if (
                run.run_id not in made
                or run.state not in CONTRADICTED_BY_VISIBILITY
                or bench.is_driven(run)
            ):
                continue
            is_visible = publications.visible_publication(history, run.run_id) is not None
            if is_visible is CONTRADICTED_BY_VISIBILITY[run.state]:
                yield _run_state_action(bench, run, is_visible=is_visible)


def _run_state_action(bench: Context, run: RunStatus, *, is_visible: bool) -> RecoveryAction:
    seen = "readers see its output" if is_visible else "readers do not see its output"
    because = f"it is {run.state.value}, and {seen}"
    return RecoveryAction(
        run.run_id, "tell the run", because, partial(_align_run_state, bench, run.run_id)
    )


def _align_run_state(bench: Context, run_id: str, by: str) -> str:
    reason = "recovered: the pointer says so"
    rollback.align_run_states(bench, (run_id,), (run_id,), by, reason)
    return bench.runs.status(run_id).state.value


def post_publish_actions(bench: Context, products: set[str] | None) -> Iterator[RecoveryAction]:
    """Checks and hooks after the last act of a product that were cut off, or failed."""
    runs = bench.runs.list(open_only=False)
    for product in sorted({run.product for run in runs} if products is None else products):
        run_id, left = follow_up.pending_post_publish(bench, product)
        if run_id is None or not left or bench.is_driven(bench.runs.status(run_id)):
            continue
        because = f"after its last act was not done: {', '.join(left)}"
        yield RecoveryAction(
            product, "follow it up", because, partial(_complete_post_publish, bench, product)
        )
    for run in runs:
        if products is None or run.product in products:
            yield from _release_hook_actions(bench, run)


def _release_hook_actions(bench: Context, run: RunStatus) -> Iterator[RecoveryAction]:
    """What before_publish paused, for a publication that was given back, has to go on."""
    if run.state not in (RunState.ACCEPTED, RunState.PUBLISH_HALTED) or bench.is_driven(run):
        return
    act = hooks.released_token(bench.versions.history(run.product), run.run_id)
    left = (
        () if act is None else hooks.pending_release_hooks(bench, bench.runs.plan(run.run_id), act)
    )
    if act is not None and left:
        because = f"its publication was given back, and was not told: {', '.join(left)}"
        tell = partial(_call_release_hooks, bench, run, act)
        yield RecoveryAction(run.run_id, "tell of the return", because, tell)


def _call_release_hooks(bench: Context, run: RunStatus, act: str, by: str) -> str:  # noqa: ARG001
    released = [event for event in bench.runs.events(run.run_id) if "problem" in event.detail]
    problem = str(released[-1].detail["problem"]) if released else ""
    plan = bench.runs.plan(run.run_id)
    failed = hooks.notify_released(bench, plan, act, run.epoch, problem)
    return f"failed again: {', '.join(failed)}" if failed else "done"


def _complete_post_publish(bench: Context, product: str, by: str) -> str:
    follow_up.run_post_publish(bench, product, by)
    left = follow_up.pending_post_publish(bench, product)[1]
    return f"failed again: {', '.join(left)}" if left else "done"
