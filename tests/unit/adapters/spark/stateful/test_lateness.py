"""Which partition a row is of, and by which columns rows can be sorted."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from lakehouse_backfill.adapters.spark.stateful.lateness import Cut, has_order
from lakehouse_backfill.domain.partitions import ScopeField

pytestmark = pytest.mark.req("X4")

WITH_MAP = T.StructType([T.StructField("m", T.MapType(T.StringType(), T.LongType()))])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (T.LongType(), True),
        (T.ArrayType(T.StringType()), True),
        (T.StructType([T.StructField("a", T.DateType())]), True),
        (T.MapType(T.StringType(), T.LongType()), False),
        (T.VariantType(), False),
        (WITH_MAP, False),
        (T.ArrayType(WITH_MAP), False),
    ],
    ids=["number", "list", "struct", "map", "variant", "map in a struct", "map in a list"],
)
def test_rows_are_sorted_by_columns_that_have_an_order(kind: T.DataType, expected: bool) -> None:
    assert has_order(kind) is expected


@pytest.mark.parametrize(
    ("transform", "kind", "unit"),
    [("identity", "date", "day"), ("day", "timestamptz", "day"), ("hour", "timestamp", "hour"),
     ("month", "date", "month"), ("year", "date", "year")],
)  # fmt: skip
def test_the_partition_of_a_row_has_the_unit_of_the_scope(
    transform: str, kind: str, unit: str
) -> None:
    field = ScopeField(column="d", transform=transform, type=kind)
    assert Cut.of("arrived", field) == Cut("arrived", unit)
