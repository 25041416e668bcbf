"""Spark computes the row hash that docs/row-hash.md defines: held against a plain-Python oracle."""

from __future__ import annotations

import re
import struct
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.adapters.spark.row_hash import (
    frame_checksum,
    row_hash_column,
)
from tests.support.oracles.row_hash import MASK, checksum, row_hash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = Path(__file__).parents[2] / "docs" / "row-hash.md"
_PAIR = ("struct", {"q": "string", "p": "long"})
_INSTANTS = datetime(1930, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001 (as hypothesis wants them)
#: Of each column: Spark's type, the canonical type, and its values.
COLUMNS: dict[str, tuple[str, Any, st.SearchStrategy[Any]]] = {
    "flag": ("boolean", "boolean", st.booleans()),
    "small": ("int", "long", st.integers(-(2**31), 2**31 - 1)),
    "big": ("bigint", "long", st.integers(-(2**63), 2**63 - 1)),
    "thin": ("float", "double", st.floats(width=32)),
    "wide": ("double", "double", st.one_of(st.floats(), st.sampled_from([0.0, -0.0]))),
    "text": ("string", "string", st.text(st.characters(exclude_categories=["Cs"]), max_size=80)),
    "raw": ("binary", "binary", st.binary(max_size=40)),
    "day": ("date", "date", st.dates(date(1900, 1, 1), date(2200, 1, 1))),
    "at": (
        "timestamp",
        "timestamptz",
        st.datetimes(*_INSTANTS, timezones=st.just(timezone.utc)),
    ),
    "local": (
        "timestamp_ntz", "timestamp", st.datetimes(*_INSTANTS),
    ),
    "money": (
        "decimal(12,2)", "decimal18:2", st.integers(-(10**12) + 1, 10**12 - 1).map(
            lambda unscaled: Decimal(unscaled).scaleb(-2)
        ),
    ),
    "huge": (
        "decimal(30,4)", "decimal38:4", st.integers(-(10**27), 10**27).map(
            lambda unscaled: Decimal(f"{unscaled}e-4")
        ),
    ),
    "pairs": (
        "array<struct<p:bigint,q:string>>",
        ("list", _PAIR),
        st.lists(
            st.one_of(
                st.none(),
                st.fixed_dictionaries({
                    "p": st.one_of(st.none(), st.integers(-3, 3)),
                    "q": st.one_of(st.none(), st.sampled_from(["", "é", "null"])),
                }),
            ),
            max_size=3,
        ),
    ),
    "map": (
        "map<string,bigint>",
        ("map", "string", "long"),
        st.dictionaries(st.text("abc", max_size=2), st.one_of(st.none(), st.integers(-9, 9)),
                        max_size=3),
    ),
    "nest": (
        "struct<u:double,v:array<array<int>>>",
        ("struct", {"u": "double", "v": ("list", ("list", "long"))}),
        st.fixed_dictionaries({
            "u": st.one_of(st.none(), st.floats()),
            "v": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.lists(
                st.one_of(st.none(), st.integers(-1, 1)), max_size=2)), max_size=3)),
        }),
    ),
}  # fmt: skip
SCHEMA = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
TYPES = {name: canonical for name, (_, canonical, _) in COLUMNS.items()}
rows = st.fixed_dictionaries(
    {name: st.one_of(st.none(), value) for name, (_, _, value) in COLUMNS.items()}
)


@pytest.mark.req("Q4", "T8")
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
@given(bag=st.lists(rows, min_size=4, max_size=12))
def test_spark_hashes_every_row_as_the_definition_says(
    spark: SparkSession, bag: list[dict[str, Any]]
) -> None:
    # Generated rows do not hold their columns in order.
    frame = spark.createDataFrame([tuple(row[name] for name in COLUMNS) for row in bag], SCHEMA)
    hashed = frame.select(row_hash_column(frame.schema).alias("h"))
    assert [row["h"] & MASK for row in hashed.collect()] == [row_hash(TYPES, row) for row in bag]
    found = frame_checksum(frame)
    assert (found.rows, found.xor, found.total) == checksum(TYPES, bag)


#: The rows of the page's examples, as Python has them.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "1L AS a": ({"a": "long"}, {"a": 1}),
    "CAST(NULL AS bigint) AS a": ({"a": "long"}, {"a": None}),
    "1L AS a, CAST(NULL AS bigint) AS b": ({"a": "long", "b": "long"}, {"a": 1, "b": None}),
    "'Zürich' AS a": ({"a": "string"}, {"a": "Zürich"}),
    "X'00ff' AS a": ({"a": "binary"}, {"a": b"\x00\xff"}),
    "true AS a": ({"a": "boolean"}, {"a": True}),
    "CAST('NaN' AS double) AS a": ({"a": "double"}, {"a": float("nan")}),
    "CAST('-0.0' AS double) AS a": ({"a": "double"}, {"a": -0.0}),
    "CAST('12.34' AS decimal(10,2)) AS a": ({"a": "decimal18:2"}, {"a": Decimal("12.34")}),
    "CAST('12.34' AS decimal(38,2)) AS a": ({"a": "decimal38:2"}, {"a": Decimal("12.34")}),
    "date'2013-02-15' AS a": ({"a": "date"}, {"a": date(2013, 2, 15)}),
    "timestamp'2013-02-15 12:00:00.000001Z' AS a": (
        {"a": "timestamptz"}, {"a": datetime(2013, 2, 15, 12, 0, 0, 1, tzinfo=timezone.utc)},
    ),
    "array(1L, NULL) AS a": ({"a": ("list", "long")}, {"a": [1, None]}),
    "CAST(array() AS array<bigint>) AS a": ({"a": ("list", "long")}, {"a": []}),
    "named_struct('y', 1L, 'x', 'b') AS a": (
        {"a": ("struct", {"x": "string", "y": "long"})}, {"a": {"x": "b", "y": 1}},
    ),
    "map('k', 1L, 'j', 2L) AS a": ({"a": ("map", "string", "long")}, {"a": {"j": 2, "k": 1}}),
    "array(array(1L), NULL) AS a": ({"a": ("list", ("list", "long"))}, {"a": [[1], None]}),
}  # fmt: skip


@pytest.mark.req("Q4")
@pytest.mark.parametrize("query", EXAMPLES)
def test_the_fixed_numbers_of_the_page_follow_from_its_definition(query: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    numbers = dict(re.findall(r"^\| `([^|]+)` \| `(-?\d+)` \|$", text, re.MULTILINE))
    (signed,) = struct.unpack("<q", struct.pack("<Q", row_hash(*EXAMPLES[query])))
    assert signed == int(numbers[query])
