"""Several pinned products move by one commit of the pointer table, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.publication.groups.rollbacks import rollback_together
from lakehouse_backfill.core.publication.publish import publish, publish_together
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes.context import contract, declared
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.kills import Killed, killed_at, other_process
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import accepted_run, note_calls, state_of, world

pytestmark = pytest.mark.req("U2")
OLD = {f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)}
PRODUCTS = ("gold.a", "gold.b", "gold.c")


def _contract(product: str, publication: str = "pinned", **terms: Any) -> Contract:
    return contract(product=product, table=product, publication=publication, **terms)


HOOKS = [
    {"name": "pause", "on": "before_publish", "command": ["pause"]},
    {"name": "resume", "on": "after_publish", "command": ["resume"]},
]


def _accepted(
    found: Context,
    product: str,
    publication: str = "pinned",
    days: tuple[str, str] = ("2020-01-02", "2020-01-04"),
    **terms: Any,
) -> str:
    mode = "pointer_swap" if publication == "pinned" else "replace_partitions"
    terms_of = _contract(product, publication, **terms)
    wanted = declared(*days, contract=terms_of, product=product, target={"publish_mode": mode})
    return accepted_run(found, wanted)


def _world(
    products: tuple[str, ...] = PRODUCTS, **terms: Any
) -> tuple[FakeLake, Context, tuple[str, ...]]:
    where, found = world()
    for product in products:
        where.add(product, **OLD)
    return where, found, tuple(_accepted(found, product, **terms) for product in products)


def _seen(found: Context) -> list[str | None]:
    pointers = found.versions.pointers(PRODUCTS)
    rows = [pointers[product].accepted for product in PRODUCTS]
    return [row.run_id if row else None for row in rows]


def _states(found: Context, runs: tuple[str, ...]) -> set[RunState]:
    return {state_of(found, run) for run in runs}


def test_all_become_visible_by_one_commit() -> None:
    _, found, runs = _world()
    moves = note_calls(found.versions, "move_all")
    done = publish_together(found, runs, "ana")
    assert [products for products, _ in moves] == [PRODUCTS]
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
    with pytest.raises((errors.ApprovalMissing, errors.Blocked)):
        publish_together(found, runs, "ana")
    assert _seen(found) == [None, None, None]
    assert state_of(found, runs[0]) is RunState.ACCEPTED


def test_one_whose_pointer_moved_keeps_all_back() -> None:
    _, found, runs = _world()
    other = _accepted(found, "gold.b", days=("2020-01-05", "2020-01-06"))
    publish(found, other, "ana")
    with pytest.raises(errors.PointerMoved, match=r"gold\.b"):
        publish_together(found, runs, "ana")
    assert _seen(found) == [None, other, None]
    assert _states(found, runs) == {RunState.ACCEPTED}


def test_a_followed_product_cannot_go_with_others() -> None:
    where, found, runs = _world()
    where.add("silver.f", **OLD)
    follow = _accepted(found, "silver.f", "follow")
    with pytest.raises(errors.Unsupported, match="is followed, and others"):
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


def _calls(found: Context) -> list[tuple[str, str]]:
    hooks = found.hooks
    assert isinstance(hooks, FakeHooks)
    return [(name, message["product"]) for name, message in hooks.calls]


@pytest.mark.req("U15")
def test_the_hooks_of_each_are_called_around_the_one_commit() -> None:
    _, found, runs = _world(PRODUCTS[:2], hooks=HOOKS)
    publish_together(found, runs, "ana")
    assert _calls(found) == [
        (name, product) for name in ("pause", "resume") for product in PRODUCTS[:2]
    ]


@pytest.mark.req("U15")
def test_a_hook_that_fails_before_keeps_all_back_and_resumes_all() -> None:
    _, found, runs = _world(PRODUCTS[:2], hooks=HOOKS)
    assert isinstance(found.hooks, FakeHooks)
    found.hooks.broken = {"pause"}
    with pytest.raises(errors.Blocked, match="hook pause failed before_publish"):
        publish_together(found, runs, "ana")
    assert _seen(found) == [None, None, None]
    assert _states(found, runs) == {RunState.ACCEPTED}
    assert _calls(found) == [("pause", PRODUCTS[0]), *(("resume", p) for p in PRODUCTS[:2])]


@pytest.mark.req("U15")
def test_one_command_that_resumes_a_group_calls_a_failing_hook_once() -> None:
    _, found, runs = _world(PRODUCTS[:2], hooks=HOOKS)
    with pytest.raises(Killed), killed_at("Versions.move_all:after"):
        publish_together(other_process(found), runs, "ana")
    successor = dataclasses.replace(found, driver="here:2")
    assert isinstance(found.hooks, FakeHooks)
    found.hooks.calls.clear()
    found.hooks.broken = {"resume"}
    publish(successor, runs[0], "ana")
    assert _calls(found) == [("resume", product) for product in PRODUCTS[:2]]
    assert _states(found, runs) == {RunState.PUBLISHED}


def test_a_view_that_fails_after_the_move_leaves_all_visible() -> None:
    _, found, runs = _world(PRODUCTS[:2], view="gold.now")

    class NoViews:
        def show(self, *_: Any) -> None:
            raise errors.Unsupported("no views here")

    with pytest.raises(errors.Unsupported, match="no views here"):
        publish_together(dataclasses.replace(found, views=NoViews()), runs, "ana")
    assert _seen(found)[:2] == list(runs)
    publish_together(found, runs, "ana")
    assert _states(found, runs) == {RunState.PUBLISHED}


def test_one_that_is_published_already_leaves_the_others_as_they_are() -> None:
    _, found, runs = _world()
    publish(found, runs[1], "ana")
    with pytest.raises(errors.IllegalMove):
        publish_together(found, runs, "ana")
    assert state_of(found, runs[0]) is RunState.ACCEPTED
    assert _seen(found) == [None, runs[1], None]


@pytest.mark.parametrize("moment", range(1, 50, 2))
def test_after_a_kill_anywhere_all_are_visible_or_none(moment: int) -> None:
    _, found, runs = _world()
    with suppress(Killed), killed_at(moment):
        publish_together(other_process(found), runs, "ana")
    assert _seen(found) in ([None, None, None], list(runs))
    successor = dataclasses.replace(found, driver="here:2")
    recover(successor, None, "ana")
    assert _seen(found) in ([None, None, None], list(runs))
    assert recover(successor, None, "ana") == ()
    publish_together(successor, runs, "ana")
    assert _seen(found) == list(runs)
    assert _states(found, runs) == {RunState.PUBLISHED}
    assert [len(found.versions.history(product)) for product in PRODUCTS] == [2, 2, 2]
