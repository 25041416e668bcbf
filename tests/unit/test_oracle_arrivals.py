"""The oracle itself: the issue's totals, and a clock that a search by the minute agrees with."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from tests.support.oracles import arrivals as oracle

MINUTE = 60

# Zones with every kind of change, and an instant close to one (UTC).
CHANGES = [
    ("America/New_York", "2013-03-10T07:00"),  # 02:00 skips to 03:00
    ("America/New_York", "2013-11-03T06:00"),  # 01:00 to 02:00 shows twice
    ("Australia/Lord_Howe", "2013-04-06T15:00"),  # half an hour shows twice
    ("America/Havana", "2013-11-03T05:00"),  # 01:00 falls back to midnight
    ("America/Asuncion", "2013-03-24T03:00"),  # midnight falls back to the day before
    ("America/Sao_Paulo", "2013-10-20T03:00"),  # midnight does not exist
    ("Pacific/Apia", "2011-12-30T10:00"),  # a whole day does not exist
    ("Asia/Kolkata", "2013-06-01T00:00"),  # never changes
]


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())


def by_the_minute(departure: int, clock: int, zone: str) -> int:
    """Returns the arrival by looking at the zone's clock in every minute after the departure."""
    shown = (clock // 100 % 24, clock % 100)
    for instant in range(departure + MINUTE, departure + 4 * 86_400, MINUTE):
        local = datetime.fromtimestamp(instant, ZoneInfo(zone))
        if (local.hour, local.minute) == shown:
            return instant
    raise AssertionError("no such clock time within four days")


@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_the_oracle_finds_the_minute_that_a_search_through_all_minutes_finds(zone, change) -> None:
    chance = random.Random(change)
    departures = [seconds(change) + MINUTE * chance.randrange(-1800, 400) for _ in range(60)]
    clocks = [chance.choice([5, 30, 130, 145, 215, 230, 2330, 2400]) for _ in range(60)]
    arrival, local = oracle.arrivals(np.array(departures), np.array(clocks), pd.Series([zone] * 60))
    expected = [by_the_minute(*pair, zone) for pair in zip(departures, clocks, strict=True)]
    assert arrival.tolist() == expected
    days = [datetime.fromtimestamp(instant, ZoneInfo(zone)).date() for instant in expected]
    assert [date(1970, 1, 1) + timedelta(days=int(at) // 86_400) for at in local] == days


@pytest.mark.parametrize(
    ("total", "count", "mean"),
    [(1, 8, "0.13"), (-1, 8, "-0.13"), (74, 3, "24.67"), (0, 5, "0.00"), (-3, 200, "-0.02")],
)
def test_a_half_rounds_away_from_zero(total: int, count: int, mean: str) -> None:
    assert oracle._mean(total, count) == Decimal(mean)


def test_no_arrival_has_no_mean() -> None:
    assert oracle._mean(0, 0) is None


class TestOnAllFlights:
    """Reads the whole year once, about three seconds."""

    def test_the_history_counts_ten_flights_too_many_and_the_restatement_none(self) -> None:
        assert oracle.history()["flights"].sum() == 336_786
        assert oracle.restated()["flights"].sum() == 336_776

    def test_the_window_holds_what_was_measured(self) -> None:
        before, after = oracle.window(oracle.history()), oracle.window(oracle.restated())
        assert (len(before), before["flights"].sum()) == (9_864, 41_563)
        assert (len(after), after["flights"].sum()) == (9_804, 41_553)
        assert before["arrival_date"].nunique() == after["arrival_date"].nunique() == 45

    def test_rows_of_both_tables(self) -> None:
        assert (len(oracle.history()), len(oracle.restated())) == (79_203, 79_143)

    def test_outside_the_window_nothing_changes(self) -> None:
        before, after = oracle.history(), oracle.restated()
        outside = [
            rows[~oracle._in_window(rows)].reset_index(drop=True) for rows in (before, after)
        ]
        pd.testing.assert_frame_equal(outside[0], outside[1])

    def test_33_flights_land_on_new_years_day(self) -> None:
        rows = oracle.restated()
        last = rows[rows["arrival_date"] == date(2014, 1, 1)]
        assert last["flights"].sum() == 33
        assert rows["arrival_date"].max() == date(2014, 1, 1)
        assert oracle.daily("ny_day")["arrival_date"].max() == date(2013, 12, 31)

    def test_the_new_york_day_is_the_day_in_the_file(self) -> None:
        flights = oracle.flights()
        written = pd.to_datetime(flights[["year", "month", "day"]]).dt.date
        assert (flights["ny_day"] == written).all()

    def test_flights_of_a_day_depart_at_most_22_hours_before_it_and_4_hours_after_it(self) -> None:
        """Why the product declares one day of warm-up and one of cool-down."""
        flights = oracle.flights()
        hour = pd.to_datetime(flights["time_hour"], utc=True)
        day = pd.to_datetime(flights["correct"]).dt.tz_localize("UTC")
        assert (day - hour).max() == pd.Timedelta(hours=22)
        assert (hour - day - pd.Timedelta(days=1)).max() == pd.Timedelta(hours=4)

    def test_a_clock_time_in_the_spring_gap_is_reached_one_day_later(self) -> None:
        """B6 35 to PBI left at 23:06 on 9 March; 02:03 did not exist on the 10th."""
        flights = oracle.flights()
        late = flights[(flights["arrival"] - flights["departure"]) >= 20 * 3600]
        gap = late[late["flight"] == 35]
        assert len(late) == 2
        assert gap["correct"].tolist() == [date(2013, 3, 11)]
