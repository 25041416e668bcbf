"""A rollback of what was interrupted before its publication was finished: it stays back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.publication import progressive
from lakehouse_backfill.core.publication.groups.rollbacks import rollback_together
from lakehouse_backfill.core.publication.publish import publish, publish_together
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes.context import contract, declared
from tests.support.fakes.kills import Killed, hooked, other_process
from tests.support.fakes.steps import accepted_run, state_of, world
from tests.unit.core.publication.test_followed_interrupted import finish_without

OLD = {f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)}
PRODUCTS = ("gold.a", "gold.b", "gold.c")
MODES = {"pinned": "pointer_swap", "follow": "replace_partitions"}


def _terms(kind: str, product: str) -> Any:
    return contract(product=product, table=product, publication=kind)


def _world(kind: str, count: int) -> tuple[Context, tuple[str, ...]]:
    where, found = world()
    runs = []
    for product in PRODUCTS[:count]:
        where.add(product, **OLD)
        runs.append(
            accepted_run(
                found,
                declared(
                    "2020-01-02",
                    "2020-01-04",
                    contract=_terms(kind, product),
                    product=product,
                    target={"publish_mode": MODES[kind]},
                ),
            )
        )
    return found, tuple(runs)


def _seen(found: Context, runs: tuple[str, ...]) -> list[bool]:
    rows = (found.versions.pointer(product).accepted for product in PRODUCTS[: len(runs)])
    return [row is not None and row.run_id is not None for row in rows]


def _states(found: Context, runs: tuple[str, ...]) -> list[RunState]:
    return [state_of(found, run) for run in runs]


def _kill_at_end(found: Context, act: Callable[[Context], Any]) -> None:
    """Kill a command when it moves the first run, which is after all pointers have moved."""
    moved: list[str] = []

    def kill(point: str) -> None:
        if point in ("Versions.move:after", "Versions.move_all:after"):
            moved.append(point)
        if point == "Runs.append:before" and moved:
            raise Killed(point)

    with pytest.raises(Killed), hooked(kill):
        act(other_process(found))


def _publish(runs: tuple[str, ...]) -> Callable[[Context], Any]:
    if len(runs) == 1:
        return lambda context: publish(context, runs[0], "ana")
    return lambda context: publish_together(context, runs, "ana")


def _back(kind: str, runs: tuple[str, ...]) -> Callable[[Context], Any]:
    products = PRODUCTS[: len(runs)]

    def act(context: Context) -> None:
        ways = tuple((_terms(kind, p), plan_rollback(context, p, None, ())) for p in products)
        if len(ways) == 1:
            rollback(context, *ways[0], "wrong", "ana")
        else:
            rollback_together(context, ways, "wrong", "ana")

    return act


@pytest.mark.req("U10", "U12", "T3")
@pytest.mark.parametrize("how", ["recover", "publish"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", list(MODES))
def test_a_rollback_that_crashed_too_is_completed_and_not_undone(
    kind: str, count: int, how: str
) -> None:
    found, runs = _world(kind, count)
    _kill_at_end(found, _publish(runs))
    assert _seen(found, runs) == [True] * count
    me = dataclasses.replace(found, driver="here:2")
    _kill_at_end(me, _back(kind, runs))
    assert _seen(found, runs) == [False] * count
    assert set(_states(found, runs)) == {RunState.PUBLISHING}

    me = dataclasses.replace(found, driver="here:3")
    if how == "recover":
        assert all(one.is_done for one in recover(me, None, "ana"))
    else:
        with pytest.raises(errors.IllegalMove, match="was rolled back before its publication"):
            _publish(runs)(me)
    assert _seen(found, runs) == [False] * count
    assert set(_states(found, runs)) == {RunState.ROLLED_BACK}
    recover(me, None, "ana")
    assert recover(me, None, "ana") == ()
    # A person may decide to publish it again; an interruption of that is finished as any other.
    _kill_at_end(me, _publish(runs))
    me = dataclasses.replace(found, driver="here:4")
    recover(me, None, "ana")
    assert _seen(found, runs) == [True] * count
    assert set(_states(found, runs)) == {RunState.PUBLISHED}


@pytest.mark.req("U2", "U10")
@pytest.mark.parametrize("how", ["recover", "publish", "together"])
@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize("finished", [0, 1])
def test_a_pinned_member_that_a_person_rolled_back_stays_back_and_the_others_are_finished(
    finished: int, member: int, how: str
) -> None:
    found, runs = _world("pinned", 3)
    done: list[str] = []

    def kill(point: str) -> None:
        done.append(point) if point.startswith("Versions.move_all") else None
        if done and point == ("Runs.append:before", "Runs.append:after")[finished]:
            raise Killed(point)

    with pytest.raises(Killed), hooked(kill):
        publish_together(other_process(found), runs, "ana")
    me = dataclasses.replace(found, driver="here:2")
    product = PRODUCTS[member]
    rollback(me, _terms("pinned", product), plan_rollback(me, product, None, ()), "wrong", "ana")
    finish_without(me, runs, member, how)
    assert _seen(found, runs) == [number != member for number in range(3)]
    assert recover(me, None, "ana") == ()


@pytest.mark.req("U6", "U10", "U12")
def test_a_rollback_of_steps_that_were_halted_and_went_on_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, found = world()
    where.add(PRODUCTS[0], **OLD)
    terms = _terms("follow", PRODUCTS[0])
    steps = {"publish_mode": MODES["follow"], "progressive": {"partitions_per_step": 1}}
    wanted = declared(
        "2020-01-02", "2020-01-04", contract=terms, product=PRODUCTS[0], target=steps
    )  # fmt: skip
    run_id = accepted_run(found, wanted)
    with monkeypatch.context() as patch:
        patch.setattr(progressive, "_check_step", lambda *_: [_FAILED])
        with pytest.raises(errors.ChecksFailed):
            publish(found, run_id, "ana")
    assert state_of(found, run_id) is RunState.PUBLISH_HALTED
    # The second step crashes before it is reserved.
    with monkeypatch.context() as patch:
        patch.setattr(progressive, "_judge_step", _crash)
        with pytest.raises(Killed):
            publish(other_process(found), run_id, "ana")
    assert state_of(found, run_id) is RunState.PUBLISHING
    me = dataclasses.replace(found, driver="here:3")
    _kill_at_end(me, _back("follow", (run_id,)))
    assert _seen(found, (run_id,)) == [False]
    recover(dataclasses.replace(found, driver="here:4"), None, "ana")
    assert _seen(found, (run_id,)) == [False]
    assert state_of(found, run_id) is RunState.ROLLED_BACK


def _crash(*_: Any) -> None:
    raise Killed("before the next step is reserved")


_FAILED = CheckResult(name="rows", group="reconciliation", passed=False, detail="x")
