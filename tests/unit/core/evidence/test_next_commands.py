"""The next command of a run is an act that is legal where the run stands."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.next_commands import exceptional_command
from lakehouse_backfill.core.evidence.status import summarise_run_safety, summarise_safety
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.publication.rollback import plan_rollback
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import (
    BackfillError,
    ConfigError,
    IllegalMove,
    RunMoved,
    TargetChanged,
)
from tests.support.fakes.context import PRODUCT, declared
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import (
    accepted_run,
    approved_run,
    planned_run,
    published_run,
    roll_back,
    staged_run,
    state_of,
    validated_run,
    world,
)

#: The move or note that a command begins with; the other commands only read or repair.
MOVES = {
    "approve": "approve", "run": "begin staging", "shadow": "begin staging",
    "validate": "begin validation", "accept": "accept", "publish": "begin publishing",
    "rollback": "roll back", "unpause": "unpause",
}  # fmt: skip
READS = {"status", "recover", "evidence"}


@pytest.mark.parametrize("is_external", [False, True], ids=["by a job", "by another engine"])
@pytest.mark.parametrize("was_empty", [False, True], ids=["had rows", "was empty"])
@pytest.mark.parametrize("state", list(RunState))
def test_the_command_of_a_state_is_a_legal_move(
    state: RunState, *, was_empty: bool, is_external: bool
) -> None:
    for file in ("m.yaml", ""):
        line = summarise_safety(
            state, "bf-1", "silver.a", was_empty=was_empty, is_external=is_external,
            manifest_file=file,
        ).next_command  # fmt: skip
        _, verb, *rest = shlex.split(line, comments=True)
        if verb == "plan":
            is_open = state in lifecycle.OPEN_STATES
            assert ("--revise" in rest) is is_open
            assert not is_open or "supersede" in lifecycle.legal_verbs(state)
        elif verb not in READS:
            moves, notes = lifecycle.MOVES, lifecycle.NOTES
            move = MOVES[verb]
            assert state in (moves[move][0] if move in moves else notes[move])


Act = Callable[[FakeLake, Context, str], object]
ACTS: dict[str, Act] = {
    "approve": lambda _, found, run: decisions.approve(found, run, "ana", ""),
    "stage": lambda _, found, run: stage(found, run, "bob"),
    "validate": lambda _, found, run: validate(found, run, "bob"),
    "accept": lambda _, found, run: decisions.accept(found, run, "ana", ""),
    "publish": lambda _, found, run: publish(found, run, "bob"),
    "roll back": lambda _, found, _run: roll_back(found),
    "reject": lambda _, found, run: decisions.reject(found, run, "ana", "no"),
    "cancel": lambda _, found, run: decisions.cancel(found, run, "bob", "no"),
    "live write": lambda where, _, _run: where.write(PRODUCT, "2020-01-02", "live"),
    "live write beside it": lambda where, _, _run: where.write(PRODUCT, "2020-01-05", "live"),
}
FORWARD = ("approve", "stage", "validate", "accept", "publish", "roll back", "publish")
NEXT: dict[str, Act] = ACTS | {
    "run": lambda _, found, run: run_until_decision(found, run, "bob"),
    "rollback": ACTS["roll back"],
    "status": lambda _, found, run: found.runs.status(run),
    "evidence": lambda _, found, run: found.runs.plan(run),
}
CORRECTED = declared(run={"requested_by": "bob", "reason": "another", "reason_code": "bug_fix"})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, len(FORWARD)), st.lists(st.sampled_from(sorted(ACTS)), min_size=0, max_size=4)
)
def test_what_to_type_next_is_not_refused_whatever_happened_before(
    forward: int, others: list[str]
) -> None:
    where, found = world()
    run = planned_run(found)
    for name in (*FORWARD[:forward], *others):
        with suppress(BackfillError):
            ACTS[name](where, found, run)
    line = summarise_run_safety(found, found.runs.status(run), look=True).next_command
    _, verb, *rest = shlex.split(line, comments=True)
    if verb == "plan":
        planned_run(found, CORRECTED, run if "--revise" in rest else None)
    elif "--dry-run" in rest:
        plan_rollback(found, PRODUCT, None, ())
    else:
        NEXT[verb](where, found, run)


def next_command(found: Context, run: str, *, look: bool = False) -> str:
    return summarise_run_safety(found, found.runs.status(run), look=look).next_command


def test_before_an_approval_come_answers_and_other_runs_of_the_same_partitions() -> None:
    _, found = world()
    first, second = planned_run(found), planned_run(found, CORRECTED)
    assert next_command(found, first) == f"lakehouse-backfill approve {first}"
    assert next_command(found, second, look=True).startswith(f"lakehouse-backfill status {first} ")
    with pytest.raises(BackfillError, match="overlaps open run") as refused:
        decisions.approve(found, second, "ana", "")
    assert f"lakehouse-backfill cancel {first}, then" in refused.value.fix
    decisions.cancel(found, first, "bob", "")
    assert next_command(found, second, look=True) == f"lakehouse-backfill approve {second}"
    plan = found.runs.plan(second)
    open_question = plan.checklist[0].model_copy(update={"answer": None})
    asked = plan.model_copy(update={"checklist": (open_question,)})
    status = found.runs.status(second)
    assert exceptional_command(found, status, asked, look=False).startswith("{replan}   # once")


def test_an_illegal_move_names_the_command_that_the_run_waits_for() -> None:
    _, found = world()
    for make, forward in ((planned_run, "approve"), (validated_run, "accept")):
        run = make(found)
        with pytest.raises(IllegalMove) as refused:
            publish(found, run, "bob")
        assert refused.value.fix == f"lakehouse-backfill {forward} {run}"


def test_a_conflict_that_lasts_is_seen_before_and_after_a_publication_was_tried() -> None:
    where, found = world()
    run = accepted_run(found)
    assert next_command(found, run, look=True) == f"lakehouse-backfill publish {run}"
    where.write(PRODUCT, "2020-01-02", "live")
    replan = f"lakehouse-backfill plan m.yaml --revise {run}"
    assert next_command(found, run, look=True).startswith(replan)
    assert next_command(found, run) == f"lakehouse-backfill publish {run}"
    with pytest.raises(TargetChanged):
        publish(found, run, "bob")
    assert next_command(found, run).startswith(replan)


def test_a_rolled_back_run_whose_shadow_was_removed_is_planned_anew() -> None:
    _, found = world()
    run = published_run(found)
    roll_back(found)
    assert next_command(found, run).startswith(f"lakehouse-backfill publish {run}")
    found.move(found.runs.status(run), found.runs.plan(run), "retire", "ana")
    assert next_command(found, run).startswith("lakehouse-backfill plan m.yaml   #")


@pytest.mark.parametrize("make", [planned_run, approved_run, staged_run, validated_run])
def test_a_revision_that_changes_nothing_is_refused(make: Callable[[Context], str]) -> None:
    _, found = world()
    run = make(found)
    before = state_of(found, run)
    with pytest.raises(ConfigError, match="there is nothing to revise") as refused:
        make_plan(found, declared(), "bob", run)
    assert refused.value.fix.endswith(
        f"lakehouse-backfill cancel {run}, then lakehouse-backfill plan m.yaml"
    )
    assert state_of(found, run) is before
    decisions.cancel(found, run, "bob", "")
    again = planned_run(found)
    assert again == f"{run}-2"
    assert state_of(found, again) is RunState.PLANNED


def test_a_rejected_intent_is_revised_once_it_was_corrected() -> None:
    _, found = world()
    run = planned_run(found)
    decisions.reject(found, run, "ana", "no")
    assert planned_run(found) == run
    assert next_command(found, run) == (
        f"lakehouse-backfill plan m.yaml --revise {run}   # once manifest or code is corrected"
    )
    assert planned_run(found, CORRECTED, run) != run
    assert state_of(found, run) is RunState.SUPERSEDED


def test_a_run_that_a_living_process_judges_is_cancelled_only_by_taking_it_over() -> None:
    _, found = world()
    run = approved_run(found)
    plan = found.runs.plan(run)
    status = found.drive(found.runs.status(run), plan, "begin staging", "bob")
    status = found.move(status, plan, "finish staging", "bob")
    found.drive(status, plan, "begin validation", "bob")
    person = dataclasses.replace(found, driver="there:2")
    with pytest.raises(RunMoved, match="driven by another process") as refused:
        decisions.cancel(person, run, "bob", "wrong")
    assert "--take-over" in refused.value.fix
    assert state_of(found, run) is RunState.STAGED
    decisions.cancel(dataclasses.replace(person, take_over=True), run, "bob", "wrong")
    assert state_of(found, run) is RunState.CANCELLED


def test_a_run_whose_driver_is_gone_is_cancelled_at_once() -> None:
    _, found = world()
    run = approved_run(found)
    dead = dataclasses.replace(found, driver="here:dead")
    dead.drive(dead.runs.status(run), dead.runs.plan(run), "begin staging", "bob")
    assert decisions.cancel(found, run, "bob", "").state is RunState.CANCELLED
