"""Filters of row ranges, as every adapter gives them to PyIceberg."""

from __future__ import annotations

from datetime import date, datetime, timezone

import pytest
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, Or

from lakehouse_backfill.adapters.local.scan import filter_of_ranges
from lakehouse_backfill.adapters.pyiceberg_rows import (
    at_least_term,
    below_term,
    equal_term,
    in_term,
    null_term,
    row_range_filter,
)
from lakehouse_backfill.domain.partitions import RowRange

D1, D2 = date(2013, 2, 1), date(2013, 2, 3)
NOON = datetime(2013, 2, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ((), AlwaysFalse()),
        ((RowRange("d"),), AlwaysTrue()),
        ((RowRange("d", lower=D1, upper=D2),), And(at_least_term("d", D1), below_term("d", D2))),
        ((RowRange("d", lower=D1),), at_least_term("d", D1)),
        ((RowRange("d", upper=D2),), below_term("d", D2)),
        ((RowRange("d", is_null=True),), null_term("d")),
        ((RowRange("r", equals="x"),), equal_term("r", "x")),
        ((RowRange("ts", equals=NOON),), equal_term("ts", NOON)),
        ((RowRange("r", equals="x"), RowRange("r", equals="y")), in_term("r", {"x", "y"})),
        (
            (RowRange("r", equals="x"), RowRange("r", is_null=True)),
            Or(null_term("r"), equal_term("r", "x")),
        ),
    ],
)
def test_row_ranges_become_the_expression_of_their_union(ranges, expected):
    assert row_range_filter(ranges) == expected


def test_readers_take_no_range_for_every_row_and_writers_for_no_row() -> None:
    ranges = (RowRange("r", equals="x"), RowRange("r", equals="y"))
    assert filter_of_ranges(ranges) == row_range_filter(ranges)
    assert filter_of_ranges(()) == AlwaysTrue()
    assert row_range_filter(()) == AlwaysFalse()
