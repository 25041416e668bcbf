"""A job's session can write nowhere: every way is refused before anything is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.errors import WriteForbidden
from tests.support.spark.lake import Lake, PlanMaker, copy_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Attempt = Callable[["DataFrame", str], Any]

#: Statements in which `{t}` stands for the table.
_STATEMENTS = {
    "insert": "INSERT INTO {t} SELECT * FROM {t}",
    "insert after comments": "-- SELECT 1\n/* SELECT /* nested */ 1 */ INSERT INTO {t} "
    "SELECT * FROM {t}",
    "insert after a common table": "WITH x AS (SELECT * FROM {t}) INSERT INTO {t} SELECT * FROM x",
    "insert from": "FROM {t} INSERT INTO {t} SELECT *",
    "overwrite": "INSERT OVERWRITE {t} SELECT * FROM {t}",
    "two statements": "SELECT 1; DROP TABLE {t}",
    "block": "BEGIN DROP TABLE {t}; END",
    "immediate": "EXECUTE IMMEDIATE 'DROP TABLE {t}'",
    "drop": "DROP TABLE {t}",
    "truncate": "TRUNCATE TABLE {t}",
    "delete": "DELETE FROM {t} WHERE true",
    "merge": "MERGE INTO {t} a USING {t} b ON a.k = b.k WHEN MATCHED THEN DELETE",
    "alter": "ALTER TABLE {t} ADD COLUMN z int",
    "create": "CREATE TABLE {t}2 AS SELECT 1 AS a",
    "procedure": "CALL lake.system.expire_snapshots(table => '{t}')",
    "set": "SET spark.wap.branch = other",
    "directory": "INSERT OVERWRITE DIRECTORY '/tmp/lhb-guard' USING parquet SELECT 1",
    "java": "SELECT reflect('java.lang.System', 'gc')",
    "script": "SELECT TRANSFORM(k) USING 'cat' FROM {t}",
}


def _run_sql(text: str, frame: DataFrame, table: str) -> Any:
    return frame.sparkSession.sql(text.format(t=table))


#: Each is tried on a frame and the name of a table that is not the shadow.
ATTEMPTS: dict[str, Attempt] = {
    **{name: partial(_run_sql, text) for name, text in _STATEMENTS.items()},
    "append": lambda df, t: df.writeTo(t).append(),
    "overwrite partitions": lambda df, t: df.writeTo(t).overwritePartitions(),
    "save as table": lambda df, t: df.write.mode("append").saveAsTable(t),
    "insert into": lambda df, t: df.write.insertInto(t),
    "files": lambda df, t: df.write.parquet("/tmp/lhb-guard"),
    "merge into": lambda df, t: df.mergeInto(t, df.k == 1).whenMatched().delete().merge(),
    "foreach": lambda df, t: df.foreach(print),
    "foreach partition": lambda df, t: df.foreachPartition(lambda rows: None),
    "checkpoint": lambda df, t: df.checkpoint(),
    "global view": lambda df, t: df.createOrReplaceGlobalTempView("v"),
    "stream": lambda df, t: df.writeStream.start(),
    "configuration": lambda df, t: df.sparkSession.conf.set("spark.wap.branch", "other"),
    "builder": lambda df, t: type(df.sparkSession).builder.config("a", "b").getOrCreate(),
    "another session": lambda df, t: df.sparkSession.newSession().sql(f"DROP TABLE {t}"),
    "write by another session": lambda df, t: (
        df.sparkSession.newSession().table(t).writeTo(t).append()
    ),
    "created session": lambda df, t: type(df.sparkSession).builder.create(),
    "JDBC": lambda df, t: df.write.jdbc("jdbc:postgresql://127.0.0.1/x", "t"),
    "catalog": lambda df, t: df.sparkSession.catalog.createTable(f"{t}2", path="/tmp/x"),
    "current catalog": lambda df, t: df.sparkSession.catalog.setCurrentCatalog("lake"),
    "stop": lambda df, t: df.sparkSession.stop(),
}


@pytest.fixture
def guarded(lake: Lake) -> tuple[Lake, DataFrame, str]:
    lake.sql("CREATE TABLE {ns}.live (k bigint)")
    lake.sql("INSERT INTO {ns}.live VALUES (1), (2)")
    name = f"lake.{lake.table('live')}"
    return lake, lake.spark.table(name), name


@pytest.mark.req("X1", "T6", "E1")
def test_every_way_to_write_is_refused_and_nothing_changes(
    guarded: tuple[Lake, DataFrame, str],
) -> None:
    lake, frame, name = guarded
    before = (lake.head("live"), lake.rows("live"), lake.spark.conf.getAll)
    tables = {row["tableName"] for row in lake.sql("SHOW TABLES IN {ns}").collect()}
    outcomes = {}
    for what, attempt in ATTEMPTS.items():
        with write_guard.forbid_job_writes():
            try:
                attempt(frame, name)
                outcomes[what] = "it was done"
            except WriteForbidden as error:
                outcomes[what] = error.state
            except Exception as error:  # noqa: BLE001 (any other way out is a finding)
                outcomes[what] = f"{type(error).__name__}: {error}"
    assert outcomes == dict.fromkeys(ATTEMPTS, "nothing was sent or written")
    assert (lake.head("live"), lake.rows("live"), lake.spark.conf.getAll) == before
    assert {row["tableName"] for row in lake.sql("SHOW TABLES IN {ns}").collect()} == tables


@pytest.mark.req("X1")
def test_the_message_names_what_was_tried(guarded: tuple[Lake, DataFrame, str]) -> None:
    _, frame, name = guarded
    with write_guard.forbid_job_writes(), pytest.raises(WriteForbidden) as caught:
        frame.writeTo(name)
    assert f"DataFrame.writeTo('{name}')" in caught.value.problem
    with write_guard.forbid_job_writes(), pytest.raises(WriteForbidden) as caught:
        frame.sparkSession.sql(f"DROP  TABLE {name}")
    assert f"DROP TABLE {name}" in caught.value.problem


@pytest.mark.req("X1")
def test_reading_is_open_to_a_job(guarded: tuple[Lake, DataFrame, str]) -> None:
    _, frame, name = guarded
    with write_guard.forbid_job_writes():
        spark = type(frame.sparkSession).builder.getOrCreate()
        frame.createOrReplaceTempView("guarded_view")
        text = "SELECT sum(k) AS k FROM {live} WHERE k < :top"
        found = spark.sql(text, args={"top": 3}, live=frame)
        query = spark.sql(f"WITH x AS (SELECT * FROM {name}) SELECT k FROM x UNION ALL SELECT 5")
        counts = (found.collect()[0]["k"], query.count(), spark.table("guarded_view").count())
        assert counts == (3, 3, 2)
        assert frame.toPandas().shape == (2, 1)
    spark.catalog.dropTempView("guarded_view")


@pytest.mark.req("X1")
def test_a_thread_of_the_job_is_guarded_and_our_own_writes_are_not(
    guarded: tuple[Lake, DataFrame, str],
) -> None:
    lake, frame, name = guarded
    refused: list[Exception] = []

    def of_the_job() -> None:
        try:
            frame.writeTo(name).append()
        except WriteForbidden as error:
            refused.append(error)

    def of_ours() -> None:
        with write_guard.allow_own_writes():
            frame.limit(1).writeTo(name).append()

    with write_guard.forbid_job_writes():
        for target in (of_the_job, of_ours):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert len(refused) == 1
    assert len(lake.rows("live")) == 3


def test_outside_of_jobs_pyspark_is_untouched(guarded: tuple[Lake, DataFrame, str]) -> None:
    _, frame, name = guarded
    members = (type(frame).writeTo, type(frame).write, type(frame.sparkSession).sql)
    with write_guard.forbid_job_writes(), write_guard.forbid_job_writes():
        assert type(frame).writeTo is not members[0]
    assert (type(frame).writeTo, type(frame).write, type(frame.sparkSession).sql) == members
    frame.writeTo(name).append()


@pytest.mark.req("X1", "T6")
@pytest.mark.parametrize(
    "place", ["in the transform", "on import", "in a helper that swallows errors"]
)
def test_a_job_that_writes_stops_the_chunk(
    lake: Lake, daily: Callable[..., PlanMaker], place: str
) -> None:
    lake.sql("CREATE TABLE {ns}.live (d date, k bigint, v bigint)")
    name = f"lake.{lake.table('live')}"
    write = f'SparkSession.getActiveSession().sql("INSERT INTO {name} VALUES (null, 1, 1)")'
    if place == "in a helper that swallows errors":
        write = f"helper(lambda: {write})"
    helper = """
from pyspark.sql import SparkSession
def helper(action):
    try:
        action()
    except ValueError:
        pass
"""
    if place == "on import":
        job = copy_job("return src", above=helper + write)
    else:
        job = copy_job(write, "return src", above=helper)
    plan = daily(job).make()
    before = (lake.rows("out"), lake.head("shadow"), lake.head("live"))
    with pytest.raises(WriteForbidden, match="INSERT INTO"):
        lake.stage(plan)
    assert (lake.rows("out"), lake.head("shadow"), lake.head("live")) == before
