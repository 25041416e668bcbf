"""Checks and hooks around a publication, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.post_publish import post_publish_outcome
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.publication.rollback import plan_rollback, rollback
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import Blocked, ChecksFailed, TargetChanged
from lakehouse_backfill.fault_points import install_hook, watch_ports
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.lake import FakeLake

HOOKS = [
    {"name": "pause", "on": "before_publish", "command": ["pause"]},
    {"name": "resume", "on": "after_publish", "command": ["resume"]},
    {"name": "caches", "on": "after_rollback", "command": ["caches"]},
    {"name": "page", "on": "on_halt", "command": ["page"]},
]


def _accepted(found: Context, **terms: Any) -> str:
    wanted = declared(contract=contract(hooks=HOOKS, **terms))
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    validate(found, plan.run_id, "bob")
    decisions.accept(found, plan.run_id, "ana", "")
    return plan.run_id


def _world(compute: FakeCompute | None = None, **terms: Any) -> tuple[FakeLake, Context, str]:
    where = compute.lake if compute else lake()
    found = context(where, compute)
    return where, found, _accepted(found, **terms)


def _calls(found: Context) -> list[str]:
    hooks = found.hooks
    assert isinstance(hooks, FakeHooks)
    return [f"{name}: {message.get('outcome', '')}" for name, message in hooks.calls]


def _broken(found: Context, *names: str) -> None:
    hooks = found.hooks
    assert isinstance(hooks, FakeHooks)
    hooks.broken = set(names)


@pytest.mark.req("U15")
def test_hooks_are_called_in_order_and_recorded() -> None:
    _, found, run_id = _world()
    publish(found, run_id, "ana")
    assert _calls(found) == ["pause: ", "resume: published"]
    recorded = found.evidence.newest(run_id, "hook before_publish pause")
    assert recorded is not None
    assert (recorded[1]["is_ok"], recorded[1]["detail"]) == (True, "exit code 0")


@pytest.mark.req("U15")
def test_publishing_twice_calls_no_hook_twice() -> None:
    _, found, run_id = _world()
    publish(found, run_id, "ana")
    publish(found, run_id, "ana")
    assert _calls(found) == ["pause: ", "resume: published"]


@pytest.mark.req("U15")
def test_a_failed_before_hook_stops_the_publish_and_resumes_what_was_paused() -> None:
    where, found, run_id = _world()
    head = where.tables[PRODUCT].head
    _broken(found, "pause")
    with pytest.raises(Blocked, match="hook pause failed before_publish"):
        publish(found, run_id, "ana")
    assert (where.tables[PRODUCT].head, found.runs.status(run_id).state) == (
        head,
        RunState.ACCEPTED,
    )
    assert found.versions.pointer(PRODUCT).pending is None
    assert _calls(found) == ["pause: ", "resume: given back"]
    _broken(found)
    assert publish(found, run_id, "ana").publication.version == 2


@pytest.mark.req("U15")
def test_a_conflict_after_the_pause_resumes_what_was_paused() -> None:
    where, found, run_id = _world()
    where.write(PRODUCT, "2020-01-02", "live")
    with pytest.raises(TargetChanged):
        publish(found, run_id, "ana")
    assert _calls(found) == ["pause: ", "resume: given back"]


@pytest.mark.req("U15")
def test_a_rollback_calls_its_hooks() -> None:
    _, found, run_id = _world()
    publish(found, run_id, "ana")
    rollback(found, contract(), plan_rollback(found, PRODUCT, None, ()), "wrong", "ana")
    assert _calls(found)[-1] == "caches: rolled back"


@pytest.mark.req("U15")
def test_an_after_hook_that_failed_is_called_again_by_recover() -> None:
    _, found, run_id = _world()
    _broken(found, "resume")
    publish(found, run_id, "ana")
    assert found.runs.status(run_id).state is RunState.PUBLISHED
    (done,) = recover(found, None, "ana")
    assert (done.action, done.result) == ("follow it up", "failed again: resume")
    _broken(found)
    (done,) = recover(found, None, "ana")
    assert (done.action, done.result) == ("follow it up", "done")
    assert recover(found, None, "ana") == ()
    assert _calls(found) == ["pause: "] + ["resume: published"] * 3


class _Killed(BaseException):
    pass


@pytest.mark.req("U15")
@pytest.mark.parametrize("moment", range(1, 12))
def test_recover_resumes_hooks_and_checks_after_a_kill_anywhere(moment: int) -> None:
    """Hooks may be called twice when the kill lies between call and record: the key is the same."""
    where, found, run_id = _world(after_publish={})
    watched = watch_ports(dataclasses.replace(found, driver="here:dead"))
    reached: list[str] = []

    def hook(point: str) -> None:
        reached.append(point)
        if len(reached) == 2 * moment:
            raise _Killed

    install_hook(hook)
    with suppress(_Killed):
        publish(watched, run_id, "ana")
    install_hook(None)
    successor = dataclasses.replace(found, driver="here:2")
    recover(successor, None, "ana")
    if successor.runs.status(run_id).state is RunState.ACCEPTED:
        publish(successor, run_id, "ana")
    calls = _calls(found)
    assert {"pause: ", "resume: published"} <= set(calls)
    assert recover(successor, None, "ana") == ()
    table = where.tables[PRODUCT]
    assert successor.runs.status(run_id).state is RunState.PUBLISHED
    assert table.content(table.head)["2020-01-02"] != frozenset({"old-2"})


@pytest.mark.req("U15", "U10")
@pytest.mark.parametrize("goes_on", ["recover", "again"])
@pytest.mark.parametrize("moment", range(1, 10))
def test_what_was_paused_goes_on_wherever_a_refused_publication_is_killed(
    moment: int, goes_on: str
) -> None:
    """Given back means resumed, also when the pause itself was not recorded any more."""
    where, found, run_id = _world()
    where.write(PRODUCT, "2020-01-02", "live")
    watched = watch_ports(dataclasses.replace(found, driver="here:dead"))
    reached: list[str] = []

    def hook(point: str) -> None:
        reached.append(point)
        if len(reached) == 2 * moment:
            raise _Killed

    install_hook(hook)
    with suppress(_Killed, TargetChanged):
        publish(watched, run_id, "ana")
    install_hook(None)
    successor = dataclasses.replace(found, driver="here:2")
    if goes_on == "recover":
        recover(successor, None, "ana")
    with suppress(TargetChanged):
        publish(successor, run_id, "ana")
    calls = _calls(found)
    assert set(calls) == {"pause: ", "resume: given back"}
    assert calls[-1] == "resume: given back"
    assert successor.runs.status(run_id).state is RunState.ACCEPTED
    assert successor.versions.pointer(PRODUCT).pending is None
    assert recover(successor, None, "ana") == ()


@pytest.mark.req("U15")
def test_a_hook_that_failed_when_a_publication_was_given_back_is_called_again_by_recover() -> None:
    where, found, run_id = _world()
    where.write(PRODUCT, "2020-01-02", "live")
    _broken(found, "resume")
    with pytest.raises(TargetChanged):
        publish(found, run_id, "ana")
    (done,) = recover(found, None, "ana")
    assert (done.action, done.result) == ("tell of the return", "failed again: resume")
    _broken(found)
    (done,) = recover(found, None, "ana")
    assert (done.action, done.result) == ("tell of the return", "done")
    assert recover(found, None, "ana") == ()
    keys = {call["idempotency_key"] for name, call in _messages(found) if name == "resume"}
    assert len(keys) == 1


def _messages(found: Context) -> list[tuple[str, dict[str, Any]]]:
    hooks = found.hooks
    assert isinstance(hooks, FakeHooks)
    return hooks.calls


@pytest.mark.req("U14")
def test_what_readers_get_is_compared_with_the_candidate() -> None:
    _, found, run_id = _world(after_publish={})
    publish(found, run_id, "ana")
    recorded = found.evidence.newest(run_id, "after-publish")
    assert recorded is not None
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
    assert found.runs.status(run_id).state is RunState.PUBLISHED
    assert _calls(found) == ["pause: ", "resume: published"]


@pytest.mark.req("U14")
def test_a_failed_check_after_publish_rolls_back_where_the_contract_says_so() -> None:
    compute = FakeCompute(lake(), bad_suites={"after.json"})
    after = {"suites": [{"file": "after.json"}], "on_failed": "rollback"}
    where, found, run_id = _world(compute, after_publish=after)
    with pytest.raises(ChecksFailed) as caught:
        publish(found, run_id, "ana")
    assert "was rolled back" in caught.value.state
    assert found.runs.status(run_id).state is RunState.ROLLED_BACK
    table = where.tables[PRODUCT]
    assert table.content(table.head)["2020-01-02"] == frozenset({"old-2"})
    assert _calls(found) == ["pause: ", "caches: rolled back", "resume: rolled back"]


@pytest.mark.req("U14")
def test_the_checks_after_publish_run_once_for_a_publication() -> None:
    compute = FakeCompute(lake())
    _, found, run_id = _world(compute, after_publish={"suites": [{"file": "after.json"}]})
    publish(found, run_id, "ana")
    publish(found, run_id, "ana")
    assert [name for name in compute.judged if name.startswith("after.json")] == [
        f"after.json on {PRODUCT}@2"
    ]


@pytest.mark.req("U14", "U10")
def test_a_repeated_publish_does_not_publish_again_what_its_checks_rolled_back() -> None:
    """Killed at each moment; where readers are back already, only the failure is told again."""
    after = {"suites": [{"file": "after.json"}], "on_failed": "rollback"}
    told_again = 0
    for moment in range(1, 40):
        _, found, run_id = _world(
            FakeCompute(lake(), bad_suites={"after.json"}), after_publish=after
        )
        watched = watch_ports(dataclasses.replace(found, driver="here:dead"))
        reached: list[str] = []

        def hook(point: str, seen: list[str] = reached, end: int = moment) -> None:
            seen.append(point)
            if len(seen) == end:
                raise _Killed

        install_hook(hook)
        with suppress(_Killed, ChecksFailed):
            publish(watched, run_id, "ana")
        install_hook(None)
        if len(reached) < moment:
            break
        before = [row.action for row in found.versions.history(PRODUCT)]
        is_told = found.runs.status(run_id).state is not RunState.PUBLISHED
        if before[:1] != ["rollback"] or is_told:
            continue
        with pytest.raises(ChecksFailed, match="checks after publish failed"):
            publish(dataclasses.replace(found, driver="here:2"), run_id, "ana")
        assert [row.action for row in found.versions.history(PRODUCT)] == before
        assert found.runs.status(run_id).state is RunState.ROLLED_BACK
        told_again += 1
    assert told_again
