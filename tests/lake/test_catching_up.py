"""Live commits in the run's own partitions on Spark: caught up with, deletions kept, tombstones.

The oracle is Spark's own plain reading of the tables.
"""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.errors import TargetChanged
from tests.support.spark.lake import Lake
from tests.support.spark.modes import BY_PARTITION, JOB, Modes

OLD = ("1, 1, A, 10, 1", "2, 1, A, 10, 1", "2, 2, A, 10, 1", "3, 1, A, 10, 1", "4, 1, A, 10, 1")
NEW = ("1, 1, A, 10, 1", "2, 1, A, 99, 1", "2, 2, A, 99, 1", "3, 1, A, 99, 1", "4, 1, A, 10, 1")
FOLLOWS = {"safety": {"on_conflict": "catch_up"}}


def _modes(lake: Lake, **contract: Any) -> Modes:
    made = Modes(lake, **contract)
    made.holds(*OLD)
    made.source(*NEW)
    return made


def _plan(modes: Modes, **changes: Any) -> str:
    """Plan, approve, run and accept."""
    run, found = modes.validated(**BY_PARTITION, **changes)
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    modes.project.accept(run, by="lead")
    return run


@pytest.mark.req("U11")
def test_what_came_meanwhile_is_in_the_published_partitions(lake: Lake) -> None:
    modes = _modes(lake)
    run = _plan(modes, **FOLLOWS)
    modes.holds("3, 7, A, 70, 1")
    modes.source("3, 7, A, 77, 1")
    done = modes.project.publish(run, by="lead")
    assert done.run_id != run
    assert modes.rows("d", "k", "v") == [
        (1, 1, 10), (2, 1, 99), (2, 2, 99), (3, 1, 99), (3, 7, 77), (4, 1, 10),
    ]  # fmt: skip
    made = dict(modes.rows("d", "produced_by_run_id"))
    assert (made[2], made[3]) == (run, done.run_id)
    chunks = modes.project.chunks(done.run_id).chunks
    assert [chunk.carried_from for chunk in chunks] == [run, ""]


@pytest.mark.req("E3", "X12")
@pytest.mark.parametrize("isolation", ["clone", "branch"])
def test_deleted_rows_stay_deleted_by_publish_and_by_rollback(lake: Lake) -> None:
    modes = _modes(lake, deletions="reapply")
    # A chunk that is taken over without deleted rows never computes what it would reject.
    modes.transform = "judging"
    judging = JOB.replace("tenants", "judging").replace(
        "return rows.select(",
        'return rows.selectExpr("*", "IF(v < 0, \'low\', NULL) AS _reject_reason").select(',
    )
    judging = judging.replace("*more)", '"_reject_reason", *more)')
    lake.job(judging)
    run = _plan(modes)
    lake.sql("DELETE FROM {ns}.out WHERE d = date'2024-01-02' AND k = 2")
    done = modes.project.publish(run, by="lead")
    assert modes.rows("d", "k", "v") == [(1, 1, 10), (2, 1, 99), (3, 1, 99), (4, 1, 10)]
    checks = modes.project.status(done.run_id)
    assert checks.runs[0].state == "published"
    modes.require_intact(str(done.run_id))
    lake.sql("DELETE FROM {ns}.out WHERE d = date'2024-01-03' AND k = 1")
    lake.sql("INSERT INTO {ns}.out SELECT date'2024-01-05', 1, 'A', 1, 1, 'live', "
             + ", ".join("null" for _ in range(9)))  # fmt: skip
    modes.project.rollback(modes.product, to=0, reason="wrong", by="lead")
    assert modes.rows("d", "k", "v") == [(1, 1, 10), (2, 1, 10), (4, 1, 10), (5, 1, 1)]


@pytest.mark.req("E3")
def test_deleted_rows_block_publish_and_rollback_unless_the_contract_says_otherwise(
    lake: Lake,
) -> None:
    modes = _modes(lake)
    run = _plan(modes)
    modes.project.publish(run, by="lead")
    lake.sql("DELETE FROM {ns}.out WHERE d = date'2024-01-02' AND k = 2")
    with pytest.raises(TargetChanged, match=r"1 rows of .* were deleted") as raised:
        modes.project.rollback(modes.product, to=0, reason="wrong", by="lead")
    assert raised.value.data["conflicts"][0]["operation"] == "overwrite"
    assert modes.rows("d", "k", "v") == [(1, 1, 10), (2, 1, 99), (3, 1, 99), (4, 1, 10)]


@pytest.mark.req("E3")
def test_tombstoned_rows_are_neither_staged_nor_published_nor_brought_back(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.gone (day date, person bigint)")
    lake.sql("INSERT INTO {ns}.gone VALUES (date'2024-01-02', 2)")
    names = [{"table": lake.table("gone"), "columns": {"d": "day", "k": "person"}}]
    modes = _modes(lake, deletions="reapply", tombstones=names)
    run = _plan(modes)
    lake.sql("INSERT INTO {ns}.gone VALUES (date'2024-01-03', 1)")
    modes.source("3, 8, A, 80, 1")
    with pytest.raises(Exception, match=r"Does every partition keep rows\?|did not pass"):
        modes.project.publish(run, by="lead")
