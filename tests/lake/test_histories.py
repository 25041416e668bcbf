"""Histories of events in Spark: the same rows as in this process, at any size."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse_backfill.case_histories import LEAST_CASES, CaseHistory
from lakehouse_backfill.histories import EventHistory
from tests.support.spark.lake import Lake
from tests.unit.test_histories import BAD, rows_of

pytestmark = [pytest.mark.lake, pytest.mark.req("T12")]


def test_spark_computes_the_rows_of_this_process(lake: Lake) -> None:
    made = BAD.frame(lake.spark, partitions=3)
    found = pa.Table.from_pandas(made.toPandas(), preserve_index=False)
    expected = BAD.table()
    assert found.column_names == expected.column_names
    assert rows_of(found.cast(expected.schema)) == rows_of(expected)


def test_the_first_rows_of_a_billion_events_are_there_at_once(lake: Lake) -> None:
    huge = EventHistory(events=1_000_000_000, seed=1)
    found = huge.frame(lake.spark, partitions=4_000).limit(3).collect()
    ids = next(huge.batches(100))["event_id"].to_pylist()
    assert {row["event_id"] for row in found} <= set(ids)


@pytest.mark.parametrize("rows", ["events", "carried", "census"])
def test_spark_computes_the_cases_of_this_process(lake: Lake, rows: str) -> None:
    history = CaseHistory(LEAST_CASES)
    expected: pa.Table = getattr(history, rows)()
    made = getattr(history, f"{rows}_frame")(lake.spark)
    found = made.toArrow().select(expected.column_names).cast(expected.schema)
    order = [(name, "ascending") for name in expected.column_names]
    assert found.sort_by(order).equals(expected.sort_by(order))
