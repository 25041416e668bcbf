"""Random pairs of small tables: the local differ against the row-by-row oracle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, EqualTo, IsNull
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, StringType

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from tests.contract.differ_cases import Built, Maker, append, arrow, check
from tests.support.oracles.diff import Question, Row

COLUMNS: dict[str, Any] = {"p": LongType(), "k": LongType(), "x": DoubleType(), "s": StringType()}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "p": st.sampled_from([None, -1, 0, 2]),
            "k": st.sampled_from([None, 1, 2, 3]),
            "x": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
            "s": st.sampled_from([None, "", "a"]),
        }
    ),
    max_size=12,
)
KEYS = st.sampled_from([(), ("k",), ("p", "k"), ("k", "s")])
_numbers = itertools.count(1)


def label(row: Row) -> str:
    return "null" if row["p"] is None else str(row["p"])


@pytest.mark.req("Q5")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(old=ROWS, new=ROWS, key=KEYS, is_partitioned=st.booleans())
def test_any_two_contents_are_compared_as_row_by_row(
    catalog: SqlCatalog,
    old: list[Row],
    new: list[Row],
    key: tuple[str, ...],
    *,
    is_partitioned: bool,
) -> None:
    """The second content replaces the first, except for partitions that hold the same rows."""
    make = Maker(catalog, f"random{next(_numbers)}")
    table = make.table(COLUMNS, [("p", IdentityTransform())] if is_partitioned else [])
    before = append(table, old)
    if is_partitioned:
        for value in (None, -1, 0, 2):
            rows = [row for row in new if row["p"] == value]
            # repr, because NaN is not equal to itself.
            if repr(rows) != repr([row for row in old if row["p"] == value]):
                what = IsNull("p") if value is None else EqualTo("p", value)
                table.overwrite(arrow(table, rows), overwrite_filter=what)
    else:
        table.overwrite(arrow(table, new), overwrite_filter=AlwaysTrue())
    after = table.metadata.current_snapshot_id
    question = Question(
        old, new, tuple(COLUMNS), key, label=label if is_partitioned else lambda _: None
    )
    if is_partitioned:
        question.duplicates_in = {
            label(row)
            for row in (*old, *new)
            if repr([r for r in old if label(r) == label(row)])
            != repr([r for r in new if label(r) == label(row)])
        }
    built = Built(make.request(table, before, after, key), question)
    check(LocalDiffer(catalog, batch_rows=7), built)
    check(LocalDiffer(catalog, batch_rows=3, large_rows=6), built)
