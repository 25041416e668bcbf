"""What came to an input between two pins, on real commits: late, changed, deleted.

The oracle is a plain multiset difference of the rows that Spark reads at both pins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date
from functools import reduce
from itertools import combinations
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark.attribution import row_changes
from lakehouse_backfill.domain.comparison.attribution import Cause
from tests.support.spark.lake import Lake, PlanMaker

CAUSES: tuple[Cause, ...] = ("late_input", "deletion", "upstream")
ROWS = ((1, 1, 10), (1, 2, 20), (2, 3, 30), (2, 4, 40), (2, 4, 40))
APPEND = "INSERT INTO {ns}.src VALUES (date'2024-01-01', 9, 90), (date'2024-01-02', 9, 91)"
UPDATE = "UPDATE {ns}.src SET v = v + 1 WHERE k = 1"
DELETE = "DELETE FROM {ns}.src WHERE k = 2"
ONE_TWIN = """
INSERT OVERWRITE {ns}.src VALUES (date'2024-01-01', 1, 10), (date'2024-01-01', 2, 20),
(date'2024-01-02', 3, 30), (date'2024-01-02', 4, 40)
"""
UPSERT = """
MERGE INTO {ns}.src t USING
(SELECT date'2024-01-01' d, 1 k, 11 v UNION SELECT date'2024-01-01', 8, 80) s
ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *
"""
#: What was done -> rows late, rows deleted, rows as they were and as they are; with a key, without.
CASES: dict[str, tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]] = {
    "appended": ((APPEND,), (2, 0, 0, 0), (2, 0, 0, 0)),
    "changed": ((UPDATE,), (0, 0, 1, 1), (0, 0, 1, 1)),
    "deleted": ((DELETE,), (0, 1, 0, 0), (0, 1, 0, 0)),
    "appended and changed": ((APPEND, UPDATE), (2, 0, 1, 1), (2, 0, 1, 1)),
    "appended and deleted": ((DELETE, APPEND), (2, 1, 0, 0), (2, 1, 0, 0)),
    "one of two equal rows went": ((ONE_TWIN,), (0, 1, 0, 0), (0, 1, 0, 0)),
    # Without a key a merged row that is new is not told from one that was changed.
    "upserted": ((UPSERT,), (1, 0, 1, 1), (0, 0, 1, 2)),
    "changed and back": ((UPDATE, "UPDATE {ns}.src SET v = 10 WHERE k = 1"), (0,) * 4, (0,) * 4),
    "all at once": ((APPEND, UPDATE, DELETE), (2, 1, 1, 1), (2, 0, 2, 1)),
}


@pytest.fixture
def source(lake: Lake) -> Callable[[tuple[str, ...]], tuple[Any, Any]]:
    """Give the pins before and after some commits."""

    def commit(statements: tuple[str, ...]) -> tuple[Any, Any]:
        for short in ("src", "out"):
            lake.create(short, (("d", "date"), ("k", "long"), ("v", "long")))
        lake.append("src", *((date(2024, 1, day), k, v) for day, k, v in ROWS))
        maker = PlanMaker(lake)
        before = maker.make().resolved.sources[0]
        for statement in statements:
            lake.sql(statement)
        return before, maker.make().resolved.sources[0]

    return commit


@pytest.mark.long
@pytest.mark.req("Q5")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_that_came_and_went_are_told_apart(
    lake: Lake, source: Callable[[tuple[str, ...]], tuple[Any, Any]], case: Any
) -> None:
    statements, *expected = case
    pins = source(statements)
    frames = [lake.tables.read(pin.table, pin.snapshot_id) for pin in pins]
    before, after = (Counter(map(tuple, frame.collect())) for frame in frames)
    for key, counts in zip((("d", "k"), ()), expected, strict=True):
        parts = row_changes.split_input(lake.tables, pins, (frames[0], frames[1]), key)
        names = (
            row_changes.LATE_PART,
            row_changes.DELETED_PART,
            row_changes.CHANGED_OLD_PART,
            row_changes.CHANGED_NEW_PART,
        )
        assert tuple(parts.counts.get(name, 0) for name in names) == counts
        added, removed = after - before, before - after
        assert (added.total(), removed.total()) == (counts[0] + counts[3], counts[1] + counts[2])
        states = state_rows(parts)
        assert states[()] == before
        assert states[CAUSES] == after
        for cause in CAUSES:
            swapped = difference(states[(cause,)], before)
            others = tuple(each for each in CAUSES if each != cause)
            assert swapped == difference(states[others], after)
        parts.rows.unpersist()


def state_rows(parts: row_changes.InputParts) -> dict[tuple[Cause, ...], Counter[Any]]:
    """Read the rows of every state, in one query."""
    found: dict[tuple[Cause, ...], Counter[Any]] = {
        swapped: Counter() for size in range(4) for swapped in combinations(CAUSES, size)
    }
    labelled = [
        parts.state_rows(swapped).withColumn("state", F.lit(place))
        for place, swapped in enumerate(found)
    ]
    states = list(found)
    for *values, place in reduce(DataFrame.unionAll, labelled).collect():
        found[states[place]][tuple(values)] += 1
    return found


def difference(one: Counter[Any], other: Counter[Any]) -> Counter[Any]:
    return (one - other) | (other - one)
