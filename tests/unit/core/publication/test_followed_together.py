"""Several followed products are restated by one commit of the catalog, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.publication.groups.rollbacks import rollback_together
from lakehouse_backfill.core.publication.publish import (
    publish,
    publish_together,
    publish_with_catch_up,
)
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.tables.commits import AdoptRequest, CommitResult
from tests.support.fakes.context import contract, declared
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.kills import Killed, killed_at, other_process
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import accepted_run, state_of, world

OLD = {f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)}
PRODUCTS = ("silver.a", "silver.b", "silver.c")
HOOKS = [
    {"name": "pause", "on": "before_publish", "command": ["pause"]},
    {"name": "resume", "on": "after_publish", "command": ["resume"]},
]


def _accepted(
    found: Context, product: str, target: Any = None, safety: Any = None, **terms: Any
) -> str:
    terms_of = contract(product=product, table=product, publication="follow", **terms)
    mode = {"publish_mode": "replace_partitions", **(target or {})}
    wanted = declared(
        "2020-01-02",
        "2020-01-04",
        contract=terms_of,
        product=product,
        target=mode,
        safety=safety or {},
    )
    return accepted_run(found, wanted)


def group_world(**terms: Any) -> tuple[FakeLake, Context, tuple[str, ...]]:
    where, found = world()
    for product in PRODUCTS:
        where.add(product, **OLD)
    return where, found, tuple(_accepted(found, product, **terms) for product in PRODUCTS)


def _live_commit(where: FakeLake) -> None:
    table = where.tables[PRODUCTS[1]]
    table.commit({**table.content(table.head), "2020-01-02": frozenset({"live"})})


def heads(where: FakeLake) -> list[int]:
    return [where.tables[product].head or 0 for product in PRODUCTS]


def _seen(found: Context) -> list[str | None]:
    pointers = found.versions.pointers(PRODUCTS)
    rows = [pointers[product].accepted for product in PRODUCTS]
    return [row.run_id if row else None for row in rows]


def _require_published(where: FakeLake, found: Context, runs: tuple[str, ...]) -> None:
    assert _seen(found) == list(runs)
    assert {state_of(found, run) for run in runs} == {RunState.PUBLISHED}
    for product in PRODUCTS:
        actions = [row.action for row in found.versions.history(product)]
        assert actions.count("publish") == 1
    assert heads(where) == [2, 2, 2]
    assert found.versions.pending() == ()


def test_all_tables_change_by_one_commit() -> None:
    where, found, runs = group_world()
    done = publish_together(found, runs, "ana")
    assert where.calls.count("adopt together") == 1
    assert {run: item.publication.version for run, item in done.items()} == dict.fromkeys(runs, 1)
    _require_published(where, found, runs)
    again = publish_together(found, runs, "ana")
    assert all(item.was_published for item in again.values())
    _require_published(where, found, runs)


def test_a_live_commit_in_one_of_them_keeps_all_back() -> None:
    where, found, runs = group_world(hooks=HOOKS)
    _live_commit(where)
    before = heads(where)
    with pytest.raises(errors.TargetChanged):
        publish_together(found, runs, "ana")
    assert heads(where) == before
    assert _seen(found) == [None, None, None]
    assert {state_of(found, run) for run in runs} == {RunState.ACCEPTED}
    assert found.versions.pending() == ()
    assert isinstance(found.hooks, FakeHooks)
    calls = [(name, told["product"]) for name, told in found.hooks.calls]
    assert calls == [(name, product) for name in ("pause", "resume") for product in PRODUCTS]
    assert recover(found, None, "ana") == ()


def test_an_interrupted_group_is_not_followed_by_revisions() -> None:
    where, found = world()
    for product in PRODUCTS:
        where.add(product, **OLD)
    follows = {"on_conflict": "catch_up"}
    runs = tuple(_accepted(found, product, safety=follows) for product in PRODUCTS)
    with pytest.raises(Killed), killed_at("Publisher.adopt_together:before"):
        publish_together(other_process(found), runs, "ana")
    _live_commit(where)
    successor = dataclasses.replace(found, driver="here:2")
    with pytest.raises(errors.TargetChanged):
        publish_with_catch_up(successor, runs[0], "ana")
    assert len(found.runs.list(open_only=False)) == len(runs)
    assert {state_of(found, run) for run in runs} == {RunState.ACCEPTED}


def test_a_catalog_without_such_commits_is_refused_before_anything() -> None:
    where, found, runs = group_world()
    where.not_together = "the catalog does not offer it"
    with pytest.raises(errors.Unsupported, match="does not offer it"):
        publish_together(found, runs, "ana")
    assert {state_of(found, run) for run in runs} == {RunState.ACCEPTED}


def test_a_run_in_steps_is_refused() -> None:
    where, found = world()
    for product in PRODUCTS[:2]:
        where.add(product, **OLD)
    runs = (
        _accepted(found, PRODUCTS[0]),
        _accepted(found, PRODUCTS[1], {"progressive": {"partitions_per_step": 1}}),
    )
    with pytest.raises(errors.Unsupported, match="published in steps"):
        publish_together(found, runs, "ana")


def test_one_that_is_published_already_leaves_the_others_as_they_are() -> None:
    where, found, runs = group_world()
    publish(found, runs[1], "ana")
    with pytest.raises(errors.IllegalMove):
        publish_together(found, runs, "ana")
    assert _seen(found) == [None, runs[1], None]
    assert heads(where) == [1, 2, 1]


@pytest.mark.parametrize("moment", range(1, 60))
def test_after_a_kill_anywhere_all_tables_changed_or_none(moment: int) -> None:
    where, found, runs = group_world()
    with suppress(Killed), killed_at(moment):
        publish_together(other_process(found), runs, "ana")
    assert heads(where) in ([1, 1, 1], [2, 2, 2])
    successor = dataclasses.replace(found, driver="here:2")
    recover(successor, None, "ana")
    assert heads(where) in ([1, 1, 1], [2, 2, 2])
    assert recover(successor, None, "ana") == ()
    publish_together(successor, runs, "ana")
    _require_published(where, found, runs)


def _back(found: Context) -> tuple[Publication, ...]:
    ways = tuple(
        (
            contract(product=name, table=name, publication="follow"),
            plan_rollback(found, name, 0, ()),
        )
        for name in PRODUCTS
    )
    return rollback_together(found, ways, "wrong", "ana")


def _require_back(where: FakeLake, found: Context, runs: tuple[str, ...]) -> None:
    assert heads(where) == [3, 3, 3]
    contents = [where.tables[product].content(3) for product in PRODUCTS]
    assert contents == [where.tables[product].content(1) for product in PRODUCTS]
    assert {state_of(found, run) for run in runs} == {RunState.ROLLED_BACK}
    assert found.versions.pending() == ()


def test_all_go_back_by_one_commit() -> None:
    where, found, runs = group_world()
    publish_together(found, runs, "ana")
    rows = _back(found)
    assert where.calls.count("revert together") == 1
    assert [(row.action, row.version) for row in rows] == [("rollback", 0)] * 3
    _require_back(where, found, runs)


def test_a_live_commit_in_one_of_them_keeps_all_where_they_are() -> None:
    where, found, runs = group_world()
    publish_together(found, runs, "ana")
    _live_commit(where)
    with pytest.raises(errors.TargetChanged):
        _back(found)
    assert heads(where) == [2, 3, 2]
    assert found.versions.pending() == ()
    assert {state_of(found, run) for run in runs} == {RunState.PUBLISHED}


def test_what_has_to_be_rewritten_goes_back_alone() -> None:
    where, found, runs = group_world()
    publish_together(found, runs, "ana")
    where.must_rewrite = {"2020-01-02"}
    with pytest.raises(errors.Unsupported, match="2020-01-02 have to be rewritten"):
        _back(found)
    assert found.versions.pending() == ()


@pytest.mark.parametrize("moment", range(1, 30))
def test_after_a_kill_anywhere_all_go_back(moment: int) -> None:
    where, found, runs = group_world()
    publish_together(found, runs, "ana")
    with suppress(Killed), killed_at(moment):
        _back(other_process(found))
    assert heads(where) in ([2, 2, 2], [3, 3, 3])
    successor = dataclasses.replace(found, driver="here:2")
    recover(successor, None, "ana")
    assert recover(successor, None, "ana") == ()
    if heads(where) == [2, 2, 2]:
        _back(successor)
    _require_back(where, found, runs)


class _HalfCatalog:
    """A catalog that breaks its promise: it takes the first table's change, and no other."""

    def __init__(self, where: FakeLake) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        return getattr(self._where, name)

    def adopt_together(self, requests: tuple[AdoptRequest, ...]) -> tuple[CommitResult, ...]:
        self._where.adopt(requests[0])
        raise errors.TargetChanged(f"{requests[1].target} was changed by a live writer")


def test_where_a_part_has_landed_it_is_finished_and_named() -> None:
    where, found, runs = group_world()
    half = dataclasses.replace(found, publisher=_HalfCatalog(where))
    with pytest.raises(errors.TargetChanged) as refused:
        publish_together(half, runs, "ana")
    assert refused.value.state == "readers see the new rows of silver.a, and of no other"
    assert _seen(found) == [runs[0], None, None]
    assert [state_of(found, run) for run in runs] == [
        RunState.PUBLISHED, RunState.ACCEPTED, RunState.ACCEPTED,
    ]  # fmt: skip
    assert recover(found, None, "ana") == ()
    publish_together(found, runs[1:], "ana")
    _require_published_apart(found, runs)


def _require_published_apart(found: Context, runs: tuple[str, ...]) -> None:
    assert _seen(found) == list(runs)
    assert {state_of(found, run) for run in runs} == {RunState.PUBLISHED}
