"""Limits hold over any 5 minutes, whatever chunks come in which order: on a simulated clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.staging import pacer
from lakehouse_backfill.core.staging.pacer import Break, Go, Landed, Pace, Size, Wait
from lakehouse_backfill.domain.guards.limits import (
    ChunkAmounts,
    commit_allowance,
    earliest_end,
    when_amounts_fit,
)
from lakehouse_backfill.domain.guards.safety import PaceLimits, PublishWindow, next_opening

BEGIN = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
FIVE_MINUTES = timedelta(minutes=5)


def _after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Planned:
    """A chunk of a simulated run: what it holds, how long it takes, how often it fails first."""

    size: Size
    seconds: float
    failures: int


@dataclass
class Simulation:
    """What a run did: when chunks started, what landed when, how many were side by side."""

    starts: list[datetime]
    landed: list[Landed]
    most_in_work: int
    ended: datetime
    broken: str = ""


def simulate(limits: PaceLimits, chunks: list[Planned], pace: Pace | None = None) -> Simulation:
    """Run the chunks on a clock that jumps to the next end of a wait or of a chunk."""
    found = Simulation([], [], 0, BEGIN)
    pace, now = pace or Pace(), BEGIN
    queue = [[str(number), one, one.failures] for number, one in enumerate(chunks)]
    ends: list[tuple[datetime, list[object]]] = []
    while queue or ends:
        decision = pacer.decide(limits, pace, queue[0][1].size, now) if queue else Wait(None, "")
        if isinstance(decision, Break):
            found.broken = decision.reason
            queue.clear()
            continue
        if isinstance(decision, Go):
            entry = queue.pop(0)
            pace = pacer.start(pace, entry[0], entry[1].size)
            found.starts.append(now)
            found.most_in_work = max(found.most_in_work, len(pace.in_work))
            ends.append((now + timedelta(seconds=entry[1].seconds), entry))
            ends.sort(key=lambda one: one[0])
            continue
        moments = [ends[0][0]] if ends else []
        if decision.until is not None:
            moments.append(decision.until)
        assert moments, "it waits for nothing"
        assert min(moments) > now or ends
        now = max(now, min(moments))
        while ends and ends[0][0] <= now:
            at, entry = ends.pop(0)
            if entry[2]:
                entry[2] -= 1
                pace, _ = pacer.fail(limits, pace, entry[0], "the store is slow", at)
                queue.insert(0, entry)
            else:
                item = Landed(at, entry[1].size)
                found.landed.append(item)
                pace, _ = pacer.land(limits, pace, entry[0], item, entry[1].seconds)
    found.ended = now
    return found


def most_in_any(span: timedelta, landed: list[Landed], amount: int | None) -> int:
    """The most that lies in any span: the sum of rows (0), of bytes (1), or the number (None)."""
    return max(
        (
            sum(
                1 if amount is None else one.size[amount]
                for one in landed
                if first.at <= one.at <= first.at + span
            )
            for first in landed
        ),
        default=0,
    )


CHUNKS = st.lists(
    st.builds(
        Planned,
        st.builds(Size, st.integers(0, 5_000), st.integers(0, 50_000)),
        st.floats(0.1, 400),
        st.sampled_from((0, 0, 0, 0, 1, 2)),
    ),
    max_size=25,
)
LIMITS = st.builds(
    PaceLimits,
    parallel=st.integers(1, 6),
    rows_per_minute=st.none() | st.integers(1_000, 4_000),
    bytes_per_minute=st.none() | st.integers(10_000, 40_000),
    commits_per_hour=st.none() | st.integers(1, 200),
    pause_seconds=st.sampled_from((0.0, 0.0, 7.5, 90.0)),
    hours=st.none() | st.just(PublishWindow(**{"from": "22:00", "to": "04:00"})),
    failures_in_a_row=st.just(20),
)


@pytest.mark.req("X3")
@given(LIMITS, CHUNKS)
def test_over_any_5_minutes_every_limit_holds(limits: PaceLimits, chunks: list[Planned]) -> None:
    found = simulate(limits, chunks)
    assert (len(found.landed), found.broken) == (len(chunks), "")
    assert found.most_in_work <= limits.parallel
    if limits.rows_per_minute is not None:
        assert most_in_any(FIVE_MINUTES, found.landed, 0) <= 5 * limits.rows_per_minute
    if limits.bytes_per_minute is not None:
        assert most_in_any(FIVE_MINUTES, found.landed, 1) <= 5 * limits.bytes_per_minute
    if limits.commits_per_hour is not None:
        hourly = limits.commits_per_hour
        assert most_in_any(timedelta(minutes=59, seconds=59), found.landed, None) <= hourly
        assert most_in_any(FIVE_MINUTES, found.landed, None) <= max(1, hourly / 12)
    if limits.hours is not None:
        assert all(next_opening(limits.hours, at) is None for at in found.starts)
    if limits.pause_seconds and limits.parallel == 1:
        ends = [one.at for one in found.landed]
        for start in found.starts:
            before = [end for end in ends if end <= start]
            assert not before or (start - before[-1]).total_seconds() >= limits.pause_seconds


@pytest.mark.req("X3")
@given(LIMITS, CHUNKS, st.integers(1, 24))
def test_a_driver_that_goes_on_keeps_what_the_one_before_it_used(
    limits: PaceLimits, chunks: list[Planned], killed_after: int
) -> None:
    before = simulate(limits, chunks[:killed_after])
    pace = pacer.resume(limits, before.landed, before.ended)
    shift = before.ended - BEGIN
    moved = Pace(
        landed=tuple(Landed(one.at - shift, one.size) for one in pace.landed),
        not_before=pace.not_before and pace.not_before - shift,
    )
    after = simulate(limits.model_copy(update={"hours": None}), chunks[killed_after:], moved)
    landed = [*before.landed, *(Landed(one.at + shift, one.size) for one in after.landed)]
    if limits.rows_per_minute is not None:
        assert most_in_any(FIVE_MINUTES, landed, 0) <= 5 * limits.rows_per_minute
    if limits.commits_per_hour is not None:
        hourly = limits.commits_per_hour
        assert most_in_any(FIVE_MINUTES, landed, None) <= max(1, hourly / 12)


@pytest.mark.req("X3", "T8")
@given(LIMITS, CHUNKS, st.timedeltas(timedelta(0), timedelta(days=400)))
def test_a_driver_whose_clock_is_behind_the_one_before_it_waits_no_longer_for_that(
    limits: PaceLimits, chunks: list[Planned], skew: timedelta
) -> None:
    limits = limits.model_copy(update={"hours": None})
    true = simulate(limits, chunks).landed
    now = max((one.at for one in true), default=BEGIN)
    ahead = [Landed(one.at + skew, one.size) for one in true]
    pace = pacer.resume(limits, ahead, now)
    decision = pacer.decide(limits, pace, Size(1, 1), now)
    longest = max(timedelta(hours=1), timedelta(seconds=limits.pause_seconds))
    assert isinstance(decision, Go) or (
        isinstance(decision, Wait)
        and decision.until is not None
        and decision.until <= now + longest + timedelta(seconds=1)
    )
    if isinstance(decision, Go) and limits.rows_per_minute is not None:
        # All of what it might have landed in the last minutes was counted.
        assert sum(one.size.rows for one in pace.landed) + 1 <= 5 * limits.rows_per_minute


@pytest.mark.req("P1", "X3")
@given(LIMITS, CHUNKS)
def test_what_a_plan_expects_of_its_limits_is_what_the_pacer_does_when_nothing_fails(
    limits: PaceLimits, chunks: list[Planned]
) -> None:
    smooth = [replace(one, failures=0) for one in chunks]
    expected = earliest_end(limits, [ChunkAmounts(*one.size, one.seconds) for one in smooth], BEGIN)
    found = simulate(limits, smooth)
    if limits.parallel == 1:
        assert expected == found.ended
    else:
        # Side by side come more chunks only after the first ones were good.
        assert expected <= found.ended


@pytest.mark.req("X3")
@given(LIMITS, CHUNKS)
def test_what_is_read_one_after_the_other_keeps_the_limits_over_any_5_minutes(
    limits: PaceLimits, chunks: list[Planned]
) -> None:
    found, now = list[tuple[datetime, ChunkAmounts]](), BEGIN
    for one in chunks:
        amounts = ChunkAmounts(*one.size, one.seconds)
        now = when_amounts_fit(limits, found, amounts, now)
        found.append((now, amounts))
    landed = [Landed(at, Size(one.rows, one.size_bytes)) for at, one in found]
    for place, limit in enumerate((limits.rows_per_minute, limits.bytes_per_minute)):
        assert limit is None or most_in_any(FIVE_MINUTES, landed, place) <= 5 * limit
    if limits.rows_per_minute is None and limits.bytes_per_minute is None:
        assert now == BEGIN


def test_nothing_waits_without_limits() -> None:
    chunks = [Planned(Size(10**9, 10**12), 1.0, 0)] * 5
    found = simulate(PaceLimits(), chunks)
    assert found.starts == [_after(number) for number in range(5)]


@pytest.mark.req("X3")
def test_a_wait_says_until_when_and_for_which_limit() -> None:
    limits = PaceLimits(rows_per_minute=1_000, commits_per_hour=120)
    pace = Pace(landed=(Landed(BEGIN, Size(3_000, 0)), Landed(_after(60), Size(1_500, 0))))
    assert pacer.decide(limits, pace, Size(500, 0), _after(61)) == Go()
    decision = pacer.decide(limits, pace, Size(600, 0), _after(61))
    assert decision == Wait(_after(300.001), "1,000 rows a minute")
    # Alone it is larger than what 5 minutes let through: it starts when nothing else counts.
    assert pacer.decide(limits, Pace(), Size(9_000, 0), BEGIN) == Go()
    late = pacer.decide(limits, pace, Size(9_000, 0), _after(61))
    assert late == Wait(_after(360.001), "1,000 rows a minute")


@pytest.mark.req("X3")
def test_the_window_grows_by_one_and_halves_on_trouble_and_says_why() -> None:
    limits, pace, windows, texts = PaceLimits(parallel=4), Pace(), [], []
    for number in range(7):
        pace = pacer.start(pace, str(number), Size(10, 0))
        pace, text = pacer.land(limits, pace, str(number), Landed(BEGIN, Size(10, 0)), 2.0)
        windows.append(pace.window)
        texts.append(text)
    assert windows == [2, 2, 3, 3, 3, 4, 4]
    assert [text for text in texts if text] == [
        "window 1 to 2: 1 good chunks", "window 2 to 3: 2 good chunks",
        "window 3 to 4: 3 good chunks",
    ]  # fmt: skip
    slow, text = pacer.land(limits, pace, "8", Landed(BEGIN, Size(10, 0)), 9.0)
    assert (slow.window, text) == (2, "window 4 to 2: chunk 8 took 9.0 s, not 2.0")
    # Ten times as many rows may take ten times as long.
    same, text = pacer.land(limits, pace, "8", Landed(BEGIN, Size(100, 0)), 50.0)
    assert (same.window, text) == (4, "")
    failed, text = pacer.fail(
        limits.model_copy(update={"failures_in_a_row": 3}), pace, "9", "a conflict", BEGIN
    )
    assert (failed.window, failed.not_before) == (2, _after(2))
    assert text == "window 4 to 2: chunk 9 failed: a conflict; tried again after 2 s"


@pytest.mark.req("X3")
def test_a_failure_beside_other_chunks_does_not_end_the_pause_after_one_that_landed() -> None:
    limits = PaceLimits(parallel=2, pause_seconds=60, failures_in_a_row=3)
    pace = replace(Pace(), window=2)
    for name in ("a", "b"):
        pace = pacer.start(pace, name, Size(1, 0))
    pace, _ = pacer.land(limits, pace, "a", Landed(BEGIN, Size(1, 0)), 1.0)
    pace, text = pacer.fail(limits, pace, "b", "a conflict", _after(1))
    assert pace.not_before == _after(60)
    assert text == "window 2 to 1: chunk b failed: a conflict; tried again after 59 s"


@pytest.mark.req("X3")
def test_chunks_that_were_not_computed_neither_widen_the_window_nor_say_how_long_others_take() -> (
    None
):
    limits, pace = PaceLimits(parallel=4), Pace()
    for number in range(3):
        pace, _ = pacer.land(limits, pace, str(number), Landed(BEGIN, Size(10, 0)), None)
    computed, text = pacer.land(limits, pace, "5", Landed(BEGIN, Size(10, 0)), 60.0)
    assert (pace.window, pace.good) == (1, 0)
    assert (computed.window, text) == (2, "window 1 to 2: 1 good chunks")
    assert computed.speeds == ((10, 60.0),)


@pytest.mark.req("X3")
def test_the_circuit_breaks_after_failures_in_a_row_and_not_before() -> None:
    limits = PaceLimits(failures_in_a_row=3)
    twice = simulate(limits, [Planned(Size(1, 1), 1.0, 2)] * 3)
    assert (twice.broken, len(twice.landed)) == ("", 3)
    thrice = simulate(limits, [Planned(Size(1, 1), 1.0, 3)])
    assert thrice.broken == (
        "3 chunks in a row failed (limits.failures_in_a_row); the last: the store is slow"
    )
    # Later and later: 2, then 4 seconds after the end of the attempt before.
    assert thrice.starts == [_after(0), _after(3), _after(8)]


@pytest.mark.parametrize(("hourly", "most", "minutes"), [(1, 1, 60), (11, 1, 60 / 11), (40, 3, 5)])
def test_commits_an_hour_are_spread_evenly(hourly: int, most: int, minutes: float) -> None:
    assert commit_allowance(hourly) == (most, timedelta(minutes=minutes))
