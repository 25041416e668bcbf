"""Bring your own writer on a real table: a Spark session that knows nothing of us writes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from lakehouse_backfill.errors import ChecksFailed, Unsupported, WriteForbidden
from lakehouse_backfill.results.runs import ShadowOpenResult
from tests.support.spark.modes import BY_PARTITION, Make, Modes, expected, seeded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.lake, pytest.mark.req("X11")]


class Theirs:
    """The other engine: a session with a catalog, and caches, of its own."""

    def __init__(self, modes: Modes, opened: ShadowOpenResult) -> None:
        self.spark: SparkSession = modes.lake.spark.newSession()
        self.table = f"{modes.lake.name}.{opened.table}"
        self._source = f"{modes.lake.name}.{modes.lake.table('src')}"
        self._lineage: dict[str, Any] = dict(opened.lineage)

    def rows(self, *days: int) -> DataFrame:
        """Give what their job makes of the source's rows of these days."""
        wanted = self.spark.table(self._source).where(F.dayofmonth("d").isin(*days))
        rows = wanted.select("d", "k", "tenant", "v", "ver")
        fields = self.spark.table(self.table).schema.fields[len(rows.columns) :]
        values = self._lineage | {"produced_at": "2024-03-01 10:00:00"}
        return rows.select(
            "*", *(F.lit(values.get(one.name)).cast(one.dataType).alias(one.name) for one in fields)
        )

    def write(self, rows: DataFrame) -> None:
        """Replace the partitions of these rows, as engines do by default: by copy-on-write."""
        rows.writeTo(self.table).overwritePartitions()


@pytest.fixture
def modes(make: Make) -> Modes:
    return seeded(make)


def opened(modes: Modes) -> tuple[str, Theirs]:
    """Plan, approve and open a run that another engine writes; gives it and that engine."""
    run_id = modes.plan(transform={"writer": "external"}, **BY_PARTITION)
    found = modes.project.shadow_open(run_id, "ann")
    assert (found.state, found.partitions) == ("paused", ("2024-01-02", "2024-01-03"))
    return run_id, Theirs(modes, found)


def test_what_another_engine_wrote_is_judged_published_and_rolled_back(modes: Modes) -> None:
    before = modes.rows()
    run_id, theirs = opened(modes)
    theirs.write(theirs.rows(2, 3))
    closed = modes.project.shadow_close(run_id, "ann")
    assert (closed.state, closed.chunks_done, closed.rows) == ("staged", 2, 6)
    found = modes.project.validate(run_id, "ann")
    assert found.state == "validated", [c for c in found.checks if not c.passed]
    assert modes.rows() == before
    modes.publish(run_id)
    assert modes.rows() == expected(modes, lambda row: row[0] in (2, 3))
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    assert modes.rows() == before


def test_rows_outside_the_scope_are_refused_and_can_be_put_right(modes: Modes) -> None:
    run_id, theirs = opened(modes)
    theirs.write(theirs.rows(2, 3, 4))
    with pytest.raises(WriteForbidden, match="outside the run's partitions: 2024-01-04"):
        modes.project.shadow_close(run_id, "ann")
    assert modes.rows() == expected(modes, lambda row: False)
    # The shadow as it was opened, and once more.
    name, base = theirs.table, modes.head().snapshot_id
    theirs.spark.catalog.refreshTable(name)
    theirs.spark.sql(f"CALL {modes.lake.name}.system.rollback_to_snapshot('{name}', {base})")
    theirs.write(theirs.rows(2, 3))
    assert modes.project.shadow_close(run_id, "ann").state == "staged"


def test_a_merge_on_read_write_is_refused(modes: Modes) -> None:
    run_id, theirs = opened(modes)
    theirs.write(theirs.rows(2, 3))
    theirs.spark.sql(
        f"ALTER TABLE {theirs.table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    )
    theirs.spark.sql(f"DELETE FROM {theirs.table} WHERE d = date'2024-01-02' AND k = 1")
    with pytest.raises(Unsupported, match="has 1 delete files \\(merge-on-read\\) of this run"):
        modes.project.shadow_close(run_id, "ann")


def test_a_writer_that_began_before_the_close_commits_nothing_after_it(
    modes: Modes, tmp_path: Path
) -> None:
    run_id, theirs = opened(modes)
    theirs.write(theirs.rows(2, 3))
    started, go = tmp_path / "started", tmp_path / "go"

    def late(value: int) -> int:
        started.touch()
        while not go.exists():
            time.sleep(0.02)
        return value + 5

    # By a function without hints: Spark guesses by those what kind it is.
    waiting = F.udf(lambda value: late(value), "bigint")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(theirs.write, theirs.rows(2).withColumn("v", waiting("v")))
        try:
            give_up = time.monotonic() + 60
            while not started.exists() and time.monotonic() < give_up:
                time.sleep(0.02)
            modes.project.shadow_close(run_id, "ann")
        finally:
            go.touch()
        with pytest.raises(Exception, match="UUID does not match"):
            writing.result()
    # Whoever loads the table again can write; what was fingerprinted is then not what is there.
    theirs.spark.catalog.refreshTable(theirs.table)
    theirs.write(theirs.rows(2).withColumn("v", F.col("v") + 5))
    with pytest.raises(ChecksFailed, match="was written after it was closed"):
        modes.project.validate(run_id, "ann")
    modes.project.shadow_close(run_id, "ann")
    assert modes.project.validate(run_id, "ann").state == "validated"
    modes.publish(run_id)
    changed = [row[3] for row in modes.rows() if row[0] == 2]
    assert changed == [1026, 1027, 1028]
