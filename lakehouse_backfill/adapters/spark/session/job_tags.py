"""Tags and scheduler pools of the threads that work for one run; any thread ends jobs by a tag.

Of a classic session the tags of the context are used: those of the session are known only to the
thread that set them. Over Connect the session's tags are the server's. Pools exist in classic
sessions; with `spark.scheduler.mode=FAIR` the pools of several threads share the cores, else jobs
get them in the order in which they were started.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from lakehouse_backfill.adapters.spark.session import write_guard


@contextmanager
def beside(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts in the block, and put them into a pool of its own.

    The thread works for the toolkit: it may write while a job's code runs on another one.
    """
    with write_guard.allow_own_writes():
        if _is_connect(spark):
            spark.addTag(tag)
        else:
            spark.sparkContext.addJobTag(tag)
        _set_pool(spark, f"{tag}-{threading.get_ident()}")
        try:
            yield
        finally:
            _set_pool(spark, None)
            if _is_connect(spark):
                spark.removeTag(tag)
            else:
                spark.sparkContext.removeJobTag(tag)


def interrupt(spark: SparkSession, tag: str) -> None:
    """End the jobs with this tag that run now, from any thread."""
    if _is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def cores(spark: SparkSession) -> int | None:
    """Return how many tasks Spark makes where nothing else says it; None: Connect does not say."""
    return None if _is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def _is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _set_pool(spark: SparkSession, pool: str | None) -> None:
    """Choose the pool of the jobs that this thread starts; over Connect there are none."""
    if not _is_connect(spark):
        # None is the pool that threads begin with.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]
