"""Several pinned products move by one commit of the pointer table, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish, publish_together
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback_together
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import (
    ApprovalMissing,
    Blocked,
    IllegalMove,
    PointerMoved,
    Unsupported,
)
from lakehouse_backfill.fault_points import install_hook, watch_ports
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.lake import FakeLake

pytestmark = pytest.mark.req("U2")
PRODUCTS = ("gold.a", "gold.b", "gold.c")


def _contract(product: str, publication: str = "pinned", **terms: Any) -> Contract:
    return contract(product=product, table=product, publication=publication, **terms)


HOOKS = [
    {"name": "pause", "on": "before_publish", "command": ["pause"]},
    {"name": "resume", "on": "after_publish", "command": ["resume"]},
]


def _accepted(found: Context, product: str, publication: str = "pinned", **terms: Any) -> str:
    mode = "pointer_swap" if publication == "pinned" else "replace_partitions"
    target = {
        "publish_mode": mode,
        "partitions": {"column": "day", "from": "2020-01-02", "to": "2020-01-04"},
    }
    wanted = declared(
        contract=_contract(product, publication, **terms), product=product, target=target
    )
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    validate(found, plan.run_id, "bob")
    decisions.accept(found, plan.run_id, "ana", "")
    return plan.run_id


def _world() -> tuple[FakeLake, Context, tuple[str, ...]]:
    where = lake()
    for product in PRODUCTS:
        where.add(product, **{f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)})
    found = context(where)
    return where, found, tuple(_accepted(found, product) for product in PRODUCTS)


def _seen(found: Context) -> list[str | None]:
    pointers = found.versions.pointers(PRODUCTS)
    rows = [pointers[product].accepted for product in PRODUCTS]
    return [row.run_id if row else None for row in rows]


def _states(found: Context, runs: tuple[str, ...]) -> set[RunState]:
    return {found.runs.status(run).state for run in runs}


def test_all_become_visible_by_one_commit() -> None:
    _, found, runs = _world()
    moves: list[tuple[str, ...]] = []
    move_all = found.versions.move_all

    def noted(products: tuple[str, ...], decide_: Any) -> Any:
        moves.append(products)
        return move_all(products, decide_)

    found.versions.move_all = noted  # type: ignore[method-assign]
    done = publish_together(found, runs, "ana")
    assert moves == [PRODUCTS]
    assert _seen(found) == list(runs)
    assert {run: item.publication.version for run, item in done.items()} == dict.fromkeys(runs, 1)
    assert _states(found, runs) == {RunState.PUBLISHED}


def test_together_twice_changes_nothing() -> None:
    _, found, runs = _world()
    publish_together(found, runs, "ana")
    rows = [found.versions.history(product) for product in PRODUCTS]
    done = publish_together(found, runs, "ana")
    assert all(item.was_published for item in done.values())
    assert [found.versions.history(product) for product in PRODUCTS] == rows


def test_one_that_is_not_accepted_keeps_all_back() -> None:
    _, found, runs = _world()
    decisions.reject(found, runs[1], "ana", "no")
    with pytest.raises((ApprovalMissing, Blocked)):
        publish_together(found, runs, "ana")
    assert _seen(found) == [None, None, None]
    assert found.runs.status(runs[0]).state is RunState.ACCEPTED


def test_one_whose_pointer_moved_keeps_all_back() -> None:
    _, found, runs = _world()
    other = _accepted_again(found)
    publish(found, other, "ana")
    with pytest.raises(PointerMoved, match=r"gold\.b"):
        publish_together(found, runs, "ana")
    assert _seen(found) == [None, other, None]
    assert _states(found, runs) == {RunState.ACCEPTED}


def _accepted_again(found: Context) -> str:
    """Another run of gold.b, from the same base."""
    target = {
        "publish_mode": "pointer_swap",
        "partitions": {"column": "day", "from": "2020-01-05", "to": "2020-01-06"},
    }
    wanted = declared(contract=_contract("gold.b"), product="gold.b", target=target)
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    validate(found, plan.run_id, "bob")
    decisions.accept(found, plan.run_id, "ana", "")
    return plan.run_id


def test_a_followed_product_cannot_go_with_others() -> None:
    where, found, runs = _world()
    where.add("silver.f", **{f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)})
    follow = _accepted(found, "silver.f", "follow")
    with pytest.raises(Unsupported, match="is followed"):
        publish_together(found, (*runs, follow), "ana")
    assert _seen(found) == [None, None, None]


def test_all_go_back_by_one_commit() -> None:
    _, found, runs = _world()
    publish_together(found, runs, "ana")
    ways = tuple((_contract(p), plan_rollback(found, p, None, ())) for p in PRODUCTS)
    rows = rollback_together(found, ways, "wrong rates", "ana")
    assert [(row.action, row.version) for row in rows] == [("rollback", 0)] * 3
    assert _states(found, runs) == {RunState.ROLLED_BACK}
    publish_together(found, runs, "ana")
    assert _seen(found) == list(runs)


def _world_with_hooks() -> tuple[FakeLake, Context, tuple[str, ...]]:
    """Two products, each with a program before and one after its publication."""
    where = lake()
    for product in PRODUCTS[:2]:
        where.add(product, **{f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)})
    found = context(where)
    return where, found, tuple(_accepted(found, product, hooks=HOOKS) for product in PRODUCTS[:2])


def _calls(found: Context) -> list[tuple[str, str]]:
    hooks = found.hooks
    assert isinstance(hooks, FakeHooks)
    return [(name, message["product"]) for name, message in hooks.calls]


@pytest.mark.req("U15")
def test_the_hooks_of_each_are_called_around_the_one_commit() -> None:
    _, found, runs = _world_with_hooks()
    publish_together(found, runs, "ana")
    assert _calls(found) == [
        (name, product) for name in ("pause", "resume") for product in PRODUCTS[:2]
    ]


@pytest.mark.req("U15")
def test_a_hook_that_fails_before_keeps_all_back_and_resumes_all() -> None:
    _, found, runs = _world_with_hooks()
    assert isinstance(found.hooks, FakeHooks)
    found.hooks.broken = {"pause"}
    with pytest.raises(Blocked, match="hook pause failed before_publish"):
        publish_together(found, runs, "ana")
    assert _seen(found) == [None, None, None]
    assert _states(found, runs) == {RunState.ACCEPTED}
    assert _calls(found) == [("pause", PRODUCTS[0]), *(("resume", p) for p in PRODUCTS[:2])]


def _interrupted(found: Context, runs: tuple[str, ...]) -> Context:
    """Kill the publication right after the pointers moved; return the context of a successor."""
    move_all = found.versions.move_all

    def moved(products: tuple[str, ...], decide: Any) -> Any:
        move_all(products, decide)
        raise _Killed

    found.versions.move_all = moved  # type: ignore[method-assign]
    with suppress(_Killed):
        publish_together(dataclasses.replace(found, driver="here:dead"), runs, "ana")
    found.versions.move_all = move_all  # type: ignore[method-assign]
    return dataclasses.replace(found, driver="here:2")


@pytest.mark.req("U15")
def test_one_command_that_resumes_a_group_calls_a_failing_hook_once() -> None:
    _, found, runs = _world_with_hooks()
    successor = _interrupted(found, runs)
    assert isinstance(found.hooks, FakeHooks)
    found.hooks.calls.clear()
    found.hooks.broken = {"resume"}
    publish(successor, runs[0], "ana")
    assert _calls(found) == [("resume", product) for product in PRODUCTS[:2]]
    assert _states(found, runs) == {RunState.PUBLISHED}


def test_a_view_that_fails_after_the_move_leaves_all_visible() -> None:
    where = lake()
    terms = {"gold.a": {"view": "gold.a_now"}}
    for product in PRODUCTS[:2]:
        where.add(product, **{f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)})
    found = context(where)
    runs = tuple(_accepted(found, p, **terms.get(p, {})) for p in PRODUCTS[:2])
    show = found.views.show

    def refused(*_: Any) -> None:
        raise Unsupported("no views here")

    found.views.show = refused  # type: ignore[method-assign]
    with pytest.raises(Unsupported, match="no views here"):
        publish_together(found, runs, "ana")
    assert _seen(found)[:2] == list(runs)
    found.views.show = show  # type: ignore[method-assign]
    publish_together(found, runs, "ana")
    assert _states(found, runs) == {RunState.PUBLISHED}


def test_one_that_is_published_already_leaves_the_others_as_they_are() -> None:
    _, found, runs = _world()
    publish(found, runs[1], "ana")
    with pytest.raises(IllegalMove):
        publish_together(found, runs, "ana")
    assert found.runs.status(runs[0]).state is RunState.ACCEPTED
    assert _seen(found) == [None, runs[1], None]


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", range(1, 50, 2))
def test_after_a_kill_anywhere_all_are_visible_or_none(moment: int) -> None:
    _, found, runs = _world()
    dying = watch_ports(dataclasses.replace(found, driver="here:dead"))
    reached: list[str] = []

    def hook(point: str) -> None:
        reached.append(point)
        if len(reached) == moment:
            raise _Killed

    install_hook(hook)
    with suppress(_Killed):
        publish_together(dying, runs, "ana")
    install_hook(None)
    assert _seen(found) in ([None, None, None], list(runs))
    successor = dataclasses.replace(found, driver="here:2")
    recover(successor, None, "ana")
    assert _seen(found) in ([None, None, None], list(runs))
    assert recover(successor, None, "ana") == ()
    publish_together(successor, runs, "ana")
    assert _seen(found) == list(runs)
    assert _states(found, runs) == {RunState.PUBLISHED}
    assert [len(found.versions.history(product)) for product in PRODUCTS] == [2, 2, 2]
