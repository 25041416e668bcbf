"""The job's three versions on Spark, row by row against the oracle and at the clock changes."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from lakehouse_backfill.demo import lake
from lakehouse_backfill.transforms import TransformInfo, transform_info
from tests.support.oracles import arrivals as oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB = Path(__file__).parents[2] / "jobs" / "arrivals_daily" / "transform.py"

SCHEMA = (
    "arrival_date date, dest string, carrier string, flights bigint, arrived bigint, "
    "diverted bigint, cancelled bigint, delayed bigint, total_delay bigint, "
    "mean_delay decimal(10,2), flown_minutes bigint"
)

FLIGHT = (
    "dest string, carrier string, time_hour timestamp, minute int, dep_time int, dep_delay int, "
    "arr_time int, sched_arr_time int, arr_delay int, air_time int"
)


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("arrivals_daily_transform", JOB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bronze(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Returns all flights, the first airports and the completed ones."""
    folder = tmp_path_factory.mktemp("bronze")
    tables = (lake.flights_table(), lake.first_airports(), lake.complete_airports())
    paths = [str(folder / f"{number}.parquet") for number in range(len(tables))]
    for table, path in zip(tables, paths, strict=True):
        pq.write_table(table, path)
    flights, first, complete = (spark.read.parquet(path) for path in paths)
    return flights, first, complete


def in_key_order(frame: DataFrame) -> pd.DataFrame:
    rows = pd.DataFrame(
        [tuple(row) for row in frame.collect()], columns=frame.columns, dtype="object"
    )
    return rows.sort_values(oracle.KEY, ignore_index=True)


def assert_same_rows(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    plain = expected.astype("object").reset_index(drop=True)
    pd.testing.assert_frame_equal(
        actual.where(actual.notna(), None), plain.where(plain.notna(), None), check_dtype=False
    )


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Let Spark make code of its queries: over all flights, interpreting them costs twice that."""
    own = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {key: spark.conf.get(key) for key in own}
    for key, text in own.items():
        spark.conf.set(key, text)
    yield
    for key, text in before.items():
        spark.conf.set(key, text)


@pytest.mark.usefixtures("compiled")
class TestEveryRow:
    @pytest.mark.long
    def test_is_the_oracles(self, job: ModuleType, bronze: tuple[DataFrame, ...]) -> None:
        """Of 1.2.0; tests/setup/test_demo.py compares what 1.0.0 and 1.1.0 made of the table."""
        flights, _, airports = bronze
        result = job.arrivals_daily_1_2_0(None, flights, airports)
        assert_same_rows(in_key_order(result), oracle.daily("correct"))

    def test_of_the_window_needs_one_day_of_warm_up_and_one_of_cool_down(
        self, job: ModuleType, bronze: tuple[DataFrame, ...]
    ) -> None:
        flights, _, airports = bronze
        read = flights.where(
            "time_hour >= timestamp'2013-02-14 00:00:00 UTC' "
            "and time_hour < timestamp'2013-04-02 00:00:00 UTC'"
        )
        result = job.arrivals_daily_1_2_0(None, read, airports)
        inside = result.where("arrival_date >= '2013-02-15' and arrival_date < '2013-04-01'")
        assert_same_rows(in_key_order(inside), oracle.window(oracle.restated()))

    def test_of_an_unknown_destination_stays_under_a_null_date(
        self, job: ModuleType, bronze: tuple[DataFrame, ...]
    ) -> None:
        flights, airports, _ = bronze
        result = job.arrivals_daily_1_2_0(None, flights, airports)
        counted = result.groupBy("dest", result["arrival_date"].isNull()).sum("flights").collect()
        assert {dest for dest, is_unknown, _ in counted if is_unknown} == {
            "SJU",
            "BQN",
            "STT",
            "PSE",
        }
        assert sum(flights for _, is_unknown, flights in counted if is_unknown) == 7_602
        assert sum(flights for _, _, flights in counted) == 336_776


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.0"])
def test_each_version_declares_itself_and_returns_the_products_columns(
    job: ModuleType, bronze: tuple[DataFrame, ...], version: str
) -> None:
    function = getattr(job, f"arrivals_daily_{version.replace('.', '_')}")
    assert transform_info(function) == TransformInfo(
        "arrivals_daily", version, ("flights", "airports")
    )
    result = function(None, bronze[0], bronze[2])
    assert ", ".join(f"{name} {kind}" for name, kind in result.dtypes) == SCHEMA


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def flight(departure: datetime, arr_time: int | None, **other: Any) -> dict[str, Any]:
    """Returns a flight on carrier XX; it departs at `departure` unless `other` says otherwise."""
    hour = departure.replace(minute=0)
    row = {
        "carrier": "XX",
        "time_hour": hour,
        "minute": departure.minute,
        "dep_time": 1,
        "dep_delay": 0,
        "arr_time": arr_time,
        "sched_arr_time": 1,
        "arr_delay": 0,
        "air_time": 60,
    }
    return row | other


def arrival_dates(
    spark: SparkSession, job: ModuleType, zone_and_flight: list[tuple[str, dict[str, Any]]]
) -> list[date | None]:
    """Returns the arrival date of each flight; each one gets a destination of its own."""
    names = [field.split()[0] for field in FLIGHT.split(", ")]
    rows = [row | {"dest": f"{n:05}"} for n, (_, row) in enumerate(zone_and_flight)]
    flights = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], FLIGHT)
    airports = spark.createDataFrame(
        [(f"{n:05}", zone) for n, (zone, _) in enumerate(zone_and_flight)],
        "faa string, tzone string",
    )
    result = job.arrivals_daily_1_2_0(None, flights, airports)
    found = {row["dest"]: row["arrival_date"] for row in result.collect()}
    return [found[row["dest"]] for row in rows]


NEW_YORK = "America/New_York"
NO_DEPARTURE = {"dep_time": None, "dep_delay": None}

# What happens, the destination's zone, the departure (UTC) and arr_time, the local day on which
# the flight arrives, and what else is special about it.
CASES: list[tuple[str, str, str, int | None, str, dict[str, Any]]] = [
    ("same evening", NEW_YORK, "2013-06-01T22:00", 2015, "2013-06-01", {}),
    ("over midnight", NEW_YORK, "2013-06-02T03:00", 105, "2013-06-02", {}),
    ("2400 is midnight", NEW_YORK, "2013-06-02T02:00", 2400, "2013-06-02", {}),
    ("0 is midnight too", NEW_YORK, "2013-06-02T02:00", 0, "2013-06-02", {}),
    ("strictly after the departure", NEW_YORK, "2013-06-02T02:00", 2200, "2013-06-02", {}),
    ("early, over midnight", NEW_YORK, "2013-06-02T04:05", 2359, "2013-06-01", {"dep_delay": -10}),
    ("21 hours late", NEW_YORK, "2013-06-01T14:00", 830, "2013-06-02", {"dep_delay": 1260}),
    (
        "a day and an hour late",
        NEW_YORK,
        "2013-06-01T14:00",
        1200,
        "2013-06-02",
        {"dep_delay": 1501},
    ),
    (
        "cancelled: by the schedule",
        NEW_YORK,
        "2013-06-02T03:00",
        None,
        "2013-06-02",
        {"sched_arr_time": 105, **NO_DEPARTURE},
    ),
    (
        "never landed: by the schedule, whatever the delay",
        NEW_YORK,
        "2013-06-01T20:00",
        None,
        "2013-06-01",
        {"sched_arr_time": 1800, "dep_delay": 600},
    ),
    ("spring: in the gap", NEW_YORK, "2013-03-10T04:06", 203, "2013-03-11", {}),
    ("spring: after the gap", NEW_YORK, "2013-03-10T06:59", 300, "2013-03-10", {}),
    ("autumn: the second 01:30", NEW_YORK, "2013-11-03T05:45", 130, "2013-11-03", {}),
    ("autumn: past the second", NEW_YORK, "2013-11-03T06:30", 130, "2013-11-04", {}),
    ("autumn: from first to second", NEW_YORK, "2013-11-03T05:30", 130, "2013-11-03", {}),
    ("back over midnight", "America/Asuncion", "2013-03-24T02:45", 2330, "2013-03-23", {}),
    ("no midnight", "America/Sao_Paulo", "2013-10-20T01:00", 2400, "2013-10-21", {}),
    ("no such day", "Pacific/Apia", "2011-12-30T09:00", 1200, "2011-12-31", {}),
    ("half an hour twice", "Australia/Lord_Howe", "2013-04-06T14:50", 145, "2013-04-07", {}),
]


def test_arrival_dates_at_the_clock_changes(spark: SparkSession, job: ModuleType) -> None:
    flights = [(zone, flight(utc(at), clock, **more)) for _, zone, at, clock, _, more in CASES]
    found = [str(day) for day in arrival_dates(spark, job, flights)]
    titles = [title for title, *_ in CASES]
    expected = [day for _, _, _, _, day, _ in CASES]
    assert dict(zip(titles, found, strict=True)) == dict(zip(titles, expected, strict=True))


def test_arrival_dates_of_flights_around_many_changes_are_the_oracles(
    spark: SparkSession, job: ModuleType
) -> None:
    """2,000 flights within two days of a clock change, in zones of every kind."""
    chance = random.Random(2013)
    changes = {
        "America/New_York": ["2013-03-10T07:00", "2013-11-03T06:00"],
        "America/Los_Angeles": ["2013-03-10T10:00", "2013-11-03T09:00"],
        "Australia/Lord_Howe": ["2013-04-06T15:00", "2013-10-05T15:30"],
        "America/Asuncion": ["2013-03-24T03:00", "2013-10-06T04:00"],
        "America/Sao_Paulo": ["2013-02-17T02:00", "2013-10-20T03:00"],
        "Pacific/Honolulu": ["2013-06-01T10:00"],
    }
    zones = [chance.choice(sorted(changes)) for _ in range(2_000)]
    departures = [
        utc(chance.choice(changes[zone])) + timedelta(minutes=chance.randrange(-2_000, 800))
        for zone in zones
    ]
    # Half of the clock times lie where clocks change.
    clocks = [
        chance.choice([0, 15, 100, 130, 145, 200, 230, 300, 2315, 2345, 2400])
        if chance.random() < 0.5
        else chance.randrange(24) * 100 + chance.randrange(60)
        for _ in zones
    ]
    found = arrival_dates(
        spark,
        job,
        [(z, flight(d, c)) for z, d, c in zip(zones, departures, clocks, strict=True)],
    )
    seconds = pd.Series([int(departure.timestamp()) for departure in departures]).to_numpy()
    _, local = oracle.arrivals(seconds, pd.Series(clocks).to_numpy(), pd.Series(zones))
    assert found == [date(1970, 1, 1) + timedelta(days=int(at) // 86_400) for at in local]


def test_a_group_without_an_arrival_has_no_mean(spark: SparkSession, job: ModuleType) -> None:
    departure = utc("2013-06-01T14:00")
    gone = {"arr_delay": None, "air_time": None}
    rows = [
        flight(departure, 1200, dest="JFK", carrier="AA", **gone),
        flight(departure, None, dest="JFK", carrier="AA", sched_arr_time=1200, **gone),
        flight(departure, 1200, dest="JFK", carrier="BB", arr_delay=15),
        flight(departure, 1200, dest="JFK", carrier="BB", arr_delay=-14),
    ]
    rows += [flight(departure, 1200, dest="JFK", carrier="BB", arr_delay=0)] * 6
    names = [field.split()[0] for field in FLIGHT.split(", ")]
    flights = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], FLIGHT)
    airports = spark.createDataFrame([("JFK", NEW_YORK)], "faa string, tzone string")
    first, second = job.arrivals_daily_1_2_0(None, flights, airports).sort("carrier").collect()
    assert tuple(first)[3:] == (2, 0, 1, 0, 0, 0, None, 0)
    assert [str(value) for value in tuple(second)[3:]] == [
        "8",
        "8",
        "0",
        "0",
        "0",
        "1",
        "0.13",
        "480",
    ]
