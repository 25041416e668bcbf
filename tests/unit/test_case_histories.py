"""The events of the case study: as numbers say, and enough for each month by itself."""

from __future__ import annotations

import csv
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_backfill.case_histories import (
    YEAR_START,
    YEAR_STOP,
    CaseHistory,
    instant,
)
from lakehouse_backfill.demo.case_lake import calendar_table
from lakehouse_backfill.demo.case_study import CaseStudyOptions, main
from lakehouse_backfill.errors import ConfigError
from tests.support.oracles.case_sla import case_days

pytestmark = pytest.mark.req("T12")
DOCS = Path(__file__).parents[2] / "docs"
DISPUTED = Path(__file__).parents[2] / "jobs" / "case_sla" / "disputed_cases.csv"
HISTORY = CaseHistory(1_000)
Rows = dict[tuple[date, int], dict[str, Any]]


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = HISTORY.events().to_pylist()
    return found


def rows_of(
    events: list[dict[str, Any]],
    *,
    corrected: bool,
    counted_from: str,
    first: date = YEAR_START,
    stop: date = YEAR_STOP,
) -> Rows:
    calendar = calendar_table(corrected=corrected).to_pylist()
    found = case_days(events, calendar, first, stop, counted_from)
    return {(row["as_of"], row["case_id"]): row for row in found}


@pytest.fixture(scope="module")
def right(events: list[dict[str, Any]]) -> Rows:
    return rows_of(events, corrected=True, counted_from="local")


@pytest.fixture(scope="module")
def wrong(events: list[dict[str, Any]]) -> Rows:
    return rows_of(events, corrected=False, counted_from="utc")


def test_the_census_counts_the_days_that_the_events_tell(right: Rows) -> None:
    census = HISTORY.census()
    found = {(row["as_of"], row["case_id"]): row["jurisdiction"] for row in census.to_pylist()}
    assert found == {key: row["jurisdiction"] for key, row in right.items()}
    assert census.num_rows == len(found)


def test_the_utc_date_makes_deadlines_late_and_never_early(
    events: list[dict[str, Any]], wrong: Rows
) -> None:
    local = rows_of(events, corrected=False, counted_from="local")
    differing = [key for key in wrong if wrong[key] != local[key]]
    assert len({case for _, case in differing}) > 50
    assert all(wrong[key]["due_on"] > local[key]["due_on"] for key in differing)


@pytest.mark.parametrize("month", [1, 3])
def test_a_month_needs_only_what_its_run_reads(
    events: list[dict[str, Any]], right: Rows, month: int
) -> None:
    """The window of the run manifest: 31 days before, 45 days after, and what is carried over."""
    first = date(2025, month, 1)
    stop = date(2025 + month // 12, month % 12 + 1, 1)
    begin, end = instant(first - timedelta(days=31)), instant(stop + timedelta(days=45))
    read = [event for event in events if begin <= event["recorded_at"] < end]
    read += [
        event
        for event in HISTORY.carried().to_pylist()  # of which each month is a snapshot
        if begin.date() <= event["month"] < stop
    ]  # fmt: skip
    assert len(read) < len(events)
    found = rows_of(read, corrected=True, counted_from="local", first=first, stop=stop)
    assert found == {key: row for key, row in right.items() if first <= key[0] < stop}


def test_the_disputed_cases_are_a_hundred_whose_rows_change(right: Rows, wrong: Rows) -> None:
    with DISPUTED.open(encoding="utf-8") as file:
        disputed = list(csv.DictReader(file))
    assert len({row["case_id"] for row in disputed}) == len(disputed) == 100
    for cells in disputed:
        key = date.fromisoformat(cells["as_of"]), int(cells["case_id"])
        row = right[key]
        assert row != wrong[key]
        assert cells == {
            "as_of": str(row["as_of"]), "case_id": str(row["case_id"]),
            "jurisdiction": row["jurisdiction"], "opened_on": str(row["opened_on"]),
            "due_on": str(row["due_on"]),
            "breached": row["jurisdiction"] if row["is_breached"] else "",
        }  # fmt: skip


def test_the_numbers_of_the_tutorial_are_those_of_its_cases() -> None:
    options = CaseStudyOptions()
    events = CaseHistory(options.cases).events().to_pylist()
    old = rows_of(events, corrected=False, counted_from="utc")
    new = rows_of(events, corrected=True, counted_from="local")
    assert old.keys() == new.keys()
    changed = sum(row != old[key] for key, row in new.items())
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    assert f"{changed:,} case days change, {len(new) - changed:,} stay, none come or go" in text


def test_a_case_is_the_same_among_more_cases() -> None:
    def first_cases(history: CaseHistory) -> pa.Table:
        found = history.events()
        kept = found.filter(pa.compute.less(found["case_id"], 1_000))
        return kept.sort_by([("event_id", "ascending"), ("recorded_at", "ascending")])

    assert first_cases(CaseHistory(1_500)) == first_cases(HISTORY)


def test_events_hold_every_kind_late_records_and_duplicates(events: list[dict[str, Any]]) -> None:
    assert {event["kind"] for event in events} == {
        "opened", "paused", "resumed", "escalated", "decided", "amended", "reopened",
    }  # fmt: skip
    late = [one for one in events if one["recorded_at"] - one["occurred_at"] > timedelta(days=1)]
    assert late
    assert len({event["event_id"] for event in events}) < len(events)
    assert all(
        event["occurred_at"] <= event["recorded_at"] < datetime(2026, 2, 16, tzinfo=timezone.utc)
        for event in events
    )


def test_too_few_cases_are_refused() -> None:
    with pytest.raises(ConfigError, match="999 cases"):
        CaseHistory(999)


@pytest.mark.parametrize(
    "wrong",
    [("--cases", "10"), ("--explain", "0"), ("--explain", "13"), ("--profiles", "no such file")],
)
def test_what_cannot_be_told_is_refused_before_a_folder_is_made(
    wrong: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--dir", str(tmp_path / "study"), *wrong]) == 2
    assert "nothing was read or changed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
