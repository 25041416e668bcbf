"""A dry run on a subset: computed and checked alike, and published by no way (P8)."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan, register_plan
from lakehouse_backfill.core.planning.scope.dry_run import restrict_to_dry_run
from lakehouse_backfill.core.publication.publish import (
    publish,
    publish_together,
    publish_with_catch_up,
    run_until_decision,
)
from lakehouse_backfill.core.publication.recover import recover
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import RunState
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract, declared

DAYS = ("2020-01-02", "2020-01-05")


def dry_run(found: Context, wanted: DeclaredRun, *labels: str) -> str:
    """Plan a dry run of some partitions of a declared run."""
    amend = partial(restrict_to_dry_run, labels=labels)
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None, amend), "bob")
    return plan.run_id


def accepted(found: Context, wanted: DeclaredRun, *labels: str) -> str:
    run_id = dry_run(found, wanted, *labels)
    decisions.approve(found, run_id, "ana", "")
    stage(found, run_id, "bob")
    validate(found, run_id, "bob")
    decisions.accept(found, run_id, "ana", "")
    return run_id


@pytest.mark.req("P8")
def test_only_the_subset_is_computed_and_the_checks_are_those_of_the_run() -> None:
    _, found = steps.world()
    whole = steps.staged_run(found, declared(*DAYS))
    _, full, _ = validate(found, whole, "bob")
    run_id = dry_run(found, declared(*DAYS), "2020-01-03")
    decisions.approve(found, run_id, "ana", "")
    stage(found, run_id, "bob")
    _, part, _ = validate(found, run_id, "bob")
    plan = found.runs.plan(run_id)
    assert plan.resolved.manifest.run.mode == "dry_run"
    assert [chunk.partitions for chunk in found.runs.chunks(run_id)] == [("2020-01-03",)]
    assert [(one.name, one.group) for one in part.checks] == [
        (one.name, one.group) for one in full.checks
    ]


WAYS: dict[str, Any] = {
    "publish": lambda found, run: publish(found, run, "bob"),
    "publish with catch-up": lambda found, run: publish_with_catch_up(found, run, "bob"),
    "publish with others": lambda found, run: publish_together(found, (run,), "bob"),
    "publish by taking over": lambda found, run: publish(
        dataclasses.replace(found, take_over=True), run, "bob"
    ),
}
MODES: dict[str, dict[str, Any]] = {
    "follow": {},
    "progressive": {"target": {"progressive": {"partitions_per_step": 1}}},
    "not manual": {"safety": {"manual_publish": False}},
    "catch up": {"safety": {"on_conflict": "catch_up"}},
    "pinned": {
        "target": {"publish_mode": "pointer_swap"}, "contract": contract(publication="pinned"),
    },
}  # fmt: skip


@pytest.mark.req("P8")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_dry_run_is_published_by_no_way(mode: dict[str, Any], way: Any) -> None:
    where, found = steps.world()
    run_id = accepted(found, declared(*DAYS, **mode), "2020-01-03")
    before = steps.content_of(where), found.versions.pointer(PRODUCT)
    with pytest.raises(errors.BackfillError) as caught:
        way(found, run_id)
    assert isinstance(caught.value, errors.Blocked | errors.Unsupported)
    assert (steps.content_of(where), found.versions.pointer(PRODUCT)) == before
    assert found.versions.history(PRODUCT) == ()


@pytest.mark.req("P8")
def test_run_and_recover_publish_no_dry_run_either() -> None:
    where, found = steps.world()
    wanted = declared(*DAYS, safety={"manual_publish": False})
    run_id = accepted(found, wanted, "2020-01-03")
    before = steps.content_of(where)
    with pytest.raises(errors.Blocked, match="can never be published: it is a dry run"):
        publish(found, run_id, "bob")
    with suppress(errors.Blocked):
        run_until_decision(found, run_id, "bob")
    recover(found, run_id, "bob")
    assert steps.content_of(where) == before
    assert steps.state_of(found, run_id) is RunState.ACCEPTED
    assert found.versions.pointer(PRODUCT).accepted is None


def test_a_partition_that_the_run_does_not_have_is_refused() -> None:
    _, found = steps.world()
    with pytest.raises(errors.ConfigError, match="no partition 2020-01-09; it has 2020-01-02"):
        dry_run(found, declared(*DAYS), "2020-01-03", "2020-01-09")


def test_a_dry_run_does_not_stand_in_the_way_of_the_run() -> None:
    _, found = steps.world()
    dry_run(found, declared(*DAYS), "2020-01-03")
    assert make_plan(found, declared(*DAYS), "bob", None).conflicts == ()
