"""Type texts, without a table."""

from __future__ import annotations

import pytest

from lakehouse_backfill.adapters.iceberg.schema import TypeParser
from lakehouse_backfill.errors import ConfigError


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
