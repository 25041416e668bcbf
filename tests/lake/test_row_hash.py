"""The canonical row hash: what must change it, what must not, and what it is for fixed rows."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.adapters.spark import row_hash
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOCUMENT = Path(__file__).parents[2] / "docs" / "row-hash.md"
SCHEMA = "g int, a bigint, b bigint, s string, f double, l array<bigint>"

integers = st.one_of(st.none(), st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
rows_of_values = st.tuples(
    integers,
    integers,
    st.one_of(st.none(), st.sampled_from(["", "a", "null", "é"])),
    st.one_of(st.none(), st.floats(width=64)),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=3)),
)
bags = st.lists(rows_of_values, min_size=0, max_size=6)
fast = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def hashes(spark: SparkSession, queries: list[str]) -> list[int]:
    """Give the row hash of each one-row query, in one job."""
    frames = [spark.sql(query) for query in queries]
    hashed = [frame.select(row_hash.row_hash_column(frame.schema).alias("h")) for frame in frames]
    union = hashed[0]
    for frame in hashed[1:]:
        union = union.unionAll(frame)
    return [row["h"] for row in union.collect()]


def by_group(spark: SparkSession, groups: list[list[Any]]) -> list[Checksum]:
    """Give the checksum of each group of rows, in one job."""
    data = [(number, *row) for number, rows in enumerate(groups) for row in rows]
    frame = spark.createDataFrame(data, SCHEMA)
    shape = row_hash.shape_digest(frame.schema, ("g",))
    hashed = row_hash.row_hash_column(frame.schema, ("g",))
    found = frame.groupBy("g").agg(*row_hash.hash_aggregates(hashed)).collect()
    sums = {row["g"]: row_hash.to_checksum(row.asDict(), shape) for row in found}
    return [sums.get(number, Checksum.empty(shape)) for number in range(len(groups))]


def shape_of(frame: DataFrame) -> str:
    return row_hash.shape_digest(frame.schema)


@pytest.mark.req("Q4", "T8")
@fast
@given(rows=bags, data=st.data())
def test_the_checksum_does_not_depend_on_order(
    spark: SparkSession, rows: list[Any], data: st.DataObject
) -> None:
    first, second = by_group(spark, [rows, data.draw(st.permutations(rows))])
    assert first == second


@pytest.mark.req("Q4", "T8")
@fast
@given(one=bags, other=bags)
def test_checksums_add_up(spark: SparkSession, one: list[Any], other: list[Any]) -> None:
    first, second, both = by_group(spark, [one, other, one + other])
    assert first + second == both


@pytest.mark.req("Q4", "T8")
@fast
@given(rows=st.lists(rows_of_values, min_size=1, max_size=5), data=st.data())
def test_the_checksum_notices_any_single_change(
    spark: SparkSession, rows: list[Any], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, 1))
    before = rows[place][column]
    after = data.draw(integers.filter(lambda value: value != before))
    changed = (*rows[place][:column], after, *rows[place][column + 1 :])
    moved = [*rows[:place], changed, *rows[place + 1 :]]
    old, new, shorter, doubled = by_group(
        spark, [rows, moved, rows[:place] + rows[place + 1 :], [*rows, rows[place], rows[place]]]
    )
    assert len({old.text, new.text, shorter.text, doubled.text}) == 4
    assert (old.xor, old.total) != (new.xor, new.total)


@pytest.mark.req("Q4")
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(
            ["CAST(NULL AS int) AS a, 1 AS b", "1 AS a, CAST(NULL AS int) AS b"], id="null moves"
        ),
        pytest.param(["'' AS a", "CAST(NULL AS string) AS a"], id="empty is not null"),
        pytest.param(["'a' AS a, 'bc' AS b", "'ab' AS a, 'c' AS b"], id="text moves"),
        pytest.param(["1 AS a, 2 AS b", "2 AS a, 1 AS b"], id="values swap"),
        pytest.param(
            [
                "array(CAST(NULL AS int), 1) AS a",
                "array(1, CAST(NULL AS int)) AS a",
                "array(1) AS a",
                "CAST(array() AS array<int>) AS a",
                "CAST(NULL AS array<int>) AS a",
                "array(CAST(NULL AS int)) AS a",
            ],
            id="lists",
        ),
        pytest.param(
            [
                "array(array(1), array(2)) AS a",
                "array(array(1, 2)) AS a",
                "array(array(1, 2), CAST(array() AS array<int>)) AS a",
                "CAST(array(array()) AS array<array<int>>) AS a",
                "CAST(array(NULL) AS array<array<int>>) AS a",
                "CAST(array() AS array<array<int>>) AS a",
                "CAST(NULL AS array<array<int>>) AS a",
            ],
            id="nested lists",
        ),
        pytest.param(
            [
                "named_struct('x', 1, 'y', CAST(NULL AS int)) AS a",
                "named_struct('x', CAST(NULL AS int), 'y', 1) AS a",
                "named_struct('x', CAST(NULL AS int), 'y', CAST(NULL AS int)) AS a",
                "CAST(NULL AS struct<x: int, y: int>) AS a",
            ],
            id="structs",
        ),
        pytest.param(
            ["map(1, 2) AS a", "map(2, 1) AS a", "map(1, 2, 2, 1) AS a", "map(1, 1, 2, 2) AS a"],
            id="maps",
        ),
    ],
)
def test_different_rows_hash_differently(spark: SparkSession, values: list[str]) -> None:
    found = hashes(spark, [f"SELECT {value}" for value in values])
    assert len(set(found)) == len(values)


@pytest.mark.req("Q4")
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(["CAST(7 AS int) AS a", "CAST(7 AS bigint) AS a"], id="int to long"),
        pytest.param(["CAST(0.1 AS float) AS a", "CAST(CAST(0.1 AS float) AS double) AS a"],
                     id="float to double"),
        pytest.param(["CAST('-0.0' AS double) AS a", "CAST('0.0' AS double) AS a"], id="-0.0"),
        pytest.param(["CAST('NaN' AS double) AS a", "-CAST('NaN' AS double) AS a",
                      "CAST('NaN' AS float) AS a"], id="NaN"),
        pytest.param(["CAST(1.5 AS decimal(4,2)) AS a", "CAST(1.5 AS decimal(18,2)) AS a"],
                     id="decimal precision"),
        pytest.param(["1 AS a, 'x' AS b", "'x' AS b, 1 AS a"], id="column order"),
        pytest.param(["map(1, 2, 3, 4) AS a", "map(3, 4, 1, 2) AS a"], id="map order"),
        pytest.param(["named_struct('x', 1, 'y', 2) AS a", "named_struct('y', 2, 'x', 1) AS a"],
                     id="field order"),
        pytest.param(["timestamp'2024-01-01 00:00:00Z' AS a",
                      "timestamp'2024-01-01 02:00:00+02:00' AS a"], id="one instant"),
    ],
)  # fmt: skip
def test_the_same_row_hashes_alike(spark: SparkSession, values: list[str]) -> None:
    queries = [f"SELECT {value}" for value in values]
    assert len(set(hashes(spark, queries))) == 1
    assert len({shape_of(spark.sql(query)) for query in queries}) == 1


@pytest.mark.req("Q4")
def test_shapes_keep_apart_what_hashes_alike(spark: SparkSession) -> None:
    kinds = (
        "bigint",
        "decimal(10,0)",
        "decimal(10,2)",
        "decimal(20,2)",
        "double",
        "string",
        "binary",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "array<bigint>",
        "array<string>",
        "map<bigint,bigint>",
        "struct<a:bigint>",
        "struct<b:bigint>",
    )
    shapes = {shape_of(spark.sql(f"SELECT CAST(NULL AS {kind}) AS a")) for kind in kinds}
    assert len(shapes) == len(kinds)


@pytest.mark.req("Q4")
@pytest.mark.parametrize("value", ["NULL", "INTERVAL '1' DAY", "parse_json('1')"])
def test_types_without_a_canonical_form_are_refused(spark: SparkSession, value: str) -> None:
    frame = spark.sql(f"SELECT {value} AS a")
    with pytest.raises(Unsupported, match="no canonical row hash"):
        row_hash.row_hash_column(frame.schema)


def test_more_than_63_columns_have_a_mask_bit_each(spark: SparkSession) -> None:
    def query(null_at: int) -> str:
        columns = [f"{'NULL' if at == null_at else 'NULL' if at < 0 else 7} AS c{at:03d}"
                   for at in range(130)]  # fmt: skip
        return "SELECT " + ", ".join(columns).replace("NULL", "CAST(NULL AS int)")

    places = (0, 1, 62, 63, 64, 125, 126, 127, 129)
    assert len(set(hashes(spark, [query(at) for at in places]))) == len(places)


def test_column_names_with_dots_and_quotes_are_hashed(spark: SparkSession) -> None:
    first, second = hashes(spark, ["SELECT 1 AS `a.b``c`, 2 AS b", "SELECT 2 AS `a.b``c`, 1 AS b"])
    assert first != second


def test_ignored_columns_change_nothing(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS a, 'x' AS produced_by_run_id")
    plain = spark.sql("SELECT 1 AS a")
    ignore = ("produced_by_run_id",)
    found = frame.select(row_hash.row_hash_column(frame.schema, ignore)).collect()[0][0]
    assert found == plain.select(row_hash.row_hash_column(plain.schema)).collect()[0][0]
    assert row_hash.shape_digest(frame.schema, ignore) == row_hash.shape_digest(plain.schema)


def test_the_total_wraps_at_64_bits_and_does_not_overflow(spark: SparkSession) -> None:
    frame = spark.range(200_000)
    found = row_hash.frame_checksum(frame)
    each = [r[0] for r in frame.select(row_hash.row_hash_column(frame.schema)).collect()]
    xor = 0
    for value in each:
        xor ^= value & (2**64 - 1)
    assert (found.rows, found.xor, found.total) == (200_000, xor, sum(each) % 2**64)


@pytest.mark.req("Q4")
def test_the_documented_examples_are_what_is_computed(spark: SparkSession) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    examples = re.findall(r"^\| `([^|]+)` \| `(-?\d+)` \|$", text, re.MULTILINE)
    assert len(examples) >= 10
    queries = [f"SELECT {query}" for query, _ in examples]
    assert hashes(spark, queries) == [int(number) for _, number in examples]


def test_decimals_are_hashed_by_value(spark: SparkSession) -> None:
    data = [(Decimal("12345678901234567890.12"),), (Decimal("-0.01"),), (None,)]
    frame = spark.createDataFrame(data, "a decimal(38,2)")
    found = [row[0] for row in frame.select(row_hash.row_hash_column(frame.schema)).collect()]
    assert len(set(found)) == 3
