"""Reference data by its semantics: which snapshot is pinned, and what cannot be known (D4)."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.evidence.staleness import find_stale
from lakehouse_backfill.core.planning.plan import DeclaredRun, make_plan
from lakehouse_backfill.core.publication.catch_up import plan_catch_up
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import ConfigError, NotFound, TargetChanged
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, contract, declared
from tests.support.fakes.lake import FakeLake

RATES = "silver.rates"
#: An instant of the fake lake's commits: hours of one day.
START = datetime(2025, 1, 1, tzinfo=timezone.utc)


def rated(semantics: str, *, days: tuple[str, str] = ("2020-01-02", "2020-01-04"),
          table: str = RATES, safety: Any = None, **fields: Any) -> DeclaredRun:  # fmt: skip
    reference = {"table": table, "semantics": semantics, **fields}
    found = declared(*days, reference_data={"rates": reference}, safety=safety or {})
    rates = contract(product=RATES, table=RATES)
    return dataclasses.replace(found, input_contracts={RATES: rates})


def world() -> tuple[FakeLake, Context]:
    """The product of five days, recorded in hour 1; rates of the hours 0 and 2."""
    where, found = steps.world()
    where.add(RATES, all="rates-1")
    where.write(RATES, "all", "rates-2")
    where.tables[RATES].times[:] = [START, START + timedelta(hours=2)]
    where.tables[PRODUCT].times[:] = [START + timedelta(hours=1)]
    return where, found


def plan_of(found: Context, wanted: DeclaredRun) -> Plan:
    return make_plan(found, wanted, "bob", None)


def rates_of(plan: Plan) -> tuple[str, int, str]:
    """The table and snapshot of the reference, and what the plan says of it."""
    pin = next(one for one in plan.resolved.sources if one.name == "rates")
    note = next(one for one in plan.notes if one.startswith("rates is read at"))
    return pin.table, pin.snapshot_id, note.rpartition(": ")[2]


@pytest.mark.req("D4")
def test_corrected_truth_is_the_newest_version_or_the_one_that_is_named() -> None:
    _, found = world()
    newest = plan_of(found, rated("corrected_truth"))
    assert [pin.snapshot_id for pin in newest.resolved.sources if pin.name == "rates"] == [2]
    assert "rates is read as it is now (corrected_truth)" in newest.notes
    assert rates_of(plan_of(found, rated("corrected_truth", at=1)))[:2] == (RATES, 1)


@pytest.mark.req("D4")
def test_as_recorded_is_the_version_in_force_when_the_rows_were_first_recorded() -> None:
    _, found = world()
    because = "it was in force when the rows were first recorded"
    assert rates_of(plan_of(found, rated("as_recorded"))) == (RATES, 1, because)


def test_as_recorded_stays_the_same_after_a_restatement() -> None:
    where, found = world()
    steps.published_run(found, rated("as_recorded"))
    where.write(RATES, "all", "rates-3")
    because = "an earlier run read it as recorded"
    assert rates_of(plan_of(found, rated("as_recorded"))) == (RATES, 1, because)


def test_as_recorded_ignores_a_restatement_that_read_another_version() -> None:
    _, found = world()
    steps.published_run(found, rated("corrected_truth"))
    assert rates_of(plan_of(found, rated("as_recorded")))[:2] == (RATES, 1)


def test_rows_that_were_recorded_at_versions_that_differ_are_refused_by_name() -> None:
    where, found = world()
    where.write(PRODUCT, "2020-01-03", "late")
    with pytest.raises(ConfigError, match="more than one version") as caught:
        plan_of(found, rated("as_recorded"))
    assert "silver.rates@1 for 2020-01-02, 2020-01-03" in caught.value.problem
    assert "silver.rates@2 for 2020-01-03" in caught.value.problem
    assert caught.value.field == "reference_data.rates"
    only = rated("as_recorded", days=("2020-01-02", "2020-01-03"))
    assert rates_of(plan_of(found, only))[:2] == (RATES, 1)


def test_a_reference_that_is_younger_than_the_rows_cannot_be_as_recorded() -> None:
    where, found = world()
    where.tables[RATES].times[:] = [START + timedelta(days=1)] * 2
    with pytest.raises(
        ConfigError, match=r"no snapshot of silver.rates is left from then"
    ) as caught:
        plan_of(found, rated("as_recorded"))
    assert "`at`" in caught.value.fix
    assert rates_of(plan_of(found, rated("as_recorded", at=2)))[:2] == (RATES, 2)


def test_partitions_without_rows_have_nothing_recorded() -> None:
    where, found = world()
    where.tables[PRODUCT].contents[:] = [{}]
    for semantics in ("as_recorded", "as_used_by_original"):
        with pytest.raises(ConfigError, match="cannot be known"):
            plan_of(found, rated(semantics))


@pytest.mark.req("D4")
def test_as_used_by_original_is_what_the_run_behind_the_old_rows_read() -> None:
    where, found = world()
    run = steps.published_run(found, rated("corrected_truth", at=1))
    where.write(RATES, "all", "rates-3")
    because = f"{run}, which made the rows that are replaced, read it"
    assert rates_of(plan_of(found, rated("as_used_by_original"))) == (RATES, 1, because)


def test_as_used_by_original_cannot_be_known_of_rows_that_no_run_made() -> None:
    _, found = world()
    steps.published_run(found, rated("corrected_truth", days=("2020-01-02", "2020-01-03")))
    with pytest.raises(ConfigError, match="of 2020-01-03 were made by no published run"):
        plan_of(found, rated("as_used_by_original"))


def test_as_used_by_original_cannot_be_known_of_a_run_that_did_not_read_it() -> None:
    _, found = world()
    run = steps.published_run(found)
    with pytest.raises(ConfigError, match=f"made by {run}, which did not read it"):
        plan_of(found, rated("as_used_by_original"))


def test_two_runs_with_other_versions_are_refused_by_name() -> None:
    _, found = world()
    steps.published_run(found, rated("corrected_truth", days=("2020-01-02", "2020-01-03"), at=1))
    steps.published_run(found, rated("corrected_truth", days=("2020-01-03", "2020-01-04"), at=2))
    with pytest.raises(ConfigError, match=r"silver.rates@1 for 2020-01-02; silver.rates@2 for"):
        plan_of(found, rated("as_used_by_original"))


def test_a_version_that_is_known_and_has_expired_is_not_replaced_by_another() -> None:
    where, found = world()
    steps.published_run(found, rated("corrected_truth", at=2))
    rates = where.tables[RATES]
    del rates.contents[1], rates.summaries[1], rates.times[1]
    rates.refs.clear()
    with pytest.raises(NotFound, match=r"silver.rates@2 .*has expired"):
        plan_of(found, rated("as_used_by_original"))


def accept_rates(found: Context, snapshot_id: int, version: int, table: str = RATES) -> None:
    """Make a snapshot the accepted version of the reference product."""
    versions: Any = found.versions
    template = found.versions.history(PRODUCT)[0]
    row = template.model_copy(
        update={
            "product": RATES, "version": version, "table": table, "snapshot_id": snapshot_id,
            "action": "publish", "token": f"rates-{version}", "run_id": None,
        }
    )  # fmt: skip
    state = versions.pointer(RATES).model_copy(update={"accepted": row, "last_version": version})
    versions.states[RATES] = state
    versions.rows.append(row)


@pytest.mark.req("D4")
def test_current_accepted_follows_the_pointer_of_the_reference_product() -> None:
    where, found = world()
    steps.published_run(found)
    accept_rates(found, 1, 4)
    wanted = rated("current_accepted")
    assert rates_of(plan_of(found, wanted)) == (RATES, 1, "version 4 of silver.rates is accepted")
    where.add("shadow.rates_v5", all="rates-5")
    accept_rates(found, 1, 5, "shadow.rates_v5")
    pinned: Contract = contract(product=RATES, table=RATES, publication="pinned")
    wanted = dataclasses.replace(wanted, input_contracts={RATES: pinned})
    assert rates_of(plan_of(found, wanted))[:2] == ("shadow.rates_v5", 1)


def test_a_pinned_product_as_source_is_read_at_its_head_and_a_warning_says_what_readers_get() -> (
    None
):
    _, found = world()
    steps.published_run(found)
    wanted = declared("2020-01-02", "2020-01-04", sources={"raw": {"table": RATES}})
    pinned: Contract = contract(product=RATES, table=RATES, publication="pinned")
    wanted = dataclasses.replace(wanted, input_contracts={RATES: pinned})

    def warnings_of(item: DeclaredRun) -> list[str]:
        plan = make_plan(found, item, "bob", None)
        return [one for one in plan.warnings if "sources.raw reads the head" in one]

    assert warnings_of(wanted) == []
    accept_rates(found, 1, 5, "shadow.rates_v5")
    (warning,) = warnings_of(wanted)
    assert "get version 5, snapshot 1 of shadow.rates_v5" in warning
    followed = {RATES: pinned.model_copy(update={"publication": "follow"})}
    assert warnings_of(dataclasses.replace(wanted, input_contracts=followed)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "has no accepted version yet"),
        ({"at": 1}, "names `at` too"),
        ({"table": "bronze.raw"}, "no contract of this project has bronze.raw"),
    ],
    ids=["none accepted", "with at", "no product"],
)
def test_current_accepted_without_an_accepted_version_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    _, found = world()
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(found, rated("current_accepted", **changes))
    assert caught.value.fix


def test_a_partition_is_stale_when_another_version_of_its_reference_was_accepted() -> None:
    where, found = world()
    steps.published_run(found)
    accept_rates(found, 1, 4)
    wanted = rated("current_accepted")
    steps.published_run(found, wanted)
    where.write(RATES, "all", "a live commit that nobody accepted")
    assert not find_stale(found, contract(), lambda file: {}).to_repair
    accept_rates(found, 2, 5)
    stale = find_stale(found, contract(), lambda file: {}).to_repair
    assert [one.partition for one in stale] == ["2020-01-02", "2020-01-03"]
    assert "version 5 of silver.rates is accepted now" in str(stale[0])


def test_a_revision_that_follows_live_commits_keeps_the_approved_version() -> None:
    where, found = world()
    steps.published_run(found)
    accept_rates(found, 1, 4)
    run = steps.accepted_run(found, rated("current_accepted", safety={"on_conflict": "catch_up"}))
    accept_rates(found, 2, 5)
    kept = steps.content_of(where)["2020-01-02"]
    where.write(PRODUCT, "2020-01-02", *kept, "late rows")
    planned = plan_catch_up(found, found.runs.plan(run), TargetChanged("it moved"), "bob")
    (pin,) = (one for one in planned.resolved.sources if one.name == "rates")
    assert planned.resolved.catch_up is not None
    assert (pin.table, pin.snapshot_id) == (RATES, 1)
    assert any("the run that this one revises reads it" in note for note in planned.notes)
