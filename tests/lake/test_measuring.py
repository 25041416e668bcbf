"""What the gates read: totals on both sides, whole-source totals, frames for the suites."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
from lakehouse_backfill.adapters.spark.session.session import open_session
from lakehouse_backfill.core.validation.anomalies import values_by_partition
from lakehouse_backfill.domain.checks import MeasurePoint, MeasureTotal
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.ports.compute import MeasuredSides
from tests.support.spark.lake import DAYS, Lake, PlanMaker

Daily = Callable[..., PlanMaker]
MEASURES = (Measure(name="total", sum="v"), Measure(name="rows", count="k"))


def measuring(lake: Lake) -> SparkMeasuring:
    return SparkMeasuring(lake.tables)


def points(old: dict[str, Any], new: dict[str, Any]) -> tuple[MeasurePoint, ...]:
    return tuple(
        MeasurePoint(partition=day, old=old.get(day), new=new.get(day)) for day in DAYS[4:6]
    )


@pytest.mark.req("Q4", "Q6")
def test_both_sides_are_measured_in_whole_and_by_partition(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    lake.stage(plan)
    base, candidate = lake.head("out"), lake.head("shadow")
    sides = (lake.table("out"), base), (lake.table("shadow"), candidate)
    days = {day: sum(v for d, _, v in lake.rows("src") if str(d) == day) for day in DAYS[4:6]}
    expected = sum(days.values())
    found = measuring(lake).measure(*sides, plan.resolved.scope, MEASURES)
    assert found.totals == (
        MeasureTotal(
            name="total",
            old=expected * 100,
            new=expected,
            series=points({day: value * 100 for day, value in days.items()}, days),
        ),
        MeasureTotal(
            name="rows",
            old=8,
            new=8,
            series=points(dict.fromkeys(DAYS, 4), dict.fromkeys(DAYS, 4)),
        ),
    )
    each = [measuring(lake).checksums(*side, plan.resolved.scope) for side in sides]
    assert [found.old, found.new] == each
    assert [set(one) for one in each] == [set(DAYS[4:6])] * 2
    assert found.old != found.new


@pytest.mark.req("Q4")
def test_what_is_known_of_the_old_side_by_metadata_is_not_read(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    lake.sql("UPDATE {ns}.out SET k = NULL WHERE d = date'2024-01-05' AND v >= 2000")
    field, counts = plan.resolved.scope.field, MEASURES[1:]
    files = IcebergTables(lake.catalog).files(lake.table("out"), lake.head("out"), field, ("k",))
    known = values_by_partition(DAYS[4:6], files, counts)
    sides = (lake.table("out"), lake.head("out")), (lake.table("shadow"), lake.head("shadow"))
    read = measuring(lake).measure(*sides, plan.resolved.scope, counts)
    assert known == {DAYS[4]: (2,), DAYS[5]: (4,)}
    found = measuring(lake).measure(
        *sides, plan.resolved.scope, counts, old_is_known=True, old_measures=known
    )
    assert (found.totals, found.new, found.old) == (read.totals, read.new, {})
    gone = (lake.table("out"), 1)  # a snapshot that nobody could read
    unread = measuring(lake).measure(
        gone, sides[1], plan.resolved.scope, counts, old_is_known=True, old_measures=known
    )
    assert unread.totals == read.totals


@pytest.mark.req("Q4")
def test_a_side_without_snapshot_has_no_rows(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    nothing, something = (lake.table("out"), None), (lake.table("shadow"), lake.head("shadow"))
    scope = plan.resolved.scope
    assert measuring(lake).checksums(*nothing, scope) == {}
    found = measuring(lake).measure(nothing, something, scope, MEASURES)
    rows = MeasureTotal(name="rows", old=None, new=8, series=points({}, dict.fromkeys(DAYS, 4)))
    assert (found.old, found.totals[1]) == ({}, rows)
    assert measuring(lake).measure(nothing, nothing, scope, MEASURES) == MeasuredSides(
        old={},
        new={},
        totals=tuple(
            MeasureTotal(name=name, old=None, new=None, series=points({}, {}))
            for name in ("total", "rows")
        ),
    )


@pytest.mark.req("Q4")
def test_totals_lose_no_digit_and_show_nulls_empty_partitions_and_nan(
    lake: Lake, daily: Daily
) -> None:
    plan = daily().make()
    money = "9999999999999999999999999999.99"
    kinds = "d date, k bigint, m decimal(30,2), x double"
    lake.sql("CREATE TABLE {ns}.old_form (d date, k int, m decimal(12,2)) PARTITIONED BY (d)")
    lake.sql(
        "INSERT INTO {ns}.old_form VALUES (date'2024-01-05', 1, 0.10), (date'2024-01-01', 2, 7)"
    )
    lake.sql(f"CREATE TABLE {{ns}}.new_form ({kinds}) PARTITIONED BY (d)")
    lake.sql(
        f"INSERT INTO {{ns}}.new_form VALUES (date'2024-01-06', 1, {money}, double('NaN')), "
        f"(date'2024-01-06', 2, {money}, 1), (date'2024-01-06', null, 0.02, null), "
        "(date'2024-01-05', null, null, 2.5)"
    )
    sides = [(lake.table(name), lake.head(name)) for name in ("old_form", "new_form")]
    wanted = (
        Measure(name="money", sum="m"),
        Measure(name="keys", count="k"),
        Measure(name="x", sum="x"),
    )
    money_total, keys, x = measuring(lake).measure(*sides, plan.resolved.scope, wanted).totals
    both = "20000000000000000000000000000.00"
    assert money_total == MeasureTotal(
        name="money", old="0.10", new=both, series=points({DAYS[4]: "0.10"}, {DAYS[5]: both})
    )
    assert keys == MeasureTotal(
        name="keys", old=1, new=2, series=points({DAYS[4]: 1}, {DAYS[4]: 0, DAYS[5]: 2})
    )
    assert (x.old, x.series[0]) == (None, MeasurePoint(partition=DAYS[4], old=None, new=2.5))
    assert [math.isnan(value) for value in (x.new, x.series[1].new)] == [True, True]


@pytest.mark.req("Q4")
@pytest.mark.parametrize("place", ["candidate", "source", "both"])
def test_a_total_that_is_no_number_is_shown_and_equals_nothing(
    lake: Lake, daily: Daily, place: str
) -> None:
    plan = daily().make()
    for name in ("src", "shadow"):
        lake.sql(f"ALTER TABLE {{ns}}.{name} ADD COLUMN x double")
        value = (
            "double('NaN')" if place in ("both", {"src": "source"}.get(name, "candidate")) else 1
        )
        lake.sql(f"INSERT INTO {{ns}}.{name} VALUES (date'2024-01-31', 100, 1, {value})")
    pins = (plan.resolved.sources[0].model_copy(update={"snapshot_id": lake.head("src")}),)
    plan = plan.model_copy(update={"resolved": plan.resolved.model_copy(update={"sources": pins})})
    wanted = (SourceTotal(measure="x", source="src", sum="x", tolerance=1.0),)
    (found,) = measuring(lake).source_totals(plan, wanted, (Measure(name="x", sum="x"),))
    shown = {"candidate": ("NaN", 1.0), "source": (1.0, "NaN"), "both": ("NaN", "NaN")}[place]
    assert (found.passed, (found.observed, found.limit)) == (False, shown)
    assert "NaN" in found.detail


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
    assert {
        str(row["d"]) for row in found.frame(plan.shadow_table, None, plan.resolved.scope).collect()
    } == set(DAYS[4:6])
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
