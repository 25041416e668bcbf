"""Declarations of sources: every fault is named with file and line."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path

import pytest

from lakehouse_backfill.config.sources import find_source, landing_request, list_sources
from lakehouse_backfill.errors import ConfigError, NotFound
from tests.support.examples.declarations import changed

TRIPS = r"""api_version: lakehouse-backfill/v1
source: trips
kind: files
table: bronze.trips
columns:
  - {name: id, type: long, required: true}
  - {name: day, type: date}
partitioning:
  - {column: day}
files:
  location: inbox
  format: csv
  business_date: 'trips-(\d{8})'
"""


def declare(folder: Path, text: str = TRIPS) -> Path:
    path = folder / "catalog/sources/trips.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def test_a_right_declaration_is_loaded(tmp_path: Path) -> None:
    source = find_source(declare(tmp_path), "trips")
    assert [column.name for column in source.all_columns] == [
        "id", "day", "source_file", "source_row", "source_attempt", "business_date",
        "landing_id", "landed_at",
    ]  # fmt: skip
    assert list_sources(tmp_path) == ("trips",)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("kind: files", "kind: file", "kind: is 'file'"),
        ("name: day,", "name: landing_id,", "is landing_id, which the landing adds"),
        ("name: day,", "name: Landing_ID,", "is Landing_ID, which the landing adds"),
        ("name: day,", "name: ID,", "is ID, like another one"),
        ("{column: day}", "{column: dey}", "is dey, which is no column"),
        ("trips-(\\d{8})", "trips-\\d{8}", "has no group"),
        ("trips-(\\d{8})", "trips-(", "is no regular expression"),
        ("source: trips", "source: rides", "is rides, but the file is called trips.yaml"),
        ("files:\n  location: inbox\n  format: csv\n  business_date: 'trips-(\\d{8})'\n", "",
         "nothing says where they are"),
        ("format: csv", "format: xml", "files.format: is 'xml'"),
        ("kind: files", "kind: kafka", "nothing says where it is"),
        ("columns:\n  - {name: id, type: long, required: true}\n  - {name: day, type: date}\n", "",
         "columns: names no column"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_with_its_line(
    old: str, new: str, fault: str, tmp_path: Path
) -> None:
    declare(tmp_path, changed(TRIPS, old, new))
    with pytest.raises(ConfigError) as caught:
        find_source(tmp_path, "trips")
    assert fault in caught.value.problem
    assert "catalog/sources/trips.yaml:" in caught.value.problem


@pytest.mark.parametrize("name", ["trip", "../trips", "nothing"])
def test_an_unknown_source_is_answered_with_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="trips"):
        find_source(declare(tmp_path), name)


def test_a_range_is_of_two_dates_or_two_instants() -> None:
    found = landing_request("2026-01-01", None)
    assert (found.from_, found.to) == (date(2026, 1, 1), None)
    instant = landing_request("2026-01-01T06:00:00Z", "2026-01-02T00:00:00").from_
    assert instant == datetime(2026, 1, 1, 6, tzinfo=timezone.utc)
    for first, stop in (
        ("1.1.2026", None),
        ("2026-01-02", "2026-01-02"),
        ("2026-01-01", "2026-01-02T00:00:00"),
    ):
        with pytest.raises(ConfigError):
            landing_request(first, stop)


TOPIC = """api_version: lakehouse-backfill/v1
source: trips
kind: kafka
table: bronze.trips
columns:
  - {name: id, type: long}
kafka:
  bootstrap_servers: localhost:9092
  topic: trips
  format: json
"""


def test_a_topic_is_declared_with_or_without_columns(tmp_path: Path) -> None:
    parsed = find_source(declare(tmp_path, TOPIC), "trips")
    assert parsed.all_columns[0].name == "id"
    raw = changed(TOPIC, "columns:\n  - {name: id, type: long}\n", "").replace("json", "raw")
    assert find_source(declare(tmp_path, raw), "trips").columns == ()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("type: long}", "type: long, required: true}", "a tombstone"),
        ("name: id", "name: kafka_offset", "which the landing adds"),
        ("  format: json\n", "", "values of format raw are not parsed"),
        ("format: json", "format: debezium", "kafka.format: is debezium, and change_log is not"),
        (
            "kafka:\n",
            "change_log: {key: [id], position: [lsn]}\nkafka:\n",
            "change_log: is for files and topics of format debezium",
        ),
        ("kafka:\n", "change_log: {key: [no], position: [lsn]}\nkafka:\n", "is no, which is no"),
        (
            "json\n",
            "debezium\n  unreadable: keep\nchange_log: {key: [id], position: [lsn]}\n",
            "kafka.unreadable: is keep, and a change that is left out",
        ),
        ("json\n", "json\n  column_disorder_s: {id: 5}\n", "names id, which is no column of dates"),
        ("json\n", "json\n  column_disorder_s: {no: 5}\n", "names no, which is no column of dates"),
        ("json\n", "json\n  schemas: {}\n", "kafka.schemas: needs one of url, folder"),
        ("json\n", "json\n  schemas: {url: 'https://h', folder: s}\n", "needs one of url, folder"),
        ("json\n", "json\n  schemas: {url: 'http://u:secret@h'}\n", "is no plain address"),
    ],
)
def test_a_wrong_topic_is_refused(old: str, new: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        find_source(declare(tmp_path, changed(TOPIC, old, new)), "trips")
