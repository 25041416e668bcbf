"""Histories of events: rows follow from number and seed, and the truth is what rows show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.histories import EventHistory
from tests.support.oracles import histories as oracle

pytestmark = pytest.mark.req("T12")

#: All defects are frequent, so that few events show each.
BAD = EventHistory(
    events=1_500, seed=11, days=6, accounts=7, late=0.1, twice=0.2, tangled=0.3,
    tangle_seconds=9_000, lost=0.1, gaps=2, skewed=0.5, schema_steps=(2, 4),
)  # fmt: skip
#: Rows that could be told apart in no way would not show an order.
ORDER = ["event_id", "copy"]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    found = table.sort_by([(name, "ascending") for name in ORDER])
    numbers = [
        found[name].cast(pa.int64()) for name in ("occurred_at", "arrived_at")
    ]  # fmt: skip
    found = found.set_column(8, "occurred_at", numbers[0]).set_column(9, "arrived_at", numbers[1])
    return found.to_pylist()


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(BAD, id="all defects"),
        pytest.param(EventHistory(events=300, seed=-3), id="as by default"),
        pytest.param(replace(BAD, events=200, start=date(1969, 12, 30)), id="before 1970"),
    ],
)
def test_each_row_is_that_of_its_number_and_seed(history: EventHistory) -> None:
    assert rows_of(history.table()) == list(oracle.delivered(history))


def test_the_truth_of_each_day_is_what_a_query_finds_in_the_rows() -> None:
    """Of clocks that are right: then the rows alone tell the true day."""
    history = replace(BAD, skewed=0.0)
    found = (
        duckdb.from_arrow(history.table())
        .query(
            "rows",
            """
        WITH events AS (
            SELECT event_id, account, sequence_num, min(arrived_at) AS arrived,
                   any_value(occurred_at) AS happened, count(*) AS copies,
                   coalesce(any_value(amount_cents), any_value(amount_millis) // 10) AS cents
            FROM rows GROUP BY ALL),
        ordered AS (
            SELECT *, lead(sequence_num) OVER next AS following, lead(arrived) OVER next AS later
            FROM events WINDOW next AS (PARTITION BY account ORDER BY sequence_num))
        SELECT (happened AT TIME ZONE 'UTC')::date, count(*), sum(cents),
               count_if(arrived - happened >= INTERVAL 1 DAY), count_if(copies = 2),
               count_if(following = sequence_num + 1 AND arrived > later)
        FROM ordered GROUP BY 1 ORDER BY 1
        """,
        )
        .fetchall()
    )
    truth = history.truth()
    assert found == [
        (day.day, day.delivered, day.amount_cents, day.late, day.twice, day.overtaken)
        for day in truth.days
    ]
    assert all(min(row[1:]) > 0 for row in found), "each defect is seen on each day"


def test_lost_events_are_holes_in_the_numbers_and_gaps_have_no_rows() -> None:
    history = replace(BAD, skewed=0.0)
    rows, truth = history.table(), history.truth()
    held = set(rows["event_id"].to_pylist())
    assert history.events - len(held) == truth.total.lost
    instants = rows["occurred_at"].to_pylist()
    for first, stop in truth.gaps:
        assert not [at for at in instants if first <= at < stop]
    assert len(truth.gaps) == 2


def test_clocks_move_events_to_other_days_and_arrivals_tell_what_a_day_brings() -> None:
    right, wrong = replace(BAD, skewed=0.0), BAD
    days = [
        [at.date() for at, copy in zip(t["occurred_at"].to_pylist(), t["copy"].to_pylist(),
                                       strict=True) if copy == 1]
        for t in (right.table().sort_by("event_id"), wrong.table().sort_by("event_id"))
    ]  # fmt: skip
    truth = wrong.truth()
    assert sum(a != b for a, b in zip(*days, strict=True)) == truth.total.moved > 0
    found = (
        duckdb.from_arrow(wrong.table())
        .query(
            "rows",
            "SELECT (arrived_at AT TIME ZONE 'UTC')::date, (occurred_at AT TIME ZONE 'UTC')::date, "
            "count(*) FROM rows GROUP BY ALL ORDER BY ALL",
        )
        .fetchall()
    )
    assert {(day, of): rows for day, of, rows in found} == truth.arrivals


def test_a_billion_events_take_the_memory_of_those_that_are_asked_for() -> None:
    huge = EventHistory(events=1_000_000_000, seed=1)
    first = next(huge.batches(1_000))
    assert set(first["event_id"].to_pylist()) <= set(range(1_000))
    assert first.num_rows > 900


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    events=st.integers(1, 400),
    size=st.integers(40, 500),
    shares=st.tuples(*[st.floats(0, 1)] * 5),
)
@settings(max_examples=12, deadline=None)
def test_what_happened_adds_up_however_many_are_computed_at_once(
    seed: int, events: int, size: int, shares: tuple[float, ...]
) -> None:
    late, twice, tangled, lost, skewed = shares
    history = EventHistory(
        events=events, seed=seed, days=3, accounts=5, late=late, twice=twice, tangled=tangled,
        lost=lost, skewed=skewed, schema_steps=(1,),
    )  # fmt: skip
    truth = history.truth()
    assert history.truth(size) == truth
    total = truth.total
    assert total.events == events == total.delivered + total.lost
    assert sum(truth.arrivals.values()) == total.delivered + total.twice
    parts = pa.concat_tables(history.batches(size))
    assert rows_of(parts) == rows_of(history.table())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"events": 0}, "events"),
        ({"days": 0}, "days"),
        ({"late": 1.5}, "late"),
        ({"lost": -0.1}, "lost"),
        ({"schema_steps": (1, 2, 3)}, "schema_steps"),
        ({"events": 10**12}, "events"),
        ({"seed": 2**63}, "seed"),
        ({"skew_seconds": -1}, "skew_seconds"),
        ({"gap_hours": -1}, "gap_hours"),
    ],
)
def test_a_history_that_no_rows_can_be_computed_of_is_refused(
    change: dict[str, Any], field: str
) -> None:
    make: Callable[..., EventHistory] = EventHistory
    with pytest.raises(ConfigError) as refused:
        make(**{"events": 10, "days": 1} | change)
    assert refused.value.field == field
