"""Which partitions of a product an input has rows for, by what metadata tells of its files."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.core.evidence.inputs.rows import (
    doubtful_labels,
    expected_by_files,
    expected_by_spans,
    labels_with_rows,
)
from lakehouse_backfill.domain.partitions import ScopeField, partition_label
from lakehouse_backfill.domain.tables.files import ColumnSpan, LiveFile, visible_rows

DAY = ScopeField(column="day", transform="identity", type="date")
HOUR = ScopeField(column="at", transform="hour", type="timestamptz")
MONTH = ScopeField(column="day", transform="month", type="date")


def file(path: str = "a", rows: int = 10, day: str = "2020-01-01", **more: Any) -> LiveFile:
    """A data file of a day."""
    return LiveFile(path=path, spec_id=0, partition=day, rows=rows, size_bytes=1, **more)


def span(first: Any, last: Any, rows: tuple[int, int] = (1, 1), **more: Any) -> ColumnSpan:
    """What a file holds of a column."""
    return ColumnSpan(
        path="a", first=first, last=last, least_rows=rows[0], most_rows=rows[1], **more
    )


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        ([file()], (10, 10)),
        ([file(deletes=("d",), hidden={"d": 3})], (7, 10)),
        ([file(deletes=("d",), hidden={"d": 30})], (0, 10)),
        ([file(deletes=("e",))], (0, 10)),
        ([file(deletes=("p#4",), hidden={"p#4": 10}, vector_rows=10)], (0, 0)),
        ([file(deletes=("p#4", "d"), hidden={"p#4": 4, "d": 4}, vector_rows=4)], (6, 6)),
        ([file(), file("b", deletes=("d",), hidden={"d": 99})], (10, 20)),
        ([file(n, 2, deletes=("d",), hidden={"d": 3}) for n in "abc"], (3, 6)),
        ([file(), file("b", deletes=("e",))], (10, 20)),
    ],
    ids=[
        "no deletes", "some by position", "all by position", "by value", "a vector of all",
        "a vector comes before positions", "another file is whole", "one for a partition",
        "by value in one file",
    ],
)  # fmt: skip
def test_readers_see_at_least_and_at_most_so_many_rows(
    files: list[LiveFile], rows: tuple[int, int]
) -> None:
    assert visible_rows(files) == rows


def test_a_partition_that_a_vector_empties_has_no_rows_and_one_that_deletes_may_is_doubtful() -> (
    None
):
    files = [
        file(deletes=("v",), hidden={"v": 10}, vector_rows=10),
        file("b", day="2020-01-02", deletes=("d",), hidden={"d": 10}),
        file("c", day="2020-01-03"),
    ]
    assert labels_with_rows(files) == {"2020-01-02", "2020-01-03"}
    assert doubtful_labels(files) == {"2020-01-02"}
    found = expected_by_files(DAY, DAY, files)
    assert found == ({"2020-01-03"}, {"2020-01-02"}, "")


def test_partitions_of_a_month_tell_nothing_of_days() -> None:
    assert expected_by_files(DAY, MONTH, [file(day="2020-01")]) is None
    assert expected_by_files(DAY, DAY, [file(day="2020-01", spans=("2020-01-01",))]) is None


@pytest.mark.parametrize(
    ("one", "surely", "possibly"),
    [
        (span(date(2020, 1, 2), date(2020, 1, 2)), {2}, set()),
        (span(date(2020, 1, 2), date(2020, 1, 2), (0, 1)), set(), {2}),
        (span(date(2020, 1, 2), date(2020, 1, 2), (0, 0)), set(), set()),
        (span(date(2020, 1, 2), date(2020, 1, 4), is_exact=True), {2, 4}, {3}),
        (span(date(2020, 1, 2), date(2020, 1, 4)), set(), {2, 3, 4}),
        (span(datetime(2020, 1, 2, 23, tzinfo=timezone.utc),
              datetime(2020, 1, 3, 1, tzinfo=timezone.utc), is_exact=True), {2, 3}, set()),
    ],
    ids=["one day", "may be hidden", "hidden", "exact bounds", "loose bounds", "instants"],
)  # fmt: skip
def test_bounds_tell_the_days_that_a_file_has_rows_of(
    one: ColumnSpan, surely: set[int], possibly: set[int]
) -> None:
    found = expected_by_spans(DAY, [one])
    assert found.surely == {f"2020-01-{day:02d}" for day in surely}
    assert found.possibly == {f"2020-01-{day:02d}" for day in possibly}


def test_a_day_is_all_of_its_hours_and_a_file_without_statistics_tells_nothing() -> None:
    found = expected_by_spans(HOUR, [span(date(2020, 1, 2), date(2020, 1, 2), is_exact=True)])
    assert (len(found.surely), len(found.possibly)) == (0, 24)
    assert "no statistics" in expected_by_spans(DAY, [span(None, None)]).unknown


NUMBERS = st.lists(st.integers(0, 60), min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(NUMBERS, max_size=5))
def test_no_day_with_rows_is_left_out_and_no_day_without_is_sure(numbers: list[list[int]]) -> None:
    files = [[date(2020, 1, 1) + timedelta(days=one) for one in some] for some in numbers]
    spans = [span(min(days), max(days), (len(days), len(days)), is_exact=True) for days in files]
    found = expected_by_spans(DAY, spans)
    held = {partition_label(DAY, day) for days in files for day in days}
    assert found.surely <= held <= found.surely | found.possibly
    within = {
        partition_label(DAY, min(days) + timedelta(days=number))
        for days in files
        for number in range((max(days) - min(days)).days + 1)
    }
    assert found.surely | found.possibly == within
