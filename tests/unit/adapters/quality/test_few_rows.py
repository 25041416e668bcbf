"""Which expectations are judged on few rows in this process, and which stay on Spark."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.quality.few_rows import MAX_TEXT, FewRows

TYPES = {
    "id": "long", "day": "date", "late": "date", "at": "timestamptz", "note": "string",
    "page": "string", "rate": "double", "amount": "decimal(9,2)", "parts": "struct<a:int>",
}  # fmt: skip
ROWS = FewRows(
    pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "day": pa.array([date(2024, 1, 1), None], pa.date32()),
            # Year 10183: Python has no such day.
            "late": pa.array([3_000_000, 0], pa.int32()).cast(pa.date32()),
            "at": pa.array([10**18, 0], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "note": ["a", "x" * MAX_TEXT],
            "page": ["a", "x" * (MAX_TEXT + 1)],
            "rate": [1.0, float("nan")],
            "amount": pa.array([None, None], pa.decimal128(9, 2)),
        }
    ),
    TYPES,
)
NOT_NULL, UNIQUE = "expect_column_values_to_not_be_null", "expect_column_values_to_be_unique"
IN_SET, COMPOUND = "expect_column_values_to_be_in_set", "expect_compound_columns_to_be_unique"
LENGTH = "expect_column_value_lengths_to_be_between"
DAYS: dict[str, Any] = {
    "days": [date(2024, 1, 1), date(1678, 1, 1), date(2261, 12, 31)],
    "first": [date(1, 1, 1)],
    "last": [date(9999, 12, 31)],
}


@pytest.mark.req("Q3")
@pytest.mark.parametrize(
    ("kind", "kwargs", "is_here"),
    [
        (NOT_NULL, {"column": "id"}, True),
        (NOT_NULL, {"column": "amount"}, True),
        (NOT_NULL, {"column": "parts"}, False),
        (NOT_NULL, {"column": "late"}, False),
        (NOT_NULL, {"column": "at"}, False),
        (NOT_NULL, {"column": "rate"}, False),
        (UNIQUE, {"column": "note"}, True),
        (UNIQUE, {"column": "page"}, False),
        (LENGTH, {"column": "note", "max_value": MAX_TEXT}, True),
        (LENGTH, {"column": "page", "max_value": MAX_TEXT}, False),
        (COMPOUND, {"column_list": ["id", "note"]}, True),
        (COMPOUND, {"column_list": ["id", "day"]}, False),
        (COMPOUND, {"column_list": ["id", "late"]}, False),
        (COMPOUND, {"column_list": ["id", "page"]}, False),
        (IN_SET, {"column": "day", "value_set": {"$PARAMETER": "days"}}, True),
        (IN_SET, {"column": "day", "value_set": {"$PARAMETER": "first"}}, False),
        (IN_SET, {"column": "day", "value_set": {"$PARAMETER": "last"}}, False),
    ],
)
def test_what_pandas_cannot_hold_stays_on_spark(
    kind: str, kwargs: dict[str, Any], is_here: bool
) -> None:
    assert ROWS.judges({"type": kind, "kwargs": kwargs}, DAYS) is is_here


def test_columns_that_stay_on_spark_hold_nothing_here() -> None:
    frame = ROWS.frame
    assert list(frame.columns) == list(TYPES)
    left = [name for name in TYPES if frame[name].isna().all()]
    assert left == ["late", "at", "page", "rate", "amount", "parts"]
    assert list(frame["day"].dropna().dt.date) == [date(2024, 1, 1)]
    assert list(frame["note"]) == ["a", "x" * MAX_TEXT]


def test_a_missing_time_is_no_example() -> None:
    entry = {"type": NOT_NULL, "kwargs": {"column": "day"}}
    assert ROWS.shown(entry, ["NaT", "2024-01-01T00:00:00"]) == [None, "2024-01-01"]


class Unreadable:
    """A frame of Spark, one of whose files is lost."""

    dtypes = (("id", "bigint"), ("note", "string"))

    def __getitem__(self, name: str) -> Unreadable:
        return self

    def substr(self, *_: int) -> Unreadable:
        return self

    def alias(self, _: str) -> Unreadable:
        return self

    def select(self, *_: object) -> Unreadable:
        return self

    def limit(self, _: int) -> Unreadable:
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 (Spark's name)
        raise RuntimeError("Failed to open input stream")


def test_rows_that_cannot_be_read_are_left_to_the_judge_that_says_so() -> None:
    assert FewRows.of(Unreadable()) is None
