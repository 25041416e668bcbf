"""Checks and hooks around a publication, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from lakehouse_backfill.core.publication.post_publish import post_publish_outcome
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import Blocked, ChecksFailed, TargetChanged
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.kills import Killed, killed_at, other_process
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import accepted_run, content_of, pending_of, state_of

HOOKS = [
    {"name": "pause", "on": "before_publish", "command": ["pause"]},
    {"name": "resume", "on": "after_publish", "command": ["resume"]},
    {"name": "caches", "on": "after_rollback", "command": ["caches"]},
    {"name": "page", "on": "on_halt", "command": ["page"]},
]


def _world(engine: FakeCompute | None = None, **terms: Any) -> tuple[FakeLake, Context, str]:
    """An accepted run whose contract has the hooks, and `terms`."""
    where = engine.lake if engine else lake()
    found = context(where, engine)
    wanted = declared(contract=contract(hooks=HOOKS, **terms))
    return where, found, accepted_run(found, wanted)


def _hooks(found: Context) -> FakeHooks:
    assert isinstance(found.hooks, FakeHooks)
    return found.hooks


def _calls(found: Context) -> list[str]:
    return [f"{name}: {message.get('outcome', '')}" for name, message in _hooks(found).calls]


def _broken(found: Context, *names: str) -> None:
    _hooks(found).broken = set(names)


@pytest.mark.req("U15")
def test_hooks_are_called_once_in_order_and_recorded() -> None:
    _, found, run_id = _world()
    for _ in range(2):
        publish(found, run_id, "ana")
    assert _calls(found) == ["pause: ", "resume: published"]
    recorded = found.evidence.newest(run_id, "hook before_publish pause")
    assert (recorded[1]["is_ok"], recorded[1]["detail"]) == (True, "exit code 0")


@pytest.mark.req("U15")
def test_a_failed_before_hook_stops_the_publish_and_resumes_what_was_paused() -> None:
    where, found, run_id = _world()
    head = where.tables[PRODUCT].head
    _broken(found, "pause")
    with pytest.raises(Blocked, match="hook pause failed before_publish"):
        publish(found, run_id, "ana")
    assert (where.tables[PRODUCT].head, state_of(found, run_id)) == (head, RunState.ACCEPTED)
    assert pending_of(found) is None
    assert _calls(found) == ["pause: ", "resume: given back"]
    _broken(found)
    assert publish(found, run_id, "ana").publication.version == 2


def _recovers_hook(found: Context, action: str, outcome: str) -> None:
    """The hook `resume`, which failed, fails in one recovery and is called in the next."""
    for result in ("failed again: resume", "done"):
        (done,) = recover(found, None, "ana")
        assert (done.action, done.result) == (action, result)
        _broken(found)
    assert recover(found, None, "ana") == ()
    assert _calls(found) == ["pause: "] + [f"resume: {outcome}"] * 3
    assert len({call["idempotency_key"] for _, call in _hooks(found).calls[1:]}) == 1


@pytest.mark.req("U15")
def test_an_after_hook_that_failed_is_called_again_by_recover() -> None:
    _, found, run_id = _world()
    _broken(found, "resume")
    publish(found, run_id, "ana")
    assert state_of(found, run_id) is RunState.PUBLISHED
    _recovers_hook(found, "follow it up", "published")


@pytest.mark.req("U15")
@pytest.mark.parametrize("moment", range(1, 12))
def test_recover_resumes_hooks_and_checks_after_a_kill_anywhere(moment: int) -> None:
    """Hooks may be called twice when the kill lies between call and record: the key is the same."""
    where, found, run_id = _world(after_publish={})
    with suppress(Killed), killed_at(2 * moment):
        publish(other_process(found), run_id, "ana")
    successor = dataclasses.replace(found, driver="here:2")
    recover(successor, None, "ana")
    if state_of(successor, run_id) is RunState.ACCEPTED:
        publish(successor, run_id, "ana")
    calls = _calls(found)
    assert {"pause: ", "resume: published"} <= set(calls)
    assert recover(successor, None, "ana") == ()
    assert state_of(successor, run_id) is RunState.PUBLISHED
    assert content_of(where)["2020-01-02"] != frozenset({"old-2"})


@pytest.mark.req("U15", "U10")
@pytest.mark.parametrize("goes_on", ["recover", "again"])
@pytest.mark.parametrize("moment", range(1, 10))
def test_what_was_paused_goes_on_wherever_a_refused_publication_is_killed(moment, goes_on) -> None:
    """Given back means resumed, also when the pause itself was not recorded any more."""
    where, found, run_id = _world()
    where.write(PRODUCT, "2020-01-02", "live")
    with suppress(Killed, TargetChanged), killed_at(2 * moment):
        publish(other_process(found), run_id, "ana")
    successor = dataclasses.replace(found, driver="here:2")
    if goes_on == "recover":
        recover(successor, None, "ana")
    with suppress(TargetChanged):
        publish(successor, run_id, "ana")
    calls = _calls(found)
    assert set(calls) == {"pause: ", "resume: given back"}
    assert calls[-1] == "resume: given back"
    assert state_of(successor, run_id) is RunState.ACCEPTED
    assert successor.versions.pointer(PRODUCT).pending is None
    assert recover(successor, None, "ana") == ()


@pytest.mark.req("U15")
def test_a_hook_that_failed_when_a_publication_was_given_back_is_called_again_by_recover() -> None:
    where, found, run_id = _world()
    where.write(PRODUCT, "2020-01-02", "live")
    _broken(found, "resume")
    with pytest.raises(TargetChanged):
        publish(found, run_id, "ana")
    _recovers_hook(found, "tell of the return", "given back")


@pytest.mark.req("U14")
def test_what_readers_get_is_compared_with_the_candidate() -> None:
    _, found, run_id = _world(after_publish={})
    publish(found, run_id, "ana")
    recorded = found.evidence.newest(run_id, "after-publish")
    assert [check["name"] for check in recorded[1]["checks"]] == ["readers see the candidate"]
    (row, *_) = found.versions.history(PRODUCT)
    followed = post_publish_outcome(found, found.runs.plan(run_id), row)
    assert [check.name for check in followed.checks] == ["readers see the candidate"]
    assert [(call.hook, call.is_ok) for call in followed.calls] == [
        ("pause", True), ("resume", True),
    ]  # fmt: skip


@pytest.mark.req("U14")
def test_a_failed_check_after_publish_alerts_and_leaves_the_publication() -> None:
    compute = FakeCompute(lake(), bad_suites={"after.json"})
    _, found, run_id = _world(compute, after_publish={"suites": [{"file": "after.json"}]})
    with pytest.raises(ChecksFailed, match="checks after publish failed") as caught:
        publish(found, run_id, "ana")
    assert "is published, and readers see it" in caught.value.state
    assert state_of(found, run_id) is RunState.PUBLISHED
    assert _calls(found) == ["pause: ", "resume: published"]


@pytest.mark.req("U14")
def test_a_failed_check_after_publish_rolls_back_where_the_contract_says_so() -> None:
    compute = FakeCompute(lake(), bad_suites={"after.json"})
    after = {"suites": [{"file": "after.json"}], "on_failed": "rollback"}
    where, found, run_id = _world(compute, after_publish=after)
    with pytest.raises(ChecksFailed) as caught:
        publish(found, run_id, "ana")
    assert "was rolled back" in caught.value.state
    assert state_of(found, run_id) is RunState.ROLLED_BACK
    assert content_of(where)["2020-01-02"] == frozenset({"old-2"})
    assert _calls(found) == ["pause: ", "caches: rolled back", "resume: rolled back"]


@pytest.mark.req("U14")
def test_the_checks_after_publish_run_once_for_a_publication() -> None:
    compute = FakeCompute(lake())
    _, found, run_id = _world(compute, after_publish={"suites": [{"file": "after.json"}]})
    publish(found, run_id, "ana")
    publish(found, run_id, "ana")
    judged = [name for name in compute.judged if name.startswith("after.json")]
    assert [line.partition(": ")[0] for line in judged] == [f"after.json on {PRODUCT}@2"]


@pytest.mark.req("U14", "U10")
def test_a_repeated_publish_does_not_publish_again_what_its_checks_rolled_back() -> None:
    """Killed at each moment; where readers are back already, only the failure is told again."""
    after = {"suites": [{"file": "after.json"}], "on_failed": "rollback"}
    told_again = 0
    for moment in range(1, 40):
        engine = FakeCompute(lake(), bad_suites={"after.json"})
        _, found, run_id = _world(engine, after_publish=after)
        with suppress(Killed, ChecksFailed), killed_at(moment) as points:
            publish(other_process(found), run_id, "ana")
        if len(points) < moment:
            break
        before = [row.action for row in found.versions.history(PRODUCT)]
        is_told = state_of(found, run_id) is not RunState.PUBLISHED
        if before[:1] != ["rollback"] or is_told:
            continue
        with pytest.raises(ChecksFailed, match="checks after publish failed"):
            publish(dataclasses.replace(found, driver="here:2"), run_id, "ana")
        assert [row.action for row in found.versions.history(PRODUCT)] == before
        assert state_of(found, run_id) is RunState.ROLLED_BACK
        told_again += 1
    assert told_again
