"""What came to an input between two pins, on real commits: late, changed, deleted.

The oracle is a plain multiset difference of the rows that Spark reads at both pins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.attribution import row_changes
from tests.support.spark.lake import Lake, PlanMaker

ROWS = "(1, 1, 10), (1, 2, 20), (2, 3, 30), (2, 4, 40), (2, 4, 40)"
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
        lake.sql("CREATE TABLE {ns}.src (d date, k bigint, v bigint) PARTITIONED BY (d)")
        lake.sql("CREATE TABLE {ns}.out (d date, k bigint, v bigint) PARTITIONED BY (d)")
        values = ROWS.replace("(1,", "(date'2024-01-01',").replace("(2,", "(date'2024-01-02',")
        lake.sql(f"INSERT INTO {{ns}}.src VALUES {values}")
        maker = PlanMaker(lake)
        before = maker.make().resolved.sources[0]
        for statement in statements:
            lake.sql(statement)
        return before, maker.make().resolved.sources[0]

    return commit


@pytest.mark.req("Q5")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_that_came_and_went_are_told_apart(
    lake: Lake, source: Callable[[tuple[str, ...]], tuple[Any, Any]], case: Any
) -> None:
    statements, *expected = case
    pins = source(statements)
    frames = [dataframes.read_table(lake.spark, "lake", pin.table, pin.snapshot_id) for pin in pins]
    for key, counts in zip((("d", "k"), ()), expected, strict=True):
        parts = row_changes.split_input(lake.spark, "lake", pins, (frames[0], frames[1]), key)
        names = (
            row_changes.LATE_PART,
            row_changes.DELETED_PART,
            row_changes.CHANGED_OLD_PART,
            row_changes.CHANGED_NEW_PART,
        )
        assert tuple(parts.counts.get(name, 0) for name in names) == counts
        every = ("late_input", "deletion", "upstream")
        assert rows(parts.state_rows(())) == rows(frames[0])
        assert rows(parts.state_rows(every)) == rows(frames[1])
        late, gone = rows(frames[1]) - rows(frames[0]), rows(frames[0]) - rows(frames[1])
        assert (late.total(), gone.total()) == (counts[0] + counts[3], counts[1] + counts[2])
        for cause in every:
            others = [each for each in every if each != cause]
            swapped = rows(parts.state_rows([cause])) - rows(frames[0])
            swapped |= rows(frames[0]) - rows(parts.state_rows([cause]))
            left = rows(parts.state_rows(others)) - rows(frames[1])
            left |= rows(frames[1]) - rows(parts.state_rows(others))
            assert swapped == left
        parts.rows.unpersist()


def rows(frame: Any) -> Counter[Any]:
    return Counter(tuple(row) for row in frame.collect())
