"""A run on a Spark Connect server is cut off by another process: its tag is the server's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.errors import RunPaused
from tests.support.spark.declared import JOBS
from tests.support.spark.restating import RestateLab

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Each of 20 rows, on the two cores of the server: at least so long is the whole chunk.
ROW_S, CHUNK_S = 6, 60
PATIENCE_S = 60


def _all_rows(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def wait_until_idle(spark: SparkSession) -> None:
    """Run a stage whose tasks start together, on all cores of the server: none is taken."""
    rows = spark.range(0, 2, 1, 2)
    assert rows.mapInArrow(_all_rows, "id long", barrier=True).count() == 2


@pytest.mark.req("X3", "X7")
def test_a_pause_from_another_process_ends_what_the_server_computes(
    lab: RestateLab, spark: SparkSession
) -> None:
    project = lab.declare("slow.py")
    slower = JOBS["slow.py"].replace("time.sleep(0.5)", f"time.sleep({ROW_S})")
    (lab.folder / "jobs" / "slow.py").write_text(slower, encoding="utf-8")
    lab.fill(2)
    wait_until_idle(spark)
    run = str(project.plan("jobs/run.yaml", by="ana").run_id)
    project.approve(run, "ana")
    writes, paused_at = threading.Event(), list[float]()

    def pause() -> None:
        assert writes.wait(PATIENCE_S)
        time.sleep(1)  # Tasks are in work.
        lab.command("pause", run, "--now", "--reason", "live job late", "--by", "ana")
        paused_at.append(time.monotonic())

    fault_points.install_hook(
        lambda point: writes.set() if point == "Spark.overwrite:committing" else None
    )
    other = threading.Thread(target=pause)
    other.start()
    try:
        with pytest.raises(RunPaused, match=r"ana paused .*: live job late"):
            project.stage(run, "ana")
    finally:
        fault_points.install_hook(None)
        other.join(PATIENCE_S)
    wait_until_idle(spark)
    # Long before the chunk could have been computed.
    assert time.monotonic() - paused_at[0] < CHUNK_S / 3
    assert [one.status for one in project.chunks(run).chunks] == ["pending"]
