"""A trial computes one partition before any approval, and leaves nothing that can be published."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.evidence import trial
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Rejects
from lakehouse_backfill.domain.stateful.declaration import StateStart
from lakehouse_backfill.errors import (
    BackfillError,
    EnvironmentDown,
    NonDeterministic,
    NotAllowed,
    NotFound,
    Unsupported,
)
from tests.support.examples.keys import PROD
from tests.support.examples.plans import with_fields
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.steps import approved_run, content_of, world


def plan_of(found: Context, **changes: Any) -> Plan:
    return make_plan(found, declared(**changes), "bob", None)


def test_a_trial_shows_rows_checks_and_diff_of_one_partition() -> None:
    _, found = world()
    done = trial.try_partition(found, plan_of(found), "2020-01-03", "bob")
    assert (done.partition, done.record.output_rows) == ("2020-01-03", 10)
    assert [one.partition for one in done.diff.partitions] == ["2020-01-03"]
    assert (done.diff.summary.old_rows, done.diff.summary.changed) == (10, 1)
    names = {check.name for check in done.checks}
    assert {
        "columns that consumers rely on",
        "keys are unique",
        "chunk rows are all stored",
    } < names
    assert all(check.passed for check in done.checks)
    assert done.not_judged == ("rows beyond the edges of the range",)


def test_the_first_partition_is_tried_unless_one_is_named() -> None:
    _, found = world()
    assert trial.try_partition(found, plan_of(found), None, "bob").partition == "2020-01-02"
    with pytest.raises(NotFound, match="does not restate partition 2021-01-01") as caught:
        trial.try_partition(found, plan_of(found), "2021-01-01", "bob")
    assert "2020-01-02, 2020-01-03" in caught.value.fix


@pytest.mark.req("X4")
def test_a_partition_that_needs_a_state_which_is_not_kept_is_not_tried() -> None:
    _, found = world()
    plan = plan_of(found)
    cold = with_fields(plan, resolved__state_start=StateStart(why="as declared"))
    warm = with_fields(plan, resolved__state_start=StateStart(why="as declared", warm_up=True))
    with pytest.raises(Unsupported, match="the state that the partitions before it leave") as no:
        trial.try_partition(found, cold, "2020-01-03", "bob")
    assert no.value.fix.startswith("--partition 2020-01-02")
    assert trial.limit_to_partition(cold, None).resolved.scope.partitions == ("2020-01-02",)
    assert trial.limit_to_partition(warm, "2020-01-03").resolved.scope.partitions == ("2020-01-03",)


def test_a_trial_leaves_the_lake_as_it_was() -> None:
    where, found = world()
    before, heads = set(where.tables), {name: one.head for name, one in where.tables.items()}
    trial.try_partition(found, plan_of(found), None, "bob")
    assert set(where.tables) == before
    assert {name: one.head for name, one in where.tables.items()} == heads
    assert found.runs.list(open_only=False) == ()
    assert (found.evidence.active_leases(), found.pins.tags(PRODUCT)) == ((), {})
    assert found.versions.history(PRODUCT) == ()


def test_what_a_trial_computed_cannot_be_published() -> None:
    where, found = world()
    plan = plan_of(found)
    done = trial.try_partition(found, plan, None, "bob")
    before = content_of(where)
    for run_id in (done.record.run_id, plan.run_id):
        with pytest.raises(BackfillError):
            publish(found, run_id, "bob")
    assert content_of(where) == before
    assert "adopt" not in where.calls


def test_a_trial_beside_an_approved_run_of_the_same_manifest_stages_nothing_of_it() -> None:
    _, found = world()
    run_id = approved_run(found)
    trial.try_partition(found, plan_of(found), None, "bob")
    assert found.runs.chunks(run_id) == ()
    with pytest.raises(BackfillError):
        publish(found, run_id, "bob")


def test_the_files_of_a_trial_are_deleted() -> None:
    where, found = world()
    trial.try_partition(found, plan_of(found), None, "bob")
    (deleted,) = found.run_files.deleted
    assert trial.TRIAL_TABLE.fullmatch(deleted)
    assert deleted not in where.tables


@pytest.mark.parametrize("dies", [True, False])
def test_a_trial_that_fails_removes_its_table(dies: bool) -> None:
    where, found = world()
    plan, before = plan_of(found), set(where.tables)
    compute = found.compute()
    if dies:
        compute.dies_at = trial.limit_to_partition(plan, None).resolved.chunks[0].chunk_id
    else:
        compute.analysed = '[{"class": "Sample", "num-children": 0, "seed": 1, "output": []}]'
        found = dataclasses.replace(found, differ=lambda engine: 1 / 0)
    with pytest.raises((EnvironmentDown, NonDeterministic, ZeroDivisionError)):
        trial.try_partition(found, plan, None, "bob")
    assert set(where.tables) == before


def killed_trial(where: Any, found: Context, driver: str) -> str:
    """Leave what a trial leaves whose process was killed."""
    name = f"lakehouse_backfill_shadow.daily__bf_1__try_{len(where.tables):08x}"
    marks = {"lakehouse-backfill.run-id": "try-1", trial.DRIVER_PROPERTY: driver}
    where.open(PRODUCT, where.tables[PRODUCT].head, name, marks)
    return name


def test_the_next_trial_removes_what_a_killed_one_left() -> None:
    where, found = world()
    dead, alive = killed_trial(where, found, "here:dead"), killed_trial(where, found, "here:2")
    done = trial.try_partition(found, plan_of(found), None, "bob")
    assert (dead in where.tables, alive in where.tables) == (False, True)
    assert done.notes == (f"removed {dead}, which a killed try left behind",)


def test_a_failed_check_is_a_result_not_an_error() -> None:
    _, found = world(chunk_duplicates=3, gaps={"2020-01-01"})
    done = trial.try_partition(found, plan_of(found), None, "bob")
    failed = {check.name for check in done.checks if not check.passed}
    assert "keys are unique" in failed


MAIL = {
    "name": "mail",
    "type": "notification",
    "answers": "a.json",
    "policies": {"backfill": "mock"},
}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"transform": {"writer": "external"}}, "another engine computes its rows"),
        (
            {"contract": contract(sinks=[MAIL])},
            "its job sends messages (mail)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_without_an_effect_is_refused(changes: Any, problem: str) -> None:
    where, found = world()
    before = list(where.calls)
    plan = plan_of(found)
    update = {}
    if "contract" in changes:
        update["contract"] = changes["contract"]
    else:
        wanted = plan.resolved.manifest
        transform = wanted.transform.model_copy(update=changes["transform"])
        update["manifest"] = wanted.model_copy(update={"transform": transform})
    plan = plan.model_copy(update={"resolved": plan.resolved.model_copy(update=update)})
    with pytest.raises(Unsupported) as caught:
        trial.try_partition(found, plan, None, "bob")
    assert problem in caught.value.problem
    assert where.calls == before


def test_a_product_whose_table_does_not_exist_is_not_made() -> None:
    where, found = world()
    del where.tables[PRODUCT]
    with pytest.raises(Unsupported, match="does not exist yet"):
        trial.try_partition(found, plan_of(found), None, "bob")
    assert PRODUCT not in where.tables


def test_only_those_who_may_see_candidates_may_try() -> None:
    _, found = world()
    plan = plan_of(found, contract=contract(roles={"validators": ["eva"]}))
    with pytest.raises(NotAllowed, match="bob may not read a candidate"):
        trial.try_partition(found, plan, None, "bob")
    assert trial.try_partition(found, plan, None, "eva").partition == "2020-01-02"


def test_rows_that_the_transform_rejects_are_told() -> None:
    _, found = world(rejected=Rejects(rows=1, reasons={"late": 1}))
    outcome = trial.try_partition(found, plan_of(found), None, "bob")
    (gate,) = [one for one in outcome.checks if one.name == "rejected rows are in range"]
    assert not gate.passed
    assert gate.detail.startswith("1 of 11 rows rejected")


@pytest.mark.req("E3")
def test_a_waiver_that_nobody_approved_is_not_tried_where_signatures_are_required() -> None:
    where, found = world()
    waiver = {"by": "lead", "reason": "a court asked"}
    plan = plan_of(found, safety={"retention_exception": waiver})
    assert trial.try_partition(found, plan, None, "bob").partition == "2020-01-02"
    tables = set(where.tables)
    with pytest.raises(Unsupported, match="nobody approved that") as refused:
        trial.try_partition(dataclasses.replace(found, profile=PROD), plan, None, "bob")
    assert refused.value.state == "nothing was registered or computed"
    assert set(where.tables) == tables
