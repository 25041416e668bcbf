"""Comparing on Spark: our engine, bare scans and checksums, EXCEPT ALL, Iceberg's changelog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.diff_peers import Counts, Setting
from benchmarks.tpch import KEY, MONTHS_OF_B, TABLE, properties

NAME = f"lake.{TABLE}"


def session(folder: Path, memory: str) -> Any:
    """Start the session of a project whose catalog is the lake's."""
    from lakehouse_backfill.adapters.spark.session.session import open_session
    from lakehouse_backfill.domain.profile import Profile

    catalog = {"name": "lake", "type": "sql", **properties(folder)}
    spark = {"spark.master": "local[2]", "spark.driver.memory": memory}
    return open_session(Profile(catalog=catalog, spark=spark), folder)


def differ(spark: Any, setting: Setting, way: str) -> Callable[[], Counts]:
    """Compare with our engine on Spark: by whole partitions in `tasks`, or in `groups` by key."""
    from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
    from lakehouse_backfill.adapters.local.distributed.key_groups import GroupedDiffer
    from lakehouse_backfill.adapters.local.distributed.parallel import ParallelDiffer
    from lakehouse_backfill.adapters.spark.dataframes import SparkTables
    from lakehouse_backfill.adapters.spark.workers import SparkWorkers

    local = LocalDiffer(setting.lake.catalog())
    workers = SparkWorkers(SparkTables(spark, "lake"))
    tasks, groups = ParallelDiffer(local, workers, 64 << 20), GroupedDiffer(local, workers)
    differ: Any = tasks if way == "tasks" else groups

    def compare() -> Counts:
        found = differ.diff(setting.request()).summary
        return found.added, found.removed, found.changed

    return compare


def scan(spark: Any, setting: Setting) -> Callable[[], Counts]:
    """Read all columns of the changed months of both sides: sums of numbers, hashes of others."""

    def read() -> Counts:
        for snapshot_id in (setting.lake.a, setting.new):
            frame = _changed(spark, setting, snapshot_id)
            frame.agg(*_sums(frame)).collect()
        return None

    return read


def checksum(spark: Any, setting: Setting) -> Callable[[], Counts]:
    """Checksum every month of A, as reconciliation does."""
    from lakehouse_backfill.adapters.spark.measuring.partition_sums import sum_partitions
    from lakehouse_backfill.domain.partitions import ScopeField

    field = ScopeField(column="l_shipdate", transform="month", type="date")

    def read() -> Counts:
        sum_partitions({"a": _at(spark, setting.lake.a)}, field)
        return None

    return read


def scan_whole(spark: Any, setting: Setting) -> Callable[[], Counts]:
    """Read all columns of A."""

    def read() -> Counts:
        frame = _at(spark, setting.lake.a)
        frame.agg(*_sums(frame)).collect()
        return None

    return read


def except_all(spark: Any, setting: Setting) -> Callable[[], Counts]:
    """EXCEPT ALL both ways on the changed months."""

    def compare() -> Counts:
        old, new = (_changed(spark, setting, each) for each in (setting.lake.a, setting.new))
        gone, come = old.exceptAll(new).persist(), new.exceptAll(old).persist()
        both = gone.select(*KEY).intersect(come.select(*KEY)).count()
        counts = come.count() - both, gone.count() - both, both
        gone.unpersist()
        come.unpersist()
        return counts

    return compare


def changelog(spark: Any, setting: Setting) -> Callable[[], Counts]:
    """Iceberg's changelog view with updates computed."""

    def compare() -> Counts:
        spark.sql(
            f"CALL lake.system.create_changelog_view(table => '{TABLE}', changelog_view => 'seen', "
            f"options => map('start-snapshot-id', '{setting.lake.a}', "
            f"'end-snapshot-id', '{setting.new}'), identifier_columns => array('{KEY[0]}', "
            f"'{KEY[1]}'), compute_updates => true)"
        )
        found = spark.sql("SELECT _change_type AS kind, count(*) AS n FROM seen GROUP BY 1")
        counts = {row["kind"]: row["n"] for row in found.collect()}
        return (
            counts.get("INSERT", 0), counts.get("DELETE", 0), counts.get("UPDATE_AFTER", 0)
        )  # fmt: skip

    return compare


def _at(spark: Any, snapshot_id: int) -> Any:
    return spark.read.option("versionAsOf", str(snapshot_id)).table(NAME)


def _changed(spark: Any, setting: Setting, snapshot_id: int) -> Any:
    frame = _at(spark, snapshot_id)
    if setting.variant != "B":
        return frame
    first, stop = MONTHS_OF_B
    return frame.where(f"l_shipdate >= DATE'{first}' AND l_shipdate < DATE'{stop}'")


def _sums(frame: Any) -> list[Any]:
    from pyspark.sql import functions as F

    numbers = ("bigint", "int", "decimal(15,2)")
    kinds = dict(frame.dtypes)
    return [
        F.sum(name) if kinds[name] in numbers else F.max(name).alias(f"m_{name}") for name in kinds
    ]
