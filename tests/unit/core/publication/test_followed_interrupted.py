"""Several followed products together: other acts between a kill and its recovery."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.publication.publish import publish, publish_together
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.fault_points import install_hook
from tests.support.fakes.context import contract, declared
from tests.support.fakes.kills import Killed, hooked, killed_at, other_process
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import accepted_run, state_of, world
from tests.unit.core.publication.test_followed_together import OLD, PRODUCTS, group_world, heads

AFTER = {"suites": [{"file": "after.json"}], "on_failed": "rollback"}


def _terms(product: str, **terms: Any) -> Any:
    return contract(**{"product": product, "table": product, "publication": "follow", **terms})


def _accepted(found: Context, product: str, **terms: Any) -> str:
    mode = {"publish_mode": "replace_partitions"}
    wanted = declared(
        "2020-01-02", "2020-01-04", contract=_terms(product, **terms), product=product, target=mode
    )
    return accepted_run(found, wanted)


def _states(found: Context, runs: tuple[str, ...]) -> list[RunState]:
    return [state_of(found, run) for run in runs]


def _killed(found: Context, runs: tuple[str, ...], point: str, nth: int = 1) -> None:
    seen: list[str] = []

    def kill(at: str) -> None:
        if at == point:
            seen.append(at)
            if len(seen) == nth:
                raise Killed(at)

    with pytest.raises(Killed), hooked(kill):
        publish_together(other_process(found), runs, "ana")


def finish_without(me: Context, runs: tuple[str, ...], member: int, how: str) -> None:
    """Finish a group of three but for the member that was rolled back, in one of three ways."""
    if how == "recover":
        assert all(one.is_done for one in recover(me, None, "ana"))
    elif how == "publish":
        publish(me, runs[2], "ana")
    else:
        with pytest.raises(errors.IllegalMove, match=f"{runs[member]} is rolled_back"):
            publish_together(me, runs, "ana")
    recover(me, None, "ana")
    wanted = [RunState.PUBLISHED] * 3
    wanted[member] = RunState.ROLLED_BACK
    assert _states(me, runs) == wanted


def _back(found: Context, product: str) -> None:
    way = plan_rollback(found, product, None, ())
    rollback(found, _terms(product), way, "wrong", "ana")


@pytest.mark.parametrize(("nth", "member"), [(1, 0), (3, 1)])
@pytest.mark.parametrize("how", ["recover", "publish", "together"])
def test_a_member_that_a_person_rolled_back_meanwhile_stays_back(
    nth: int, member: int, how: str
) -> None:
    where, found, runs = group_world()
    _killed(found, runs, "Versions.move:after", nth)
    me = dataclasses.replace(found, driver="here:2")
    _back(me, PRODUCTS[member])
    finish_without(me, runs, member, how)
    assert heads(where)[member] == 3
    assert found.versions.pending() == ()


def test_a_run_that_is_half_published_with_others_goes_with_no_other_group() -> None:
    where, found, runs = group_world()
    _killed(found, runs[:2], "Publisher.adopt_together:before")
    me = dataclasses.replace(found, driver="here:2")
    with pytest.raises(errors.Blocked, match=f"together with {runs[0]} was begun") as refused:
        publish_together(me, runs[1:], "ana")
    assert refused.value.fix.startswith(f"lakehouse-backfill recover {runs[1]}")
    assert heads(where) == [1, 1, 1]
    recover(me, runs[1], "ana")
    assert heads(where) == [2, 2, 1]


def test_two_runs_of_one_table_cannot_go_together() -> None:
    _, found, runs = group_world()
    again = _accepted(found, "silver.d", table=PRODUCTS[0])
    with pytest.raises(errors.Unsupported, match="restate the same table"):
        publish_together(found, (*runs, again), "ana")
    assert set(_states(found, (*runs, again))) == {RunState.ACCEPTED}


def _zombie(found: Context, runs: tuple[str, ...], point: str, then: Callable[[], Any]) -> None:
    """Let another process act at a point of the publication, which goes on after it."""
    done: list[str] = []

    def stop(at: str) -> None:
        if at == point and not done:
            done.append(at)
            with hooked(lambda _: None):
                then()
            install_hook(stop)

    with suppress(errors.BackfillError), hooked(stop):
        publish_together(other_process(found, "here:1"), runs, "ana")
    assert done


@pytest.mark.parametrize(
    "point", ["Versions.move_all:before", "Publisher.adopt_together:before", "Versions.move:before"]
)
def test_a_process_that_was_overtaken_changes_nothing_any_more(point: str) -> None:
    where, found, runs = group_world()
    me = dataclasses.replace(found, driver="here:2", take_over=True)
    _zombie(found, runs, point, lambda: publish(me, runs[1], "ana"))
    assert found.versions.pending() == ()
    assert _states(found, runs) == [RunState.PUBLISHED] * 3
    assert heads(where) == [2, 2, 2]
    assert recover(found, None, "ana") == ()


def _world_of_failed_checks() -> tuple[FakeLake, Context, tuple[str, ...]]:
    """The checks of the second product fail after its publication."""
    where, found = world(bad_suites={"after.json"})
    for product in PRODUCTS:
        where.add(product, **OLD)
    terms = {PRODUCTS[1]: {"after_publish": AFTER}}
    return where, found, tuple(_accepted(found, p, **terms.get(p, {})) for p in PRODUCTS)


@pytest.mark.req("U14")
@pytest.mark.parametrize("moment", range(32, 56, 3))
def test_failed_checks_take_the_whole_group_back_wherever_it_is_killed(moment: int) -> None:
    _, found, runs = _world_of_failed_checks()
    with suppress(Killed, errors.ChecksFailed), killed_at(moment):
        publish_together(other_process(found), runs, "ana")
    me = dataclasses.replace(found, driver="here:2")
    recover(me, None, "ana")
    assert _states(found, runs) == [RunState.ROLLED_BACK] * 3
    assert recover(me, None, "ana") == ()
    publish(me, runs[0], "ana")
    assert recover(me, None, "ana") == ()
    assert state_of(found, runs[0]) is RunState.PUBLISHED


@pytest.mark.req("U14")
def test_one_that_cannot_go_back_does_not_keep_the_others() -> None:
    where, found, runs = _world_of_failed_checks()

    def live_commit(point: str) -> None:
        if point == "Publisher.adopt_together:after":
            where.not_together = "no more"
        if point == "Publisher.revert:before" and where.tables[PRODUCTS[0]].head == 2:
            where.write(PRODUCTS[0], "2020-01-02", "live")

    with pytest.raises(errors.ChecksFailed) as told, hooked(live_commit):
        publish_together(other_process(found), runs, "ana")
    assert "another of its group could not be rolled back" in told.value.state
    assert _states(found, runs) == [RunState.PUBLISHED, *[RunState.ROLLED_BACK] * 2]
