"""The way back in Spark SQL, as the evidence page prints it, on a real table."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.report.break_glass import sql_statements

if TYPE_CHECKING:
    from tests.support.spark.lake import Lake

pytestmark = pytest.mark.req("O4")

HOSTILE = "'); DROP TABLE x; --\\' ${spark:spark.app.name} \"é`\U0001f600\n"
DAY = ScopeField(column="d", transform="identity", type="date")
HOUR = ScopeField(column="at", transform="day", type="timestamptz")
REGION = ScopeField(column="the `region`; --", transform="identity", type="string")


def published(lake: Lake, before: int | None, field: ScopeField, *labels: str) -> Publication:
    return Publication(
        product="silver.t", version=1, token="t" * 32, action="publish", run_id="bf-1",
        table=lake.table("t"), snapshot_id=2, before_snapshot_id=before,
        scope=Scope(field=field, partitions=labels), supersedes=0,
        at=datetime(2026, 3, 2, tzinfo=timezone.utc), by="ana",
    )  # fmt: skip


def paste(lake: Lake, row: Publication) -> None:
    """Run what a person pastes, with the catalog's name filled in."""
    lines = sql_statements(row)
    assert lines is not None
    text = "\n".join(lines).replace("USE NAME;", "USE lake;")
    try:
        for statement in (part + ";" for part in text.split(";\n")):
            lake.spark.sql(statement.rstrip(";"))
    finally:
        lake.spark.sql("USE spark_catalog")


def texts(lake: Lake) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(value) for value in row) for row in lake.rows("t"))


def test_sql_puts_old_rows_back_empties_what_was_empty_and_keeps_live_rows(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.t (d date, v bigint) PARTITIONED BY (d)")
    lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-01', 1), (date'2024-01-02', 2), (NULL, 9)")
    before = lake.head("t")
    lake.sql("DELETE FROM {ns}.t WHERE d = date'2024-01-02' OR d IS NULL")
    lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-02', 20), (date'2024-01-03', 30), (NULL, 90)")
    lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-04', 4)")
    commits = len(lake.snapshots("t"))
    paste(lake, published(lake, before, DAY, "2024-01-02", "2024-01-03", "null"))
    assert texts(lake) == [
        ("2024-01-01", "1"), ("2024-01-02", "2"), ("2024-01-04", "4"), ("None", "9"),
    ]  # fmt: skip
    assert len(lake.snapshots("t")) == commits + 1


def test_sql_empties_partitions_of_which_none_had_rows_before(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.t (d date, v bigint) PARTITIONED BY (d)")
    lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-01', 1)")
    before = lake.head("t")
    lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-02', 2)")
    paste(lake, published(lake, before, DAY, "2024-01-02"))
    assert texts(lake) == [("2024-01-01", "1")]
    paste(lake, published(lake, None, DAY, "2024-01-01"))
    assert texts(lake) == []


def test_sql_finds_days_of_instants_whatever_the_zone_of_the_session(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.t (at timestamp, v bigint) PARTITIONED BY (days(at))")
    lake.sql(
        "INSERT INTO {ns}.t VALUES (timestamp'2024-01-01 23:30:00Z', 1), "
        "(timestamp'2024-01-02 00:30:00Z', 2)"
    )
    before = lake.head("t")
    lake.sql("UPDATE {ns}.t SET v = v * 10")
    zone = lake.spark.conf.get("spark.sql.session.timeZone")
    lake.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        paste(lake, published(lake, before, HOUR, "2024-01-02"))
    finally:
        lake.spark.conf.set("spark.sql.session.timeZone", zone)
    assert sorted(row[1] for row in lake.rows("t")) == [2, 10]


def test_sql_with_hostile_names_and_values_changes_only_its_partitions(lake: Lake) -> None:
    name = "`" + REGION.column.replace("`", "``") + "`"
    lake.sql(f"CREATE TABLE {{ns}}.t ({name} string, v bigint) PARTITIONED BY ({name})")
    parts = [(HOSTILE, 1), ("EU", 2), ("US", 3), ("null", 4)]
    frame = lake.spark.createDataFrame(parts, f"{name} string, v bigint")
    target = f"lake.{lake.table('t')}"
    frame.writeTo(target).append()
    before = lake.head("t")
    frame.selectExpr(name, "v * 10 AS v").writeTo(target).overwritePartitions()
    paste(lake, published(lake, before, REGION, HOSTILE, "EU", "=null"))
    assert sorted(lake.rows("t")) == sorted([(HOSTILE, 1), ("EU", 2), ("US", 30), ("null", 4)])


def test_sql_changes_nothing_when_a_column_was_added_since(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.t (d date, a bigint) PARTITIONED BY (d)")
    lake.sql("INSERT INTO {ns}.t VALUES (date'2024-01-01', 1)")
    before = lake.head("t")
    lake.sql("UPDATE {ns}.t SET a = 10")
    lake.sql("ALTER TABLE {ns}.t ADD COLUMN b bigint")
    after = lake.head("t")
    with pytest.raises(Exception, match="NOT_ENOUGH_DATA_COLUMNS"):
        paste(lake, published(lake, before, DAY, "2024-01-01"))
    assert lake.head("t") == after
