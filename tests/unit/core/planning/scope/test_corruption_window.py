"""A corruption window: what it reaches, who carried it, where a replay begins and ends (P6)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.cli.render import render_result
from lakehouse_backfill.core.planning.inputs.read_windows import needed_window
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.planning.scope.corruption_window import (
    EventSpan,
    dependent_span,
    describe_span,
    examine_window,
    labels_of_span,
    parse_window,
    planned_window,
)
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.manifest import PartitionRange
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import CorruptionWindow, Plan, SourcePin
from lakehouse_backfill.errors import ConfigError, HistoryGone, Unsupported
from lakehouse_backfill.results.plans import PlanResult
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, declared

DAY = ScopeField(column="day", transform="identity", type="date")
START = datetime(2025, 1, 1, tzinfo=timezone.utc)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "first", "stop"),
    [
        ("2020-01-02..2020-01-03", "2020-01-02", "2020-01-04"),
        ("2020-01-02..2020-01-02", "2020-01-02", "2020-01-03"),
        ("2020-01-02T06:00Z..2020-01-02T06:30Z", "2020-01-02T06:00", "2020-01-02T06:30:00.000001"),
        ("2020-01-02T06:00+02:00..2020-01-02", "2020-01-02T04:00", "2020-01-03"),
    ],
    ids=["days", "one day", "instants", "an offset"],
)
def test_both_ends_of_a_window_belong_to_it(text: str, first: str, stop: str) -> None:
    assert parse_window(text) == EventSpan(at(first), at(stop))


def test_a_window_with_an_offset_is_said_in_utc_and_holds_the_days_of_utc() -> None:
    span = parse_window("2020-01-03T00:00+02:00..2020-01-03T23:59:59+02:00")
    assert describe_span(span) == "2020-01-02 22:00:00 to 2020-01-03 21:59:59 UTC"
    assert labels_of_span(DAY, span) == ("2020-01-02", "2020-01-03")


@pytest.mark.parametrize(
    "text", ["2020-01-02", "2020-01-03..2020-01-02", "a..b", "..", "2020-01-02..9999-12-31"]
)
def test_what_is_no_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_window(text)
    assert "--window T1..T2" in caught.value.fix


def pin(warm_up: int, cool_down: int) -> SourcePin:
    fields: dict[str, Any] = {
        "name": "raw", "role": "source", "table": "bronze.raw", "requested": "bronze.raw",
        "snapshot_id": 1, "mode": "tag", "warm_up_days": warm_up, "cool_down_days": cool_down,
        "range": {"column": "day", "from": "2019-01-01", "to": "2021-01-01"},
    }  # fmt: skip
    return SourcePin.model_validate(fields)


@pytest.mark.req("P6")
@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 40), st.integers(1, 200))
def test_exactly_the_partitions_that_read_rows_of_the_window_depend_on_it(
    warm_up: int, cool_down: int, first: int, hours: int
) -> None:
    source = pin(warm_up, cool_down)
    start = at("2020-02-01") + timedelta(hours=7 * first)
    span = EventSpan(start, start + timedelta(hours=hours))
    affected = labels_of_span(DAY, dependent_span(source, span))
    for number in range(-40, 80):
        day = f"{at('2020-02-01') + timedelta(days=number):%Y-%m-%d}"
        window = needed_window(source, Scope(field=DAY, partitions=(day,)))
        assert window is not None
        reads = window[0] < span.stop and span.first < window[1]
        assert (day in affected) is reads


@pytest.mark.parametrize("kind", ["string", "long"])
def test_partitions_without_time_have_no_window(kind: Any) -> None:
    field = ScopeField(column="region", transform="identity", type=kind)
    with pytest.raises(Unsupported, match="are no spans of time"):
        labels_of_span(field, EventSpan(at("2020-01-01"), at("2020-01-02")))


def test_a_window_of_more_partitions_than_a_run_may_have_is_refused_at_once() -> None:
    hours = ScopeField(column="at", transform="hour", type="timestamp")
    with pytest.raises(ConfigError, match="more than 100,000 partitions of at") as caught:
        labels_of_span(hours, parse_window("0001-01-01..9999-12-30"))
    assert "shorter window" in caught.value.fix


def world() -> tuple[Any, Context]:
    """Raw rows of 2 January: by two commits, the second of them late; of 1 and 3 by one each."""
    where, found = steps.world()
    where.write("bronze.raw", "2020-01-02", "raw-2")
    where.write("bronze.raw", "2020-01-03", "raw-3")
    where.write("bronze.raw", "2020-01-02", "raw-2", "late-2")
    where.tables["bronze.raw"].times[:] = [START + timedelta(days=day) for day in range(4)]
    where.tables[PRODUCT].times[:] = [START - timedelta(days=1)]
    return where, found


def examined(found: Context, window: str, first: str = "2020-01-02", stop: str = "2020-01-04",
             **changes: Any) -> Plan:  # fmt: skip
    plan = make_plan(found, declared(first, stop, **changes), "bob", None)
    return examine_window(found, plan, parse_window(window))


def window_of(plan: Plan) -> CorruptionWindow:
    assert plan.window is not None
    return plan.window


@pytest.mark.req("P6")
def test_a_revision_keeps_the_window_of_the_run_that_it_revises() -> None:
    _, found = world()
    text = "2020-01-02..2020-01-02"
    planned, _ = register_plan(found, examined(found, text), "bob")
    assert planned_window(found, None, planned.run_id) == parse_window(text)
    other = "2020-01-01..2020-01-02"
    assert planned_window(found, other, planned.run_id) == parse_window(other)
    without = steps.planned_run(found, declared("2020-01-04", "2020-01-05"))
    assert planned_window(found, None, without) is planned_window(found, None, None) is None


@pytest.mark.req("P6")
def test_the_plan_names_the_snapshots_that_carried_rows_of_the_window() -> None:
    _, found = world()
    plan = examined(found, "2020-01-02..2020-01-02")
    (source,) = window_of(plan).sources
    assert (source.partitions, source.unknown) == (("2020-01-02",), "")
    assert [one.snapshot_id for one in source.commits] == [2, 4]
    assert any("by snapshots 2 (overwrite by live), 4 (" in note for note in plan.notes)


@pytest.mark.req("P6")
def test_the_replay_goes_on_until_no_window_reads_rows_of_it() -> None:
    _, found = world()
    window = window_of(examined(found, "2020-01-02..2020-01-02"))
    # One day of warm-up: 3 January reads rows of the second.
    assert window.partitions == ("2020-01-02", "2020-01-03")
    assert (window.closes_with, window.replay_to) == ("2020-01-03", at("2020-01-04"))
    assert (window.is_closed, window.beyond) == (True, ())


@pytest.mark.req("P6")
def test_a_run_that_stops_before_the_window_is_closed_is_refused_with_the_range() -> None:
    _, found = world()
    with pytest.raises(ConfigError, match="leaves out 2020-01-03") as caught:
        examined(found, "2020-01-02..2020-01-02", stop="2020-01-03")
    assert "from: 2020-01-02, to: 2020-01-04" in caught.value.fix
    assert caught.value.field == "target.partitions"


def test_partitions_that_do_not_depend_on_the_window_are_named() -> None:
    _, found = world()
    plan = examined(found, "2020-01-02..2020-01-02", stop="2020-01-06")
    assert window_of(plan).beyond == ("2020-01-04", "2020-01-05")
    assert any("depend on no row of the window" in note for note in plan.notes)


@pytest.mark.req("P6", "X4")
def test_a_state_without_an_end_carries_rows_of_the_window_to_all_later_partitions() -> None:
    _, found = world()
    stateful = {
        "state": {"derived_from_input": True, "key": ["id"]}, "start_boundary": "empty",
        "timers": "event_time", "late": "include", "watermark": {"policy": "batch_equivalent"},
    }  # fmt: skip
    plan = examined(
        found, "2020-01-02..2020-01-02", stop="2020-01-06", stateful=stateful,
        sources={"raw": {"warm_up_days": 0}},
    )  # fmt: skip
    window = window_of(plan)
    assert (window.partitions[-1], window.beyond, window.is_closed) == ("2020-01-05", (), False)
    assert any("partitions after it stay wrong until they are" in note for note in plan.notes)


def test_the_partition_of_null_reads_the_whole_range_and_so_rows_of_the_window() -> None:
    _, found = world()
    days = ["2020-01-02", "2020-01-03", "2020-01-05", None]
    wanted = declared()
    target = wanted.manifest.target.model_copy(
        update={"partitions": PartitionRange(column="day", values=days)}
    )
    manifest = wanted.manifest.model_copy(update={"target": target})
    plan = make_plan(found, replace(wanted, manifest=manifest), "bob", None)
    window = window_of(examine_window(found, plan, parse_window("2020-01-02..2020-01-02")))
    assert window.partitions == ("2020-01-02", "2020-01-03", "null")
    assert (window.beyond, window.closes_with) == (("2020-01-05",), "2020-01-03")


@pytest.mark.req("P6")
def test_the_last_good_state_is_from_before_the_first_commit_of_the_window() -> None:
    _, found = world()
    good = window_of(examined(found, "2020-01-02..2020-01-02")).last_good
    assert good is not None
    assert (good.table, good.snapshot_id, good.version) == (PRODUCT, 1, None)


@pytest.mark.req("P6")
def test_the_last_good_state_is_an_accepted_version_where_one_was_made_before() -> None:
    where, found = world()
    steps.published_run(found)
    # Its publication is of 2026-01-02.
    where.tables["bronze.raw"].times[:] = [START] * 3 + [at("2026-03-01")]
    where.tables["bronze.raw"].contents[1].pop("2020-01-02")
    where.tables["bronze.raw"].contents[2].pop("2020-01-02")
    good = window_of(examined(found, "2020-01-02..2020-01-02")).last_good
    assert good is not None
    assert good.version == 1


@pytest.mark.req("P6")
def test_without_a_state_from_before_it_is_a_cold_start_and_the_plan_says_so() -> None:
    where, found = world()
    where.tables[PRODUCT].times[:] = [START + timedelta(days=9)]
    plan = examined(found, "2020-01-02..2020-01-02")
    assert window_of(plan).last_good is None
    assert any("a cold start" in note for note in plan.notes)


def test_a_window_that_is_not_over_yet_says_so() -> None:
    _, found = world()
    long_warm_up = {"raw": {"warm_up_days": 1, "range": {
        "column": "day", "from": "2025-12-01", "to": "2026-02-01"}}}  # fmt: skip
    allowed = {"incomplete_input": {"by": "bob", "reason": "the live job repairs it"}}
    plan = examined(
        found, "2026-01-02..2026-01-02", "2026-01-02", "2026-01-04",
        sources=long_warm_up, safety=allowed,
    )  # fmt: skip
    assert not window_of(plan).is_closed
    assert any("the live job still reads rows of the window" in note for note in plan.notes)


def test_commits_that_cannot_be_named_are_said_to_be_unknown() -> None:
    where, found = world()

    def lost(*_: Any) -> Any:
        raise HistoryGone("its commits of then have expired", fix="none")

    where.drifts = lost
    plan = examined(found, "2020-01-02..2020-01-02")
    (source,) = window_of(plan).sources
    assert (source.commits, source.unknown) == ((), "its commits of then have expired")
    assert any("is not known" in note for note in plan.notes)


def test_the_window_is_drawn_and_in_json_and_survives_the_store() -> None:
    _, found = world()
    plan = examined(found, "2020-01-02..2020-01-02")
    assert Plan.model_validate_json(plan.model_dump_json()).window == plan.window
    result = PlanResult.of(plan, None, None)
    assert result.to_dict()["window"]["closes_with"] == "2020-01-03"
    page = StringIO()
    render_result(result, page)
    assert "wrong rows" in page.getvalue()
    assert "through 2020-01-03, which closes the window" in page.getvalue()
    bare = make_plan(found, declared(), "bob", None)
    assert "window" not in bare.model_dump(mode="json")
    assert "window" not in PlanResult.of(bare, None, None).to_dict()
