"""Tags and scheduler pools of the threads that work for one run.

Tags are part of Spark's public API, in classic mode and over Connect: by them the jobs of a run are
ended from any thread. Pools exist in classic mode; with `spark.scheduler.mode=FAIR` the pools of
several threads share the cores, else jobs get them in the order in which they were started.
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
        spark.addTag(tag)
        _set_pool(spark, f"{tag}-{threading.get_ident()}")
        try:
            yield
        finally:
            _set_pool(spark, None)
            spark.removeTag(tag)


def _set_pool(spark: SparkSession, pool: str | None) -> None:
    """Choose the pool of the jobs that this thread starts; over Connect there are none."""
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        # None is the pool that threads begin with.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]
