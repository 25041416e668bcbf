"""Bounds of key ranges: about equal numbers of rows, and statistics where they tell enough."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.domain.labels import key_ranges
from lakehouse_backfill.domain.labels.key_ranges import KeyRanges, KeySpan

#: Few values in many rows, too: one value may fill more than a range.
VALUES = {
    "negative and positive": st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1),
    "decimals": st.integers(-300, 300).map(lambda number: Decimal(number).scaleb(-2)),
    "texts": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "days": st.integers(-9, 9).map(lambda days: date(1970, 1, 1) + timedelta(days)),
}


def held_by(bounds: tuple[Any, ...], values: list[Any]) -> list[int]:
    """Count the rows of each range."""
    held = Counter(bisect_right(bounds, value) for value in values)
    return [held[number] for number in range(len(bounds) + 1)]


@pytest.mark.req("P3")
@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data(), count=st.integers(1, 12))
def test_ranges_of_a_column_hold_their_share_and_at_most_the_rows_of_one_value_more(
    kind: str, data: Any, count: int
) -> None:
    values = sorted(data.draw(st.lists(VALUES[kind], min_size=1, max_size=60)))
    places = key_ranges.quantile_places(len(values), count)
    bounds = key_ranges.bounds_of_firsts(values[place] for place in places)
    assert all(below < above for below, above in pairwise(bounds))
    held = held_by(bounds, values)
    assert len(held) <= count
    assert all(held)
    assert max(held) < len(values) / count + max(Counter(values).values()) + 1
    if len(set(values)) == len(values) >= count:
        assert len(held) == count
        assert max(held) - min(held) <= 1


@pytest.mark.req("P3")
@given(
    sizes=st.lists(st.integers(0, 9), max_size=40).filter(any),
    count=st.integers(1, 12),
    shuffled=st.randoms(),
)
def test_bounds_between_files_leave_each_range_half_to_one_and_a_half_of_its_share(
    sizes: list[int], count: int, shuffled: Any
) -> None:
    spans, values = [], list(range(-20, sum(sizes) - 20))
    start = 0
    for size in sizes:
        held = values[start : start + size] or [0]
        spans.append(KeySpan(held[0], held[-1], size))
        start += size
    shuffled.shuffle(spans)
    bounds = key_ranges.bounds_by_statistics(spans, count)
    if bounds is None:
        assert count > 1
        return
    share = len(values) / count
    assert len(bounds) == count - 1
    assert all(share / 2 <= rows <= share * 1.5 for rows in held_by(bounds, values))


@pytest.mark.parametrize(
    ("spans", "count", "bounds"),
    [
        ([(1, 9, 10), (10, 19, 10), (20, 29, 10)], 3, (10, 20)),
        ([(1, 9, 10), (9, 19, 10), (20, 29, 10)], 3, None),
        ([(1, 9, 10), (10, 19, 10), (20, 29, 10)], 2, None),
        ([(1, 9, 10), (None, None, 10), (20, 29, 10)], 3, None),
        ([(1, 9, 10), (None, None, 0), (20, 29, 10)], 2, (20,)),
        ([(1, 99, 100)], 2, None),
        ([(5, 5, 90), (6, 6, 10)], 2, None),
        ([(None, None, 0)], 2, ()),
        ([("", "Z", 3), ("a", "b", 4)], 2, ("a",)),
    ],
    ids=[
        "files are ranges", "a value in two files", "a bound within a file", "no statistics",
        "a file without values", "one file", "skewed", "no values",
        "texts",
    ],
)  # fmt: skip
def test_statistics_tell_bounds_where_files_begin_near_them(
    spans: list[Any], count: int, bounds: Any
) -> None:
    found = key_ranges.bounds_by_statistics([KeySpan(*span) for span in spans], count)
    assert found == bounds


@pytest.mark.parametrize(
    ("rows", "size", "count", "ranges"),
    [(100, 10, None, 10), (101, 10, None, 11), (9, 10, None, 1), (100, None, 7, 7)],
)
def test_a_size_makes_as_many_ranges_as_it_needs(
    rows: int, size: int | None, count: int | None, ranges: int
) -> None:
    assert KeyRanges(column="id", size=size, count=count).count_of(rows) == ranges
