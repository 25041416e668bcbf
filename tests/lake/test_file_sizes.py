"""Staged files reach the table's target size, whatever tasks a job leaves; many small ones fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from uuid import uuid4

import pytest
from pyarrow.parquet import read_table as read_parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.spark import write_tasks
from lakehouse_backfill.adapters.spark.staging.shadow_writer import (
    ATTEMPT_ID_PROPERTY,
    DISTRIBUTION_PROPERTY,
    ShadowWriter,
)
from lakehouse_backfill.core.planning.target.file_sizes import Expected
from lakehouse_backfill.core.validation.gates import check_file_sizes
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.partitions import WHOLE_TABLE_FIELD
from lakehouse_backfill.domain.plan import Plan
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job

pytestmark = [pytest.mark.lake, pytest.mark.req("X10")]

#: Rows of each day in all of twelve tasks.
MANY_TASKS = copy_job(
    'return src.select("d", "v", F.explode(F.sequence(F.lit(0), F.lit(23))).alias("n"))'
    '.selectExpr("d", "n AS k", "v").repartition(12, "k")'
)


def judged(lake: Lake, plan: Plan) -> CheckResult:
    """Judge the files of the shadow as they are."""
    tables, head = IcebergTables(lake.catalog), lake.head("shadow")
    shadow = tables.describe(plan.shadow_table)
    assert shadow is not None
    return check_file_sizes(
        plan, tables.files(plan.shadow_table, head, plan.resolved.scope.field), shadow
    )


@contextmanager
def setting(lake: Lake, key: str, value: str) -> Iterator[None]:
    before = lake.spark.conf.get(key)
    lake.spark.conf.set(key, value)
    yield
    lake.spark.conf.set(key, before)


def test_a_partition_gets_one_file_though_its_rows_are_in_twelve_tasks(
    lake: Lake, daily: Callable[..., PlanMaker]
) -> None:
    plan = daily(MANY_TASKS, partitions=DAYS[4:7]).make()
    lake.sql("ALTER TABLE {ns}.shadow SET TBLPROPERTIES ('write.distribution-mode'='none')")
    lake.stage(plan)
    fields = plan.resolved.scope.field
    found = IcebergTables(lake.catalog).files(plan.shadow_table, lake.head("shadow"), fields)
    staged = [file for file in found if file.partition in DAYS[4:7]]
    assert Counter(file.partition for file in staged) == dict.fromkeys(DAYS[4:7], 1)
    assert lake.snapshots("shadow")[-1][DISTRIBUTION_PROPERTY] == "hash"
    mean = sum(file.size_bytes for file in staged) // 3
    assert (check := judged(lake, plan)).passed
    assert check.detail == (
        f"at most 1 files in a partition; 3 files, {mean:,} bytes on average, target 536,870,912"
    )


def test_rows_that_are_larger_than_the_target_leave_a_file_for_each_partition(lake: Lake) -> None:
    """Not one for each row: what the check allows is by the size of all rows of a partition."""
    lake.sql(
        "CREATE TABLE {ns}.wide (d date, n bigint, text string) PARTITIONED BY (d) TBLPROPERTIES "
        "('write.target-file-size-bytes'='65536', 'write.distribution-mode'='none')"
    )
    hashes = F.transform(F.sequence(F.lit(1), F.lit(70_000)), lambda x: F.sha1(x.cast("string")))
    days = F.date_add(F.lit(date(2024, 1, 5)), (F.col("id") % 2).cast("int"))
    frame = lake.spark.range(0, 6, 1, 6).select(
        days.alias("d"), F.col("id").alias("n"), F.array_join(hashes, "").alias("text")
    )
    ShadowWriter(lake.tables).overwrite(
        frame, lake.table("wide"), F.lit(True), {ATTEMPT_ID_PROPERTY: "a"}, 1
    )
    files = [one.file for one in lake.catalog.load_table(lake.table("wide")).scan().plan_files()]
    assert [file.record_count for file in files] == [3, 3]
    assert min(file.file_size_in_bytes for file in files) > 3 * 2**20


def test_many_chunks_of_a_few_rows_leave_one_file_in_each_partition(
    lake: Lake, daily: Callable[..., PlanMaker]
) -> None:
    plan = daily(MANY_TASKS, partitions=DAYS[3:9], per_chunk=1).make()
    for chunk in plan.resolved.chunks:
        lake.staging().stage(plan, chunk, 1)
    assert len(plan.resolved.chunks) == 6
    assert judged(lake, plan).detail.startswith("at most 1 files in a partition; 6 files, ")


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_rows_of_a_table_without_partitions_are_brought_together(lake: Lake, adaptive: str) -> None:
    """Spark's own tasks would leave 12 files; what was set for the write is as before then."""
    lake.sql("CREATE TABLE {ns}.whole (n bigint)")
    lake.sql("INSERT INTO {ns}.whole VALUES (-1)")
    frame, size = lake.spark.range(0, 3000, 1, 12).toDF("n"), "spark.sql.adaptive.advisoryPartition"
    name = f"{size}SizeInBytes"
    before = lake.spark.conf.get(name)
    with setting(lake, "spark.sql.adaptive.enabled", adaptive):
        commit = ShadowWriter(lake.tables).overwrite(
            frame, lake.table("whole"), F.lit(True), {ATTEMPT_ID_PROPERTY: "a"}, 1, Expected(10_000)
        )
    assert (commit.added_rows, len(lake.files("whole"))) == (3000, 1)
    assert lake.snapshots("whole")[-1][DISTRIBUTION_PROPERTY] == "rebalance"
    assert lake.spark.conf.get(name) == before


def test_partitions_of_a_large_chunk_are_tasks_and_files_of_their_own(lake: Lake) -> None:
    """Of eight buckets of one megabyte at most, Spark would make one task."""
    lake.sql("CREATE TABLE {ns}.parts (n bigint, p int, t string) PARTITIONED BY (p)")
    lake.sql("INSERT INTO {ns}.parts VALUES (-1, 0, '')")
    text = F.expr("array_join(transform(sequence(1, 24), i -> sha2(string(n * 100 + i), 256)), '')")
    frame = lake.spark.range(0, 12_000, 1, 4).toDF("n")
    frame = frame.select("n", (F.col("n") % 6).cast("int").alias("p"), text.alias("t"))
    tracker, group = lake.spark.sparkContext.statusTracker(), f"parts {uuid4()}"
    lake.spark.sparkContext.setJobGroup(group, group)
    with setting(lake, "spark.sql.adaptive.enabled", "true"):
        ShadowWriter(lake.tables).overwrite(
            frame, lake.table("parts"), F.lit(True), {ATTEMPT_ID_PROPERTY: "a"}, 1,
            Expected(1 << 30, 6),
        )  # fmt: skip
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    stages = [tracker.getStageInfo(one) for job in jobs if job for one in job.stageIds]
    assert max(stage.numTasks for stage in stages if stage) >= 5
    assert len(lake.files("parts")) == 6
    assert (
        lake.spark.conf.get("spark.sql.adaptive.coalescePartitions.minPartitionNum", None) is None
    )


PARTED = "n bigint, p int, d date, t timestamp"
#: With it, tasks of a read of Iceberg have the rows of one partition each.
GROUPING = "spark.sql.iceberg.planning.preserve-data-grouping"


def read(lake: Lake, table: str) -> DataFrame:
    return lake.spark.table(lake.tables.quoted_name(lake.table(table)))


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("source", "target", "made", "mode"),
    [
        pytest.param("p", "p", "n + 1 AS n, p, d, t", "grouped", id="as it is"),
        pytest.param("p", "p", "n, p + 1 AS p, d, t", "hash", id="another value"),
        pytest.param("p", "p", "n, CAST(n % 6 AS int) AS p, d, t", "hash", id="another column"),
        pytest.param("months(d)", "months(d)", "n, p, d, t", "grouped", id="months"),
        pytest.param("months(d)", "days(d)", "n, p, d, t", "hash", id="finer"),
        pytest.param("days(d)", "months(d)", "n, p, d, t", "hash", id="coarser"),
        pytest.param("hours(t)", "hours(t)", "n, p, d, t", "grouped", id="hours"),
        pytest.param("bucket(8, n)", "bucket(8, n)", "n, p, d, t", "grouped", id="buckets"),
        pytest.param("bucket(16, n)", "bucket(8, n)", "n, p, d, t", "hash", id="other buckets"),
        pytest.param("truncate(1, p)", "truncate(1, p)", "n, p, d, t", "hash", id="truncated"),
        pytest.param("p, bucket(2, n)", "bucket(2, n), p", "n, p, d, t", "grouped", id="two"),
        pytest.param("p, bucket(2, n)", "p", "n, p, d, t", "hash", id="one of two"),
    ],
)
def test_rows_are_left_where_each_task_has_one_partition(
    lake: Lake, source: str, target: str, made: str, mode: str
) -> None:
    """The rows are those of the source, each partition in one file; no setting is left behind."""
    for table, spec in (("parted", source), ("written", target)):
        lake.sql(f"CREATE TABLE {{ns}}.{table} ({PARTED}) PARTITIONED BY ({spec})")
    for add in range(2):
        rows = lake.spark.range(add * 300, add * 300 + 300).selectExpr(
            "id AS n", "CAST(id % 8 AS int) AS p",
            "add_months(DATE'2024-01-05', CAST(id % 8 AS int)) AS d",
            "TIMESTAMP'2024-01-05 00:00:00' + make_interval(0, 0, 0, 0, CAST(id % 8 AS int)) AS t",
        )  # fmt: skip
        rows.writeTo(lake.tables.quoted_name(lake.table("parted"))).append()
    before = lake.spark.conf.get(GROUPING, None)
    frame = read(lake, "parted").where("n < 590").selectExpr(*made.split(", ", 3))
    wanted = sorted(map(tuple, frame.collect()))
    with setting(lake, "spark.sql.adaptive.enabled", "true"):
        commit = ShadowWriter(lake.tables).overwrite(
            read(lake, "parted").where("n < 590").selectExpr(*made.split(", ", 3)),
            lake.table("written"), F.lit(True), {ATTEMPT_ID_PROPERTY: "a"}, 1,
            Expected(1 << 30, 8),
        )  # fmt: skip
    assert commit.added_rows == 590
    assert lake.snapshots("written")[-1][DISTRIBUTION_PROPERTY] == mode
    assert sorted(map(tuple, read(lake, "written").collect())) == wanted
    files = [one.file for one in lake.catalog.load_table(lake.table("written")).scan().plan_files()]
    assert len(files) == len({str(file.partition) for file in files})
    assert lake.spark.conf.get(GROUPING, None) == before


def parted(lake: Lake, part: str) -> DataFrame:
    """Make a table of 200,000 rows by parts, and an empty one of the same kind."""
    for table in ("parted", "written"):
        lake.sql(f"CREATE TABLE {{ns}}.{table} (n bigint, p int) PARTITIONED BY (p)")
    rows = lake.spark.range(0, 200_000).selectExpr("id AS n", f"CAST({part} AS int) AS p")
    rows.writeTo(lake.tables.quoted_name(lake.table("parted"))).append()
    return read(lake, "parted")


def mode_of_write(lake: Lake, frame: DataFrame) -> str:
    """Write a frame as a large chunk of eight parts; return its distribution."""
    with setting(lake, "spark.sql.adaptive.enabled", "true"):
        commit = ShadowWriter(lake.tables).overwrite(
            frame, lake.table("written"), F.lit(True), {ATTEMPT_ID_PROPERTY: "a"}, 1,
            Expected(1 << 30, 8),
        )  # fmt: skip
    assert commit.added_rows == 200_000
    return lake.snapshots("written")[-1][DISTRIBUTION_PROPERTY]


@pytest.mark.req("P2")
def test_rows_are_moved_where_one_task_would_have_most_of_them(lake: Lake) -> None:
    assert mode_of_write(lake, parted(lake, "if(id % 20 < 8, id % 20, 0)")) == "hash"


@pytest.mark.req("P2")
@pytest.mark.parametrize("moved_by", ["join", "aggregate", "union"])
def test_rows_are_moved_where_the_job_moves_them_or_reads_other_tables(
    lake: Lake, moved_by: str
) -> None:
    frame = parted(lake, "id % 8")
    made = {
        "join": frame.join(frame.where("n < 8").selectExpr("p", "n AS m"), "p").select("n", "p"),
        "aggregate": frame.groupBy("n").agg(F.max("p").alias("p")),
        "union": frame.where("n < 100000").unionByName(frame.where("n >= 100000")),
    }
    assert mode_of_write(lake, made[moved_by]) == "hash"


@pytest.mark.req("P2")
def test_rows_are_moved_where_the_plan_of_the_write_cannot_be_asked(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def group_sizes(frame: DataFrame, target: DataFrame) -> tuple[int, ...] | None:
        asked.append(lake.spark.conf.get(GROUPING))
        raise RuntimeError("a Spark of another version names it otherwise")

    before = lake.spark.conf.get(GROUPING, None)
    monkeypatch.setattr(write_tasks, "group_sizes", group_sizes)
    assert mode_of_write(lake, parted(lake, "id % 8")) == "hash"
    assert asked == ["true"]
    assert lake.spark.conf.get(GROUPING, None) == before


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("table", "change", "mode"),
    [
        pytest.param("parted", "ADD PARTITION FIELD bucket(2, n)", "grouped", id="source finer"),
        pytest.param("parted", "DROP PARTITION FIELD p", "hash", id="source without partitions"),
        pytest.param("written", "ADD PARTITION FIELD bucket(2, n)", "hash", id="target finer"),
    ],
)
def test_where_a_spec_has_changed_each_partition_still_gets_one_file(
    lake: Lake, table: str, change: str, mode: str
) -> None:
    """Rows of both specs of the source are read."""
    parted(lake, "id % 8")
    lake.sql(f"ALTER TABLE {{ns}}.{table} {change}")
    more = lake.spark.range(200_000, 200_800).selectExpr("id AS n", "CAST(id % 8 AS int) AS p")
    more.writeTo(lake.tables.quoted_name(lake.table("parted"))).append()
    frame = read(lake, "parted").where("n >= 800")
    assert mode_of_write(lake, frame) == mode
    files = [one.file for one in lake.catalog.load_table(lake.table("written")).scan().plan_files()]
    assert len(files) == len({str(file.partition) for file in files})
    assert sorted(map(tuple, read(lake, "written").collect())) == sorted(
        map(tuple, frame.collect())
    )


@pytest.mark.req("P2")
def test_rows_that_are_left_in_their_tasks_are_sorted_as_the_table_declares(lake: Lake) -> None:
    frame = parted(lake, "id % 8")
    lake.sql("ALTER TABLE {ns}.written WRITE ORDERED BY n DESC")
    lake.sql("ALTER TABLE {ns}.written SET TBLPROPERTIES ('write.distribution-mode'='hash')")
    assert mode_of_write(lake, frame) == "grouped"
    [file, *_] = lake.catalog.load_table(lake.table("written")).scan().plan_files()
    stored = read_parquet(file.file.file_path.removeprefix("file:"))["n"].to_pylist()
    assert len(stored) == 25_000
    assert stored == sorted(stored, reverse=True)


def test_many_small_files_of_one_partition_fail_the_technical_check(
    lake: Lake, daily: Callable[..., PlanMaker]
) -> None:
    plan = daily().make()
    lake.stage(plan)
    for number in range(8):
        lake.append("shadow", (date(2024, 1, 5), 100 + number, 1))
    check = judged(lake, plan)
    assert (check.passed, check.observed) == (False, 9)
    assert check.detail.endswith("; 2024-01-05 has 9, and may have 8")


def test_files_of_buckets_of_one_day_are_not_files_of_one_partition(
    lake: Lake, daily: Callable[..., PlanMaker]
) -> None:
    """A day of a table that has 16 buckets as well has at least 16 files."""
    plan = daily(MANY_TASKS).make()
    lake.sql("DROP TABLE {ns}.shadow")
    lake.sql(
        "CREATE TABLE {ns}.shadow (d date, k bigint, v bigint) PARTITIONED BY (d, bucket(16, k))"
    )
    lake.stage(plan)
    assert len(lake.files("shadow")) > 2 * 8
    assert judged(lake, plan).detail.startswith("at most 1 files in a partition; ")
    tables, head = IcebergTables(lake.catalog), lake.head("shadow")
    found = tables.files(plan.shadow_table, head, WHOLE_TABLE_FIELD)
    assert len({file.place for file in found}) == len(found)
