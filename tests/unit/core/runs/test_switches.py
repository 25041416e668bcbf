"""Switches and the pilot list of a profile, over an in-memory lake."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.approval.decisions import waive
from lakehouse_backfill.core.migration.migrate import migrate
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.publication.publish import publish, publish_with_catch_up
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.roles import describe_switched_off, require_switched_on
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import Blocked, TargetChanged
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.kills import Killed, killed_at, other_process
from tests.support.fakes.rollout import FakeCorrectionTopics
from tests.support.fakes.steps import accepted_run, roll_back, state_of

pytestmark = pytest.mark.req("X8")


def _switched(found: Context, **fields: Any) -> Context:
    profile = Profile.model_validate({"catalog": {"name": "lake"}, **fields})
    return dataclasses.replace(found, profile=profile)


def test_the_switch_of_a_product_decides_before_that_of_all() -> None:
    profile = Profile.model_validate(
        {
            "catalog": {"name": "lake"},
            "switches": {"publish": False, "hooks": True},
            "product_switches": {"silver.a": {"publish": True, "hooks": False}, "silver.b": {}},
        }
    )
    on = [profile.is_on("publish", f"silver.{name}") for name in "abc"]
    assert on == [True, False, False]
    assert [profile.is_on("hooks", f"silver.{name}") for name in "abc"] == [False, True, True]
    assert profile.is_on("catch_up", "silver.a")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"switches": {"publish": False}}, "switches.publish: true"),
        ({"product_switches": {PRODUCT: {"publish": False}}}, f"{PRODUCT}.publish: true"),
        ({"pilot": ["silver.other"]}, "pilot"),
        ({"pilot": []}, "pilot"),
    ],
)
def test_a_publication_that_is_switched_off_changes_nothing(
    fields: dict[str, Any], place: str
) -> None:
    where = lake()
    found = context(where)
    run_id = accepted_run(found)
    head = where.tables[PRODUCT].head
    with pytest.raises(Blocked) as refused:
        publish(_switched(found, **fields), run_id, "ana")
    assert place in refused.value.fix
    assert (where.tables[PRODUCT].head, state_of(found, run_id)) == (head, RunState.ACCEPTED)
    assert found.versions.history(PRODUCT) == ()
    assert publish(_switched(found, pilot=[PRODUCT]), run_id, "ana").publication.version == 1


@pytest.mark.parametrize("fields", [{"switches": {"publish": False}}, {"pilot": ["silver.other"]}])
def test_a_migration_is_a_publication_too(fields: dict[str, Any]) -> None:
    nothing: Any = None  # Neither the old place nor a table is looked at.
    with pytest.raises(Blocked):
        migrate(_switched(context(lake()), **fields), nothing, nothing, contract(), "ana")


def test_what_has_begun_is_finished_and_the_way_back_is_open() -> None:
    found = other_process(context(lake()))
    run_id = accepted_run(found)
    with pytest.raises(Killed), killed_at("Publisher.adopt:after"):
        publish(found, run_id, "ana")
    off = _switched(other_process(found), switches={"publish": False})
    recover(off, None, "ana")
    assert state_of(off, run_id) is RunState.PUBLISHED
    roll_back(off)
    assert state_of(off, run_id) is RunState.ROLLED_BACK


def test_no_further_step_begins_and_the_steps_that_readers_see_are_named() -> None:
    where = lake()
    found = other_process(context(where, FakeCompute(where)))
    steps = {"progressive": {"partitions_per_step": 2}}
    run_id = accepted_run(found, declared("2020-01-01", "2020-01-05", target=steps))
    with pytest.raises(Killed), killed_at("Publisher.adopt:after"):
        publish(found, run_id, "ana")
    off = _switched(other_process(found), switches={"publish": False})
    for _ in range(2):
        with pytest.raises(Blocked, match="switched off") as refused:
            publish(off, run_id, "ana")
        assert refused.value.state.startswith("readers see 2020-01-01, 2020-01-02 of this run")
        assert state_of(off, run_id) is RunState.PUBLISH_HALTED
    publish(other_process(found), run_id, "ana")
    assert state_of(found, run_id) is RunState.PUBLISHED


def test_hooks_that_are_switched_off_stop_a_publication_that_waits_for_them() -> None:
    hooks = [{"name": "pause", "on": "before_publish", "command": ["pause"]}]
    found = context(lake())
    run_id = accepted_run(found, declared(contract=contract(hooks=hooks)))
    with pytest.raises(Blocked, match="hook pause failed before_publish: not called"):
        publish(_switched(found, switches={"hooks": False}), run_id, "ana")
    assert isinstance(found.hooks, FakeHooks)
    assert found.hooks.calls == []


def test_hooks_after_a_publication_are_called_once_they_are_on_again() -> None:
    hooks = [{"name": "tell", "on": "after_publish", "command": ["tell"]}]
    found = context(lake())
    run_id = accepted_run(found, declared(contract=contract(hooks=hooks)))
    publish(_switched(found, switches={"hooks": False}), run_id, "ana")
    assert isinstance(found.hooks, FakeHooks)
    assert found.hooks.calls == []
    recover(found, None, "ana")
    assert [name for name, _ in found.hooks.calls] == ["tell"]


def test_catch_up_that_is_switched_off_ends_in_the_conflict() -> None:
    where = lake()
    found = context(where, FakeCompute(where))
    run_id = accepted_run(found, declared(safety={"on_conflict": "catch_up"}))
    where.write(PRODUCT, "2020-01-02", "old-2@live")
    with pytest.raises(TargetChanged):
        publish_with_catch_up(_switched(found, switches={"catch_up": False}), run_id, "ana")
    assert len(found.runs.list(open_only=False)) == 1


def test_waivers_that_are_switched_off_are_refused_also_in_a_manifest() -> None:
    found = _switched(context(lake()), product_switches={PRODUCT: {"waivers": False}})
    exception = {"by": "ana", "reason": "asked for by law"}
    with pytest.raises(Blocked, match=r"waivers for .* are switched off"):
        make_plan(found, declared(safety={"retention_exception": exception}), "bob", None)
    run_id = accepted_run(found)
    with pytest.raises(Blocked, match=r"waivers for .* are switched off") as refused:
        waive(found, run_id, "any", "ana", "why not")
    assert refused.value.state == "nothing was waived"


@pytest.mark.parametrize(
    ("fields", "is_on"),
    [
        ({}, False),
        ({"switches": {"publish": True}}, False),
        ({"switches": {"live_topic": True}}, True),
        (
            {"switches": {"live_topic": True}, "product_switches": {PRODUCT: {"publish": True}}},
            True,
        ),
        (
            {
                "switches": {"live_topic": True},
                "product_switches": {PRODUCT: {"live_topic": False}},
            },
            False,
        ),
        ({"product_switches": {PRODUCT: {"live_topic": True}}}, True),
        ({"product_switches": {"silver.other": {"live_topic": True}}}, False),
    ],
)
def test_topics_are_off_unless_the_profile_switches_them_on(
    fields: dict[str, Any], *, is_on: bool
) -> None:
    profile = Profile.model_validate({"catalog": {"name": "lake"}, **fields})
    assert profile.is_on("live_topic", PRODUCT) is is_on
    off = {} if is_on else {"live_topic"}
    assert set(describe_switched_off(profile, PRODUCT)) == set(off)
    if is_on:
        require_switched_on(profile, "live_topic", PRODUCT, "nothing was sent")
        return
    with pytest.raises(Blocked, match=f"topics of {PRODUCT} are switched off") as refused:
        require_switched_on(profile, "live_topic", PRODUCT, "nothing was sent")
    assert refused.value.state == "nothing was sent"
    assert "live_topic: true" in refused.value.fix


def _into_topic() -> DeclaredRun:
    topic = {"name": "corrections", "bootstrap_servers": "127.0.0.1:1"}
    sink = {"table": "silver.e", "topic": topic}
    return declared(target={"publish_mode": "correction_events", "corrections": sink})


def test_a_run_that_names_a_topic_is_not_planned_while_topics_are_off() -> None:
    found = context(lake())
    with pytest.raises(Blocked, match=f"topics of {PRODUCT} are switched off"):
        make_plan(found, _into_topic(), "bob", None)
    assert found.runs.list(open_only=False) == ()


@pytest.mark.parametrize(
    "off",
    [{"switches": {"live_topic": False}}, {"product_switches": {PRODUCT: {"live_topic": False}}}],
)
def test_a_topic_that_is_switched_off_later_gets_nothing_until_it_is_on_again(
    off: dict[str, Any],
) -> None:
    on = _switched(context(lake()), switches={"live_topic": True})
    run_id = accepted_run(on, _into_topic())
    topics = on.correction_topics
    assert isinstance(topics, FakeCorrectionTopics)
    with pytest.raises(Blocked, match=f"topics of {PRODUCT} are switched off"):
        publish(_switched(on, **off), run_id, "ana")
    assert (topics.records, on.versions.history(PRODUCT)) == ({}, ())
    publish(on, run_id, "ana")
    assert len(topics.records["corrections"]) == 2
    # What a rollback takes back is sent once topics are on again.
    with pytest.raises(Blocked, match=f"topics of {PRODUCT} are switched off"):
        roll_back(_switched(on, **off))
    assert state_of(on, run_id) is RunState.ROLLED_BACK
    assert len(topics.records["corrections"]) == 2
    recover(on, None, "ana")
    assert len(topics.records["corrections"]) == 4


def test_a_plan_says_nothing_of_what_is_off_by_default() -> None:
    assert not [note for note in make_plan(context(lake()), declared(), "bob", None).notes
                if "switched off" in note]  # fmt: skip


def test_a_plan_says_what_is_switched_off() -> None:
    found = _switched(context(lake()), switches={"publish": False}, pilot=["silver.other"])
    notes = "\n".join(make_plan(found, declared(), "bob", None).notes)
    assert f"publications of {PRODUCT} are switched off in this profile (switches.publish)" in notes
    assert f"{PRODUCT} is not in the profile's pilot list" in notes
