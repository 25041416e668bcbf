"""Labels, bounds and ranges of partitions."""

from __future__ import annotations

import itertools
from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.planning.scope.resolve import resolve_scope, scope_note
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.labels import spans
from lakehouse_backfill.domain.manifest import PartitionRange
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.errors import ConfigError

UTC = timezone.utc
DAY = ScopeField(column="d", transform="identity", type="date")
INSTANT_DAY = ScopeField(column="t", transform="day", type="timestamptz")
HOUR = ScopeField(column="t", transform="hour", type="timestamp")
MONTH = ScopeField(column="t", transform="month", type="date")
YEAR = ScopeField(column="t", transform="year", type="timestamptz")
TEXT = ScopeField(column="region", transform="identity", type="string")
NUMBER = ScopeField(column="n", transform="identity", type="int")


@pytest.mark.req("M3")
@pytest.mark.parametrize(
    ("field", "value", "label"),
    [
        pytest.param(DAY, date(2013, 2, 15), "2013-02-15", id="date"),
        pytest.param(INSTANT_DAY, datetime(2013, 2, 15, 23, tzinfo=UTC), "2013-02-15", id="day"),
        pytest.param(
            INSTANT_DAY,
            datetime(2013, 2, 15, 23, tzinfo=timezone(timedelta(hours=-5))),
            "2013-02-16",
            id="day is UTC",
        ),
        pytest.param(HOUR, datetime.fromisoformat("2013-02-15T07:59"), "2013-02-15T07", id="hour"),
        pytest.param(MONTH, date(2013, 2, 28), "2013-02", id="month"),
        pytest.param(YEAR, datetime(2013, 12, 31, tzinfo=UTC), "2013", id="year"),
        pytest.param(TEXT, "EU", "EU", id="text"),
        pytest.param(TEXT, None, "null", id="null"),
        pytest.param(TEXT, "null", "=null", id="the text null is not null"),
        pytest.param(TEXT, "=x", "==x", id="a text that starts like an escape"),
        pytest.param(NUMBER, -7, "-7", id="number"),
    ],
)
def test_a_value_has_one_label(field: ScopeField, value: object, label: str) -> None:
    assert partitions.partition_label(field, value) == label


@pytest.mark.parametrize("text", ["EU", "null", "=null", "", "==", "a'b\"; drop"])
def test_text_labels_lead_back_to_their_value(text: str) -> None:
    assert partitions.partition_row_range(TEXT, partitions.partition_label(TEXT, text)) == RowRange(
        "region", equals=text
    )


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)))  # noqa: DTZ001 (naive on purpose)
@pytest.mark.parametrize("field", [INSTANT_DAY, YEAR, HOUR], ids=lambda field: field.transform)
def test_the_bounds_of_a_label_hold_the_value_that_made_it(field, moment) -> None:
    value = moment if field.type == "timestamp" else moment.replace(tzinfo=UTC)
    rows = partitions.partition_row_range(field, partitions.partition_label(field, value))
    assert rows.lower <= value < rows.upper


@given(st.dates(date(1900, 1, 1), date(2200, 1, 1)), st.integers(-500, 500))
def test_shifting_forth_and_back_gives_the_same_label(day: date, steps: int) -> None:
    for field in (DAY, MONTH):
        label = partitions.partition_label(field, day)
        there = partitions.shift_label(field, label, steps)
        assert partitions.shift_label(field, there, -steps) == label


@given(st.sets(st.dates(date(2020, 1, 1), date(2020, 3, 1)), min_size=1))
def test_ranges_hold_exactly_the_rows_of_the_scope(days: set[date]) -> None:
    scope = Scope(field=DAY, partitions=tuple(sorted(day.isoformat() for day in days)))
    ranges = partitions.scope_row_ranges(scope)
    inside = {
        date(2019, 12, 1) + timedelta(days=number)
        for number in range(200)
        if any(
            rows.lower <= date(2019, 12, 1) + timedelta(days=number) < rows.upper for rows in ranges
        )
    }
    assert inside == days
    assert all(left.upper < right.lower for left, right in itertools.pairwise(ranges))


def test_a_range_over_a_leap_day_lists_every_day() -> None:
    found = tuple(partitions.labels_between(DAY, date(2024, 2, 28), date(2024, 3, 2)))
    assert found == ("2024-02-28", "2024-02-29", "2024-03-01")


@pytest.mark.req("M3")
@pytest.mark.parametrize(
    ("field", "first", "stop"),
    [
        pytest.param(MONTH, date(2024, 1, 15), date(2024, 3, 1), id="inside a month"),
        pytest.param(
            INSTANT_DAY,
            datetime(2024, 1, 1, 5, tzinfo=UTC),
            datetime(2024, 1, 2, tzinfo=UTC),
            id="a local midnight is not a UTC day",
        ),
        pytest.param(TEXT, "a", "b", id="texts have no order"),
    ],
)
def test_a_bound_that_splits_a_partition_is_refused(field, first, stop) -> None:
    with pytest.raises(ConfigError):
        tuple(partitions.labels_between(field, first, stop))


def test_an_endless_range_is_refused_before_it_fills_memory() -> None:
    with pytest.raises(ConfigError, match="more than"):
        tuple(partitions.labels_between(HOUR, date(1900, 1, 1), date(2100, 1, 1)))


@pytest.mark.req("M3")
@pytest.mark.parametrize(
    ("field", "first", "last"),
    [
        pytest.param(DAY, "0001-01-01", "9999-12-31", id="date"),
        pytest.param(INSTANT_DAY, "0001-01-01", "9999-12-31", id="day"),
        pytest.param(HOUR, "0001-01-01T00", "9999-12-31T23", id="hour"),
        pytest.param(MONTH, "0001-01", "9999-12", id="month"),
        pytest.param(YEAR, "0001", "9999", id="year"),
    ],
)
def test_the_first_and_the_last_partition_of_time_have_no_neighbour_beyond(field, first, last):
    assert partitions.shift_label(field, first, -1) is None
    assert partitions.shift_label(field, last, 1) is None
    rows = partitions.partition_row_range(field, last)
    assert (partitions.partition_label(field, rows.lower), rows.upper) == (last, None)
    assert (
        partitions.partition_label(field, partitions.partition_row_range(field, first).lower)
        == first
    )


WITHIN = {
    "days of a month": ("date", "day", "month", "2013-02", ("2013-02-01", "2013-02-28", 28)),
    "hours of a day": (
        "timestamptz", "hour", "day", "2013-02-28", ("2013-02-28T00", "2013-02-28T23", 24),
    ),
    "months of a year": ("date", "month", "year", "2012", ("2012-01", "2012-12", 12)),
    "the last month of all": ("date", "day", "month", "9999-12", ("9999-12-01", "9999-12-31", 31)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fine", "coarse", "label", "expected"), WITHIN.values(), ids=WITHIN
)
def test_a_coarser_partition_holds_all_finer_ones(kind, fine, coarse, label, expected) -> None:
    fields = [
        ScopeField.model_validate({"column": "c", "transform": unit, "type": kind})
        for unit in (fine, coarse)
    ]
    found = spans.labels_within(fields[0], fields[1], label)
    assert (found[0], found[-1], len(found)) == expected


@pytest.mark.parametrize("field", [DAY, HOUR, NUMBER], ids=["date", "hour", "number"])
def test_null_in_quotes_is_refused_where_it_is_no_text_with_the_right_spelling(field) -> None:
    assert partitions.whole_partition_label(field, None) == partitions.NULL_LABEL
    with pytest.raises(ConfigError) as caught:
        partitions.whole_partition_label(field, "null")
    assert "write null, without quotes" in caught.value.fix


def test_a_scope_tells_the_text_null_from_no_value() -> None:
    def note(*values: str | None) -> str:
        wanted = PartitionRange(column="region", values=values)
        return scope_note(resolve_scope(TEXT, wanted))

    assert note(None, "EU") == "null, EU of region, as declared"
    assert "=null holds the rows whose value is the text null" in note("null")
