"""Keys that repeat: found without making every pair of their rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.local.diff.columns import resolve_diff_columns
from lakehouse_backfill.adapters.local.diff.compare import BatchComparison
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.duckdb_engine import LazyDuckDB, start_duckdb

pytestmark = pytest.mark.req("Q4")
SCHEMA = Schema(
    NestedField(1, "k", LongType(), required=False), NestedField(2, "v", LongType(), required=False)
)
MANY = 50_000


def _rows(keys: list[int], values: list[int]) -> pa.Table:
    names = pa.array([0] * len(keys), pa.int32())
    return pa.table({"c0": pa.array(keys), "c1": pa.array(values), "p": names})


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        # As pairs these would be 2,500 million.
        ([7] * MANY, [7] * MANY, (1, 1, 0, 1)),
        ([7] * MANY, list(range(MANY)), (MANY - 1, MANY - 1, 0, 1)),
        (list(range(MANY)), [*range(MANY - 2), -1, -1], (2, 2, 0, 1)),
        ([-1, -1, *range(2, MANY)], list(range(MANY)), (2, 2, 1, 1)),
        (list(range(MANY)), list(range(MANY)), (0, 0, 1, 0)),
    ],
)
def test_repeated_keys_are_found_on_either_side(tmp_path, old, new, counts) -> None:
    """The last value of each side differs; all others are the key's place."""
    columns = resolve_diff_columns(SCHEMA, SCHEMA, ("k",), (), ())
    tally = Tally([None], columns, 0)
    comparison = BatchComparison(LazyDuckDB(lambda: start_duckdb(str(tmp_path))), tally, None)
    values = list(range(MANY))
    comparison.compare_batch(_rows(old, values), _rows(new, [*values[:-1], -5]))
    comparison.close()
    found = tally.summary()
    assert (found.added, found.removed, found.changed, tally.duplicate_keys) == counts
