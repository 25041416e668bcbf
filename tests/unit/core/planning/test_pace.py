"""Estimates learned from the ledger: from which runs, how they vary, and what a plan refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakehouse_backfill.core.planning import pace
from lakehouse_backfill.core.planning.estimates import (
    Inputs,
    Learned,
    Outputs,
    check_limits,
    deadline_warnings,
    estimate_from_files,
    estimate_outputs,
)
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.safety import PublishWindow
from lakehouse_backfill.domain.manifest import Limits
from lakehouse_backfill.domain.plan import ChunkEstimate, Estimate, Plan
from lakehouse_backfill.domain.profile import Prices, Profile
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import LimitExceeded
from tests.support.examples.paces import a_sample
from tests.support.examples.plans import NOON, a_plan, with_fields
from tests.support.fakes.context import declared
from tests.support.fakes.context import lake as a_lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import published_run, staged_run
from tests.support.fakes.timed import timed_world

ENGINE = "local[4] with 4 cores"


def lake() -> FakeLake:
    """The product, and a source with rows on every day of two months."""
    found = a_lake()
    first = date(2020, 1, 1)
    days = [str(first + timedelta(days=number)) for number in range(60)]
    found.add("bronze.raw", **{day: f"raw {day}" for day in days})
    return found


def planned(found: Context, *days: str, **changes: Any) -> Plan:
    return make_plan(found, declared(*days, **changes), "bob", None)


def spent_s(found: Context, run_id: str) -> float:
    """What the run took by its log: staging, validation, publication, without people's time."""
    begun, total = {}, 0.0
    ends = {
        "finish staging": "begin staging", "pass validation": "begin validation",
        "finish publishing": "begin publishing",
    }  # fmt: skip
    for event in found.runs.events(run_id):
        begun[event.verb] = event.at
        if event.verb in ends:
            total += (event.at - begun[ends[event.verb]]).total_seconds()
    return total


@pytest.mark.req("P1")
def test_the_first_run_says_no_history_and_the_second_is_estimated_within_30_percent() -> None:
    _, found = timed_world(lake())
    first = planned(found).estimate
    assert (first.duration_s, first.core_hours, first.history) == (None, None, None)
    assert "no history" in first.basis
    assert first.floor_s is None
    published_run(found, declared())
    second = planned(found, "2020-01-04", "2020-01-06").estimate
    run_id = published_run(found, declared("2020-01-04", "2020-01-06"))
    took = spent_s(found, run_id)
    assert took > 20
    assert second.duration_s == pytest.approx(took, rel=0.3)
    rows = sum(chunk.output_rows for chunk in found.runs.chunks(run_id))
    assert second.output_rows == pytest.approx(rows, rel=0.3)


@pytest.mark.req("P1")
def test_the_rows_of_empty_partitions_are_those_that_earlier_runs_made() -> None:
    _, found = timed_world(lake())
    later, sources = ("2020-02-01", "2020-02-03"), {"raw": {"range": WIDE}}
    assert planned(found, *later, sources=sources).estimate.output_rows is None
    published_run(found, declared())
    estimate = planned(found, *later, sources=sources).estimate
    run_id = published_run(found, declared(*later, sources=sources))
    assert estimate.output_rows == sum(one.output_rows for one in found.runs.chunks(run_id)) == 20


WIDE = {"column": "day", "from": "2019-12-01", "to": "2020-03-01"}


@pytest.mark.req("P1")
def test_another_transform_on_the_same_engine_gives_a_floor_only() -> None:
    _, found = timed_world(lake())
    published_run(found, declared())
    other = {"name": "other", "version": "2.0.0", "file": "jobs/other.py"}
    estimate = planned(found, transform=other).estimate
    assert estimate.duration_s is None
    # As much was read in 20 s.
    assert estimate.floor_s == pytest.approx(20, rel=0.01)
    assert "no history" in estimate.basis
    assert "reading alone takes at least 20.0 s" in estimate.basis


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    "change",
    [
        {"cores": lambda: 8},
        {"profile": Profile(catalog={"name": "lake"}, spark={"spark.master": "spark://c:7077"})},
    ],
    ids=["cores", "master"],
)
def test_runs_of_another_engine_profile_say_nothing(change) -> None:
    _, found = timed_world(lake())
    published_run(found, declared())
    estimate = planned(replace(found, **change)).estimate
    assert (estimate.history, estimate.floor_s) == (None, None)


@pytest.mark.req("P1")
def test_a_plan_names_how_many_runs_are_behind_it_and_how_old_they_are() -> None:
    compute, found = timed_world(lake())
    published_run(found, declared())
    compute.clock.sleep(2 * 86_400)
    published_run(found, declared("2020-01-04", "2020-01-06"))
    compute.clock.sleep(86_400)
    history = planned(found).estimate.history
    assert history is not None
    assert (history.runs, history.chunks) == (2, 4)
    assert history.newest_days == pytest.approx(1, abs=0.01)
    assert history.oldest_days == pytest.approx(3, abs=0.01)
    assert history.engine == "local[*] with 2 cores"
    assert history.validation_s is not None
    assert history.validation_s.p50 == 7


def test_a_run_that_was_never_finished_counts_by_its_chunks() -> None:
    _, found = timed_world(lake())
    staged_run(found, declared())
    history = planned(found).estimate.history
    assert history is not None
    assert (history.validation_s, history.publication_s) == (None, None)
    assert history.duration_s.p50 == 20
    assert "validation without history" in planned(found).estimate.basis


def test_a_run_whose_chunks_were_done_by_two_processes_says_nothing_of_its_start() -> None:
    where = lake()
    compute, found = timed_world(where)
    compute.dies_at = "c0002-2020-01-03"
    with pytest.raises(Exception, match="the store does not answer"):
        staged_run(found, declared())
    (recorded,) = found.runs.recorded("daily", 5)
    sample = pace.sample_of(recorded)
    assert sample is not None
    assert (sample.chunks, sample.partitions, sample.overhead_s) == (1, 1, None)
    assert sample.rows == recorded.plan.estimate.input_rows / 2


def test_a_clock_that_was_set_back_says_nothing_of_how_long_a_phase_takes() -> None:
    _, found = timed_world(lake())
    published_run(found, declared())
    (recorded,) = found.runs.recorded("daily", 5)
    early = recorded.events[0].at - timedelta(days=1)
    moved = tuple(
        event.model_copy(update={"at": early})
        if event.verb in ("pass validation", "finish publishing", "finish staging")
        else event
        for event in recorded.events
    )
    sample = pace.sample_of(recorded._replace(events=moved))
    assert sample is not None
    assert (sample.overhead_s, sample.validation_s, sample.publication_s) == (None, None, None)


def test_secrets_of_a_remote_address_are_no_part_of_the_engine_profile() -> None:
    spark = {"spark.remote": "sc://host:15002/;token=secret"}
    _, found = timed_world(lake(), profile=Profile(catalog={"name": "l"}, spark=spark))
    assert pace.engine_name(found) == "sc://host:15002/ with 2 cores"


# --- pure parts ---------------------------------------------------------------------------------

SAMPLES = st.lists(
    st.builds(
        lambda rows, seconds, more: a_sample(
            rows=float(rows), chunk_s=seconds, validation_s=more, publication_s=more
        ),
        st.integers(1, 10**9), st.floats(0.01, 10**5), st.none() | st.floats(0, 10**4),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@example(
    [a_sample(rows=1.0, chunk_s=1.0, validation_s=more, publication_s=more)
     for more in (None, 3512.681809818928)],
    999999996,
    1,
)  # fmt: skip
@given(SAMPLES, st.integers(0, 10**9), st.integers(1, 500))
def test_percentiles_are_in_order_and_never_less_than_half_a_chunk_for_each(samples, rows, chunks):
    history = pace.learn(samples, rows, chunks, NOON, ENGINE)
    assert history is not None
    for one in (history.duration_s, history.staging_s, history.rows_per_s):
        assert one.p10 <= one.p50 <= one.p90
    shortest = min(sample.chunk_s / sample.chunks for sample in samples)
    assert history.duration_s.p10 >= chunks * shortest / 2 - 0.001
    assert history.duration_s.p50 >= history.staging_s.p50 - 0.001


@given(SAMPLES)
def test_a_run_of_the_same_shape_is_estimated_at_what_it_took(samples):
    one = samples[0]
    history = pace.learn([one], int(one.rows), one.chunks, NOON, ENGINE)
    assert history is not None
    took = one.chunk_s + (one.validation_s or 0) + (one.publication_s or 0)
    assert history.duration_s.p50 == pytest.approx(took, rel=0.01, abs=0.01)


def test_runs_of_a_similar_size_count_before_all_others() -> None:
    small = [a_sample(rows=10.0, chunk_s=5.0)] * 3
    large = a_sample(rows=1_000_000.0, chunk_s=100.0)
    history = pace.learn([*small, large], 2_000_000, 1, NOON, ENGINE)
    assert history is not None
    assert (history.runs, history.duration_s.p50) == (1, 200.0)


def a_file(day: str, rows: int) -> LiveFile:
    return LiveFile(path=day, spec_id=0, partition=day, rows=rows, size_bytes=10 * rows, deletes=())


def test_what_each_chunk_holds_now_is_counted_and_empty_partitions_are_added() -> None:
    resolved = a_plan().resolved
    history = pace.learn([a_sample(output_rows=300, partitions=3)], 10, 2, NOON, ENGINE)
    live = (a_file("2013-02-15", 50),)
    known, unknown = (
        estimate_outputs(resolved, live, history),
        estimate_outputs(resolved, live, None),
    )
    assert (unknown.rows, unknown.size_bytes, unknown.files) == (50, 500, 1)
    assert (known.rows, known.size_bytes, known.files) == (150, 1_500, 3)
    assert [(one.chunk_id, one.rows) for one in known.by_chunk] == [("c1", 50), ("c2", 0)]
    assert estimate_outputs(resolved, (), None)[:3] == (None, None, None)
    assert estimate_outputs(resolved, None, history)[:3] == (None, 200, None)


# --- limits -------------------------------------------------------------------------------------


def estimated(*seconds: float, floor_s: float | None = None) -> Estimate:
    samples = [a_sample(rows=10.0, chunk_s=each) for each in seconds]
    history = pace.learn(samples, 10, 1, NOON, ENGINE)
    learned = Learned(history, floor_s, ENGINE, 4)
    return estimate_from_files(Inputs(1, 10, 10), Outputs(), Prices(), learned)


DEADLINES = {
    "half of the runs miss it": ([50.0, 100.0, 150.0], None, 99, "takes about 100.0 s, until"),
    "most runs make it": ([50.0, 100.0, 150.0], None, 101, ""),
    "reading alone misses it": ([], 60.0, 59, "takes at least 60.0 s, until"),
    "nothing is known": ([], None, 1, ""),
    "it has passed": ([], None, -1, "has passed"),
}


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("seconds", "floor_s", "left_s", "problem"), DEADLINES.values(), ids=DEADLINES
)
def test_a_plan_that_misses_its_deadline_is_refused_with_both_times(
    seconds, floor_s, left_s, problem
) -> None:
    deadline = NOON + timedelta(seconds=left_s)
    manifest = with_fields(a_plan().resolved.manifest, run__deadline=deadline)
    estimate = estimated(*seconds, floor_s=floor_s)
    if not problem:
        check_limits(manifest, estimate, NOON)
        return
    with pytest.raises(LimitExceeded, match=problem) as refused:
        check_limits(manifest, estimate, NOON)
    assert refused.value.field == "run.deadline"
    assert deadline.isoformat() in refused.value.problem


#: Four chunks of 10 rows; without its limit, the run of 60 s makes its deadline.
PACED = {
    "rows a minute": ({"rows_per_minute": 2}, 900, "takes about 960.0"),
    "rows that fit at once": ({"rows_per_minute": 8}, 1_000, ""),
    # Each chunk takes the 60 s of the staging: all four were computed side by side.
    "more at a time than there are": (
        {"rows_per_minute": 2, "parallel": 8}, 1_000, "takes about 1,140.0",
    ),
    "commits an hour": ({"commits_per_hour": 2}, 3_600, "takes about 5,460.0"),
    "a pause": ({"pause_seconds": 600}, 1_800, "takes about 1,860.0 s"),
    "closed hours": (
        {"hours": PublishWindow(from_="20:00", to="22:00")}, 3_600, "until 2026-03-01T20:01",
    ),
    "open hours": ({"hours": PublishWindow(from_="11:00", to="13:00")}, 3_600, ""),
}  # fmt: skip


@pytest.mark.req("P1", "X3")
@pytest.mark.parametrize(("limits", "left_s", "problem"), PACED.values(), ids=PACED)
def test_what_limits_make_a_run_wait_counts_towards_its_deadline(limits, left_s, problem) -> None:
    chunks = tuple(
        ChunkEstimate(chunk_id=f"c{number}", files=1, rows=10, size_bytes=10) for number in range(4)
    )
    estimate = estimated(60.0).model_copy(update={"by_chunk": chunks})
    manifest = with_fields(
        a_plan().resolved.manifest,
        run__deadline=NOON + timedelta(seconds=left_s),
        limits=Limits(**limits),
    )
    if not problem:
        check_limits(manifest, estimate, NOON)
        assert deadline_warnings(manifest, estimate, NOON) == ()
        return
    with pytest.raises(LimitExceeded, match=problem):
        check_limits(manifest, estimate, NOON)
    (warning,) = deadline_warnings(manifest, estimate, NOON)
    assert "one run of ten takes" in warning


@pytest.mark.req("P1")
@pytest.mark.parametrize(("opens", "refused"), [("12:30", False), ("14:30", True)])
def test_a_publish_window_that_opens_after_the_deadline_is_refused(opens, refused) -> None:
    manifest = with_fields(
        a_plan().resolved.manifest,
        run__deadline=NOON + timedelta(hours=2),
        safety__publish_window=PublishWindow(from_=opens, to="15:00"),
    )
    if not refused:
        check_limits(manifest, estimated(60.0), NOON)
        return
    with pytest.raises(LimitExceeded, match="may be published from 2026-03-01T14:30"):
        check_limits(manifest, estimated(60.0), NOON)


@pytest.mark.req("P1")
def test_a_deadline_that_slow_runs_miss_is_a_warning() -> None:
    compute, found = timed_world(lake())
    for day in (2, 3, 4):
        compute.partition_s = 100.0 if day == 4 else 10.0
        published_run(found, declared(f"2020-01-0{day}", f"2020-01-0{day + 1}"))
    run = {"deadline": (compute.clock.now() + timedelta(seconds=60)).isoformat()}
    plan = planned(found, "2020-01-02", "2020-01-03", run=run)
    assert any("one run of ten takes" in text for text in plan.warnings)
