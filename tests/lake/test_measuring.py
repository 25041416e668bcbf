"""What the gates read: totals on both sides, whole-source totals, frames for the suites."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pytest

from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.model.checks import MeasureTotal
from lakehouse_backfill.model.contract import Measure, SourceTotal
from lakehouse_backfill.spark.measuring import SparkMeasuring
from lakehouse_backfill.spark.session import open_session
from lakehouse_backfill.spark.staging import SparkStaging
from tests.lake.kit import DAYS, Lake, PlanMaker

Daily = Callable[..., PlanMaker]
MEASURES = (Measure(name="total", sum="v"), Measure(name="rows", count="k"))


def measuring(lake: Lake) -> SparkMeasuring:
    return SparkMeasuring(lake.spark, lake.name)


@pytest.mark.req("Q4", "Q6")
def test_totals_compare_the_scope_of_base_and_candidate(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    SparkStaging(lake.spark, lake.name, lake.project).stage(plan, plan.resolved.chunks[0])
    base, candidate = lake.head("out"), lake.head("shadow")
    sides = (lake.table("out"), base), (lake.table("shadow"), candidate)
    expected = sum(v for d, _, v in lake.rows("src") if str(d) in DAYS[4:6])
    found = measuring(lake).totals(*sides, plan.resolved.scope, MEASURES)
    assert found == (
        MeasureTotal(name="total", old=expected * 100, new=expected),
        MeasureTotal(name="rows", old=8, new=8),
    )


@pytest.mark.req("Q4")
def test_a_side_without_snapshot_has_no_rows(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    nothing, something = (lake.table("out"), None), (lake.table("shadow"), lake.head("shadow"))
    scope = plan.resolved.scope
    assert measuring(lake).checksums(*nothing, scope) == {}
    assert measuring(lake).totals(nothing, something, scope, MEASURES)[1] == MeasureTotal(
        name="rows", old=None, new=8
    )


@pytest.mark.req("Q4")
@pytest.mark.parametrize(("tolerance", "passed"), [(0.0, False), (0.2, True)])
def test_a_total_of_the_candidate_is_held_against_the_whole_source(
    lake: Lake, daily: Daily, tolerance: float, passed: bool
) -> None:
    plan = daily(range_from=date(2024, 1, 5), range_to=date(2024, 1, 7)).make()
    lake.sql("INSERT INTO {ns}.shadow VALUES (date'2024-01-31', 100, 1)")
    wanted = (
        SourceTotal(measure="rows", source="src", tolerance=tolerance),
        SourceTotal(measure="total", source="src", sum="v", tolerance=tolerance),
    )
    rows, total = measuring(lake).source_totals(plan, wanted, MEASURES)
    assert (rows.passed, rows.observed, rows.limit) == (passed, 41, 40)
    assert (total.passed, total.observed, total.limit) == (False, 78001, 780)


@pytest.mark.req("S1", "Q3")
def test_suites_see_the_restated_partitions_and_the_declared_input(
    lake: Lake, daily: Daily
) -> None:
    plan = daily(range_from=date(2024, 1, 5), range_to=date(2024, 1, 8)).make()
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-05', 999, 999)")
    found = measuring(lake)
    assert {str(row["d"]) for row in found.output(plan).collect()} == set(DAYS[4:6])
    assert found.input(plan, "src").count() == 12
    assert found.distinct(plan, "src", "d") == [date(2024, 1, day) for day in (5, 6, 7)]
    with pytest.raises(NotFound, match="no input nope"):
        found.input(plan, "nope")


@pytest.mark.req("S1")
def test_a_range_column_that_was_renamed_since_the_pin_is_still_cut(
    lake: Lake, daily: Daily
) -> None:
    plan = daily(range_from=date(2024, 1, 5), range_to=date(2024, 1, 8)).make()
    lake.sql("ALTER TABLE {ns}.src RENAME COLUMN d TO day")
    assert measuring(lake).input(plan, "src").count() == 12


def test_a_process_has_one_session_and_one_catalog(lake: Lake) -> None:
    other = lake.profile.model_copy(
        update={"catalog": {**lake.profile.catalog, "warehouse": "file:///elsewhere"}}
    )
    project = lake.profile_folder
    assert open_session(lake.profile, project) is lake.spark
    with pytest.raises(ConfigError, match="another catalog"):
        open_session(other, project)
