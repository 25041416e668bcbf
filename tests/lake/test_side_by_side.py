"""Chunks that two threads stage at once on Spark, and computations that are ended by their tag."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.errors import BackfillError, RunMoved, WriteForbidden
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job

Daily = Callable[..., PlanMaker]
SLOW_S = 60

SLOW_JOB = copy_job(
    "import time\n"
    "    from pyspark.sql.types import LongType\n"
    "    def wait(v):\n"
    "        time.sleep(5)\n"
    "        return v\n"
    "    return src.select('d', 'k', F.udf(wait, LongType())('v').alias('v'))"
)


@pytest.mark.req("X3")
def test_two_threads_stage_two_chunks_as_one_thread_would(lake: Lake, daily: Daily) -> None:
    daily()
    lake.sql("CREATE TABLE {ns}.other (d date, k bigint, v bigint) PARTITIONED BY (d)")
    alone = PlanMaker(lake, shadow="shadow", per_chunk=1).make("bf-1")
    for chunk in alone.resolved.chunks:
        lake.staging().stage(alone, chunk, 1)
    plan = PlanMaker(lake, shadow="other", per_chunk=1).make("bf-2")
    staging, meet = lake.staging(), threading.Barrier(2)

    def stage(number: int) -> ChunkRecord:
        with staging.beside(plan):
            chunk = plan.resolved.chunks[number]
            staging.analysed_plan(plan, chunk)
            meet.wait(SLOW_S)
            return staging.stage(plan, chunk, 1)

    with ThreadPoolExecutor(2) as pool:
        records = list(pool.map(stage, range(2)))
    assert lake.sums("other", plan.resolved.scope) == lake.sums("shadow", alone.resolved.scope)
    assert [one.partitions for one in records] == [(DAYS[4],), (DAYS[5],)]
    assert len({one.snapshot_id for one in records}) == 2
    assert [one.input_rows for one in records] == [4, 4]


@pytest.mark.req("X3", "X9")
def test_no_thread_of_an_overtaken_driver_commits(lake: Lake, daily: Daily) -> None:
    plan = daily(per_chunk=1).make()
    before = lake.rows("shadow")
    lake.sql("ALTER TABLE {ns}.shadow SET TBLPROPERTIES ('lakehouse-backfill.epoch'='2')")
    staging = lake.staging()

    def stage(number: int) -> None:
        with staging.beside(plan), pytest.raises(RunMoved):
            staging.stage(plan, plan.resolved.chunks[number], 1)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(stage, range(2)))
    assert lake.rows("shadow") == before


@pytest.mark.req("X3")
def test_a_computation_is_ended_by_its_tag_and_writes_nothing(lake: Lake, daily: Daily) -> None:
    plan = daily(SLOW_JOB).make()
    before = lake.rows("shadow")
    staging, is_over = lake.staging(), threading.Event()

    def interrupt() -> None:
        while not is_over.wait(0.5):
            staging.interrupt(plan)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        try:
            with staging.beside(plan), pytest.raises(BackfillError):
                staging.stage(plan, plan.resolved.chunks[0], 1)
        finally:
            is_over.set()
    assert lake.rows("shadow") == before


@pytest.mark.req("X1", "X3")
def test_a_jobs_code_may_not_write_in_a_thread_that_works_for_the_run(
    lake: Lake, daily: Daily
) -> None:
    table = lake.table("out")
    plan = daily(copy_job(f"src.writeTo({table!r}).append()\n    return src")).make()
    before = lake.rows("out")
    staging = lake.staging()
    with staging.beside(plan), pytest.raises(WriteForbidden):
        staging.stage(plan, plan.resolved.chunks[0], 1)
    assert lake.rows("out") == before
