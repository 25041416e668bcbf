"""Type texts and row ranges, without a table."""

from __future__ import annotations

from datetime import date, datetime, timezone

import pytest
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, Or

from lakehouse_backfill.adapters.iceberg.partitions import (
    at_least_term,
    below_term,
    equal_term,
    in_term,
    null_term,
    row_range_filter,
)
from lakehouse_backfill.adapters.iceberg.schema import TypeParser
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.errors import ConfigError

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("long", "long"),
        (" decimal( 10 ,2 ) ", "decimal(10, 2)"),
        ("fixed(16)", "fixed[16]"),
        ("list<string>", "list<string>"),
        ("map<string, list<long>>", "map<string, list<long>>"),
        ("struct<a: int>", "struct<1: a: optional int>"),
        ("struct<7: a: required int (key)>", "struct<1: a: required int>"),
        (
            "struct<a: decimal(4, 1), b: map<int, date>>",
            "struct<1: a: optional decimal(4, 1), 2: b: optional map<int, date>>",
        ),
    ],
)
def test_type_texts_are_read_as_written(text, expected):
    assert str(TypeParser().parse(text)) == expected


@pytest.mark.parametrize("text", ["", "varchar(3)", "decimal(0, 0)", "list<>", "struct<a>", "x<y>"])
def test_texts_that_name_no_type_are_refused(text):
    with pytest.raises(ConfigError):
        TypeParser().parse(text)
