"""Each translated expectation against Great Expectations, on random rows: verdict and count.

What Great Expectations finds on Spark is compared with what Spark counts and, where they judge,
with what Arrow counts and what Great Expectations finds with pandas. The suite has expectations
that hold, and others that do not.
"""

from __future__ import annotations

import json
import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.local.inspecting import count_breaking
from lakehouse_backfill.adapters.quality.few_rows import FewRows
from lakehouse_backfill.adapters.quality.judge import (
    ExpectationsJudge,
    _quiet_library,
    _run_expectations,
    _run_near,
    to_check_result,
)
from lakehouse_backfill.adapters.quality.suite_files import load_suite
from lakehouse_backfill.adapters.quality.translation import _TRANSLATORS
from lakehouse_backfill.adapters.spark.measuring.inspecting import count_rows_breaking
from lakehouse_backfill.domain.checks import CheckResult, Matches, RowCount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.lake

TYPES = {
    "i": "int", "n": "long", "m": "long", "f": "float", "x": "double", "nan": "double",
    "s": "string", "t": "string", "d": "date", "e": "date", "ts": "timestamp",
    "at": "timestamptz", "b": "boolean", "amount": "decimal(9,2)",
}  # fmt: skip
SPARK_TYPES = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}
SCHEMA = ", ".join(f"{name} {SPARK_TYPES.get(kind, kind)}" for name, kind in TYPES.items())
ARROW = pa.schema(
    {
        "i": pa.int32(), "n": pa.int64(), "m": pa.int64(), "f": pa.float32(), "x": pa.float64(),
        "nan": pa.float64(), "s": pa.large_string(), "t": pa.large_string(), "d": pa.date32(),
        "e": pa.date32(), "ts": pa.timestamp("us"), "at": pa.timestamp("us", "UTC"),
        "b": pa.bool_(), "amount": pa.decimal128(9, 2),
    }.items()
)  # fmt: skip
TEXTS = ["", "a", "ab", "AB-12", "x1", "é", "日本", "a.b", "a b", "zz", "12", "ab12", "\U0001f600"]
DAY = date(2024, 1, 1)
START = datetime(2024, 1, 1, tzinfo=timezone.utc)


def a_row(chance: random.Random, at: int) -> tuple[Any, ...]:
    day = DAY + timedelta(days=chance.randrange(6))
    moment = START + timedelta(hours=chance.randrange(100))
    return (
        chance.randrange(-4, 5),
        at if at % 9 else 4,  # Some stand twice.
        chance.choice([2**53 + 1, -(2**62), chance.randrange(10)]),
        chance.choice([0.1, 1.5, -0.0, 3.0]),
        chance.uniform(-2, 2),
        chance.choice([float("nan"), 1.0, -1.0]),
        chance.choice(TEXTS),
        chance.choice([*TEXTS, "line\nend"]),
        day,
        DAY + timedelta(days=chance.randrange(6)),
        moment.replace(tzinfo=None),
        moment,
        chance.random() < 0.5,
        Decimal(chance.randrange(-500, 500)) / 100,
    )


def rows_of(seed: int, size: int = 60) -> list[tuple[Any, ...]]:
    """Give random rows, a tenth of whose values are null; those of the first column never are."""
    chance = random.Random(seed)
    rows = []
    for at in range(size):
        values = list(a_row(chance, at))
        for column in range(1, len(values)):
            if chance.random() < 0.1:
                values[column] = None
        rows.append(tuple(values))
    return rows


def entry(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs}


def between(column: str, low: Any = None, high: Any = None, **more: Any) -> dict[str, Any]:
    given = {"min_value": low, "max_value": high}
    bounds = {name: value for name, value in given.items() if value is not None}
    return entry("expect_column_values_to_be_between", column=column, **bounds, **more)


def greater(first: str, second: str, **more: Any) -> dict[str, Any]:
    kind = "expect_column_pair_values_a_to_be_greater_than_b"
    return entry(kind, column_A=first, column_B=second, **more)


def lengths(**bounds: Any) -> dict[str, Any]:
    return entry("expect_column_value_lengths_to_be_between", column="s", **bounds)


NOT_NULL, IN_SET = "expect_column_values_to_not_be_null", "expect_column_values_to_be_in_set"
NOT_IN_SET, UNIQUE = "expect_column_values_to_not_be_in_set", "expect_column_values_to_be_unique"
REGEX = "expect_column_values_to_match_regex"
NO_REGEX = "expect_column_values_to_not_match_regex"
ROWS = "expect_table_row_count_to_be_between"
#: Those that fail cost Great Expectations a job each, on Spark: there are few of them.
ENTRIES = [
    entry(NOT_NULL, column="i"),
    entry(NOT_NULL, column="nan"),
    between("i", -4.0, 4.0, mostly=1),
    between("i", -4, 4, strict_min=True),
    between("n", 0, 61),
    between("m", high=float(2**53 - 1)),
    between("f", 0.1, 3),
    between("x", -2.0, 2.0),
    between("nan", -1, 1),
    between("nan", -2),
    between("d", "2024-01-01", "2024-01-06"),
    between("d", high="2024-01-06", strict_max=True),
    between("ts", "2024-01-01", "2024-02-01"),
    between("ts", "2024-01-02T05:00:00"),
    between("at", "2024-01-01", "2024-02-01"),
    between("at", "2024-01-01 00:00:00", strict_min=True),
    entry(IN_SET, column="s", value_set=TEXTS),
    entry(IN_SET, column="i", value_set=[*range(-4, 5), 2**40]),
    entry(IN_SET, column="m", value_set=[2**53, *range(10)]),
    entry(IN_SET, column="d", value_set={"$PARAMETER": "days"}),
    entry(NOT_IN_SET, column="s", value_set=["never"]),
    entry(NOT_IN_SET, column="i", value_set=[0, 1]),
    entry(UNIQUE, column="n"),
    entry(REGEX, column="s", regex="^[^q]*$"),
    entry(REGEX, column="s", regex=r"^(?:\w|AB-\d{2}|.b)*$"),
    entry(REGEX, column="t", regex="d$"),
    entry(NO_REGEX, column="s", regex="[A-Z]{3}"),
    entry(NO_REGEX, column="s", regex="^z+"),
    lengths(min_value=0, max_value=5),
    lengths(min_value=1),
    entry("expect_column_value_lengths_to_equal", column="s", value=2),
    greater("n", "i"),
    greater("d", "e", or_equal=True),
    greater("nan", "nan", or_equal=True),
    greater("i", "i", or_equal=True),
    entry(ROWS, min_value=1, max_value=61),
    entry(ROWS, min_value=62),
]
#: What counts do not cover, and pandas judges as Spark does.
PANDAS_ONLY = [
    {**between("i", -2, mostly=0.6), "severity": "warning"},
    entry(IN_SET, column="s", value_set=["a", "ab"], mostly=0.1),
    entry("expect_compound_columns_to_be_unique", column_list=["i", "d"]),
    entry("expect_compound_columns_to_be_unique", column_list=["i", "d", "s", "t", "e"]),
    entry("expect_table_columns_to_match_ordered_list", column_list=[*TYPES]),
    entry("expect_table_columns_to_match_ordered_list", column_list=[*TYPES][1:]),
]
PARAMETERS: dict[str, list[Any]] = {
    "days": [DAY, DAY + timedelta(days=1)],
}


def unexpected(result: Any) -> int:
    """Give the count in a result of Great Expectations; its details hold it."""
    return int(isinstance(result.observed, int) and result.observed)


def judged_once(file: Path, frame: DataFrame) -> tuple[list[CheckResult], dict[int, CheckResult]]:
    """Give the results on Spark, without a second run for examples, and those with pandas."""
    suite, few = load_suite(file, PARAMETERS, tuple(TYPES)), FewRows.of(frame)
    entries = [each for _, each in suite.expectations]
    assert few is not None
    near = [at for at, each in enumerate(entries) if few.judges(each, PARAMETERS)]
    with _quiet_library():
        found = _run_expectations(suite, range(len(entries)), frame, PARAMETERS, 0)
        of_few = _run_near(suite, near, few, PARAMETERS) if near else {}
    results = [
        {at: to_check_result(entries[at], each, "quality", PARAMETERS) for at, each in one.items()}
        for one in (found, of_few)
    ]
    return [results[0][at] for at in range(len(entries))], results[1]


def compared(
    spark: SparkSession,
    folder: Path,
    rows: list[tuple[Any, ...]],
    compare: list[dict[str, Any]] = ENTRIES,
) -> dict[str, Any]:
    """Compare all on some rows; give the differences, and what Arrow left to Spark."""
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1).cache()
    suite = {"name": "all", "expectations": compare}
    (folder / "suite.json").write_text(json.dumps(suite), encoding="utf-8")
    judge = ExpectationsJudge(folder)
    entries = judge.entries("suite.json", PARAMETERS, TYPES)
    left = [compare[one.number] for one in entries if one.rule is None]
    assert [one for one in left if one not in PANDAS_ONLY] == [], "each of these has a translation"
    results, of_few = judged_once(folder / "suite.json", frame)
    rules = [one.rule for one in entries if one.rule is not None]
    of_rows = tuple(rule for rule in rules if not isinstance(rule, RowCount))
    number, broken = count_rows_breaking(frame, of_rows)
    frame.unpersist()
    assert number == len(rows)
    table = pa.Table.from_arrays(
        [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(ARROW.types)],
        schema=ARROW,
    )
    counts, differing, by_spark = iter(broken), [], []
    for one, result in zip(entries, results, strict=True):
        found = []
        if one.number in of_few:
            found.append((of_few[one.number].passed, unexpected(of_few[one.number])))
        if isinstance(one.rule, RowCount):
            found += [(one.rule.allows(len(rows)), len(rows))]
        elif one.rule is not None:
            count = next(counts)
            near = count_breaking(table, one.rule)
            found += [(count == 0, count)]
            found += [(near == 0, near)] if near is not None else []
            by_spark += [one.rule] if near is None else []
        if any(each != (result.passed, unexpected(result)) for each in found):
            differing.append((compare[one.number], result.passed, result.observed, found))
    return {
        "differing": differing,
        "by spark": by_spark,
        "with pandas": [compare[at]["type"] for at in sorted(of_few)],
        "verdicts": [one.passed for one in results],
    }


@pytest.mark.req("Q3", "Q9")
def test_a_translation_gives_the_verdict_and_the_count_of_great_expectations(
    spark: SparkSession, tmp_path: Path
) -> None:
    nothing = (None,) * len(TYPES)
    found = compared(spark, tmp_path, [*rows_of(seed=1), nothing])
    assert found["differing"] == []
    # Both verdicts are there, for most expectations by Arrow too.
    assert min(map(found["verdicts"].count, (True, False))) > 10
    assert len(found["by spark"]) < len(ENTRIES) / 5
    assert len(found["with pandas"]) > len(ENTRIES) / 2
    # Where lines end, and NaN is compared, engines differ.
    assert any(isinstance(rule, Matches) for rule in found["by spark"])


@pytest.mark.req("Q3", "Q9")
def test_of_plain_rows_pandas_judges_all_that_is_translated_as_spark_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No nulls, no NaN, no text that Java's and Python's patterns may read in different ways."""
    chance, rows = random.Random(2), []
    for at in range(40):
        row = dict(zip(TYPES, a_row(chance, at), strict=True))
        texts = {
            name: row[name] if row[name].isprintable() and row[name].isascii() else "q"
            for name in "st"
        }
        rows.append(tuple((row | texts | {"nan": row["x"]}).values()))
    chosen = [
        one
        for one in ENTRIES
        if one["type"] in (REGEX, NO_REGEX) or "pair" in one["type"] or "nan" in str(one["kwargs"])
    ]
    chosen += [between("d", "2024-01-02", "2024-01-03"), *PANDAS_ONLY]
    found = compared(spark, tmp_path, rows, chosen)
    assert found["differing"] == []
    assert found["with pandas"] == [one["type"] for one in chosen]


@pytest.mark.req("Q3", "Q9")
def test_a_translation_agrees_on_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    one_of_each = list({one["type"]: one for one in ENTRIES}.values())
    assert compared(spark, tmp_path, [], one_of_each)["differing"] == []


def test_every_translator_has_an_entry_that_is_compared() -> None:
    assert {one["type"] for one in ENTRIES} == set(_TRANSLATORS)


@pytest.mark.req("Q3")
def test_rows_that_python_cannot_hold_are_judged_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Days past year 9999, also in a struct, and texts of any length stay where they are."""
    frame = spark.sql(
        "select id, date_add(date'2024-01-01', 3000000) as late, "
        "named_struct('late', date_add(date'2024-01-01', 3000000)) as parts, "
        "repeat('x', 100000) as page, cast('b' as binary) as bytes from range(3)"
    )
    names = ["late", "parts", "page", "bytes", "id"]
    suite = {"name": "all", "expectations": [entry(NOT_NULL, column=name) for name in names]}
    (tmp_path / "suite.json").write_text(json.dumps(suite), encoding="utf-8")
    found = ExpectationsJudge(tmp_path).judge(frame, "suite.json", {}, "quality")
    assert [(one.passed, one.detail) for one in found] == [(True, "3 rows")] * 5
    assert [one.engine for one in found] == ["", "", "", "", "pandas"]
    few = FewRows.of(frame)
    assert few is not None
    assert few.rows.column_names == ["id", "late", "page"]
    assert few.rows.nbytes < 3000
