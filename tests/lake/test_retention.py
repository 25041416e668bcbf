"""What `maintain` lets go is safe for Iceberg's own expiry, which deletes files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from lakehouse_backfill.adapters.iceberg.metadata import NEVER_EXPIRES_MS
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins, TableHistory
from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits
from lakehouse_backfill.adapters.spark.session.settings import spark_catalog_properties
from lakehouse_backfill.errors import TooBusy
from tests.chaos.lab import DAYS, TARGET
from tests.support.lakes.retention import SHADOWS, WHO, RetentionLake
from tests.support.lakes.writers import FixedWriters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark.lake import Lake

_numbers = itertools.count(1)
SHORT = "keep_versions: {count: 2, days: 0}\n"
DAY_MS = 24 * 3600 * 1000


class SparkLake(RetentionLake):
    """The lake as Spark sees it too, with the expiry of both of Iceberg's ways."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.name = f"kept{next(_numbers)}"
        super().__init__(root, SHORT, self.name)
        self.spark = spark
        lake = self.lab.folder / "lake"
        properties = {
            "type": "sql", "uri": f"sqlite:///{lake}/catalog.db",
            "warehouse": f"file://{lake}/warehouse",
        }  # fmt: skip
        prefix = f"spark.sql.catalog.{self.name}"
        spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        for key, value in spark_catalog_properties(properties).items():
            spark.conf.set(f"{prefix}.{key}", value)

    def count(self, snapshot_id: int | None = None) -> int:
        """What Spark reads from the product: it opens every file."""
        reader = self.spark.read
        if snapshot_id is not None:
            reader = reader.option("versionAsOf", str(snapshot_id))
        return len(reader.table(f"{self.name}.{TARGET}").collect())

    def count_by_duckdb(self) -> int:
        """What DuckDB reads from the files that the head lists."""
        tasks = self.catalog.load_table(TARGET).scan().plan_files()
        files = [task.file.file_path.removeprefix("file://") for task in tasks]
        found = duckdb.execute("SELECT count(*) FROM read_parquet(?)", [files]).fetchone()
        return int(found[0]) if found else 0

    def expire_by_spark(self) -> None:
        self.spark.sql(
            f"CALL {self.name}.system.expire_snapshots(table => '{TARGET}', "
            "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        )

    def expire_by_java(self) -> None:
        """The table's own method: incremental where main is the only reference."""
        table = JavaApi(lambda: self.spark, self.name).load_table(TARGET)
        later = int(datetime.now(timezone.utc).timestamp() * 1000) + DAY_MS
        table.expireSnapshots().expireOlderThan(later).retainLast(1).commit()

    def append(self, day: str, key: int) -> None:
        """Do what a live writer does."""
        row = {"d": [date.fromisoformat(day)], "k": [key], "v": [key]}
        schema = pa.schema([("d", pa.date32()), ("k", pa.int64()), ("v", pa.int64())])
        self.catalog.load_table(TARGET).append(pa.table(row, schema=schema))

    def drop_tags(self) -> None:
        """Do what must not be done: let all tags go, and nothing else."""
        table = self.catalog.load_table(TARGET)
        changes = table.manage_snapshots()
        for name in self.tags():
            changes = changes.remove_tag(name)
        changes.commit()


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Callable[[], SparkLake]:
    return lambda: SparkLake(tmp_path / f"lake {next(_numbers)}", spark)


def to_and_fro(lake: SparkLake) -> None:
    """Publish, roll back, publish again: files leave the table and come back twice."""
    run = lake.published()
    lake.project.rollback(TARGET, 0, reason="wrong", by=WHO)
    lake.project.publish(run, WHO)


def islands(lake: SparkLake) -> None:
    """A tagged snapshot whose neighbours expired; its file is listed by another manifest now."""
    lake.append(DAYS[7], 50)
    run = lake.accepted()  # pins the head, which added a file
    lake.append(DAYS[6], 51)
    lake.project.publish(run, WHO)
    lake.published(DAYS[5], DAYS[7], name="b")
    table = lake.catalog.load_table(TARGET)
    pinned = lake.tags()
    keep = {name for name in pinned if name == f"lhb-pin-{run}"}
    changes = table.manage_snapshots()
    for name in set(pinned) - keep:
        changes = changes.remove_tag(name)
    changes.commit()
    lake.expire_by_spark()


CASES = [pytest.param(to_and_fro, id="tombstones"), pytest.param(islands, id="an island")]
EXPIRIES = [
    pytest.param(SparkLake.expire_by_java, id="java"),
    pytest.param(SparkLake.expire_by_spark, id="spark"),
]


@pytest.mark.req("U12")
def test_dropping_tags_alone_lets_the_next_expiry_delete_live_files(
    make: Callable[[], SparkLake],
) -> None:
    """The danger itself: when nothing is lost here any more, Iceberg has mended it."""
    lake = make()
    to_and_fro(lake)
    lake.drop_tags()
    before = len(lake.rows())
    table = lake.catalog.load_table(TARGET)
    assert TableHistory(table.metadata, table.io).unsafe_tombstones()
    lake.expire_by_java()
    with pytest.raises(FileNotFoundError):
        assert len(lake.rows()) == before


@pytest.mark.long
@pytest.mark.req("U12")
@pytest.mark.parametrize("history", CASES)
@pytest.mark.parametrize("expire", EXPIRIES)
def test_what_maintain_lets_go_costs_no_live_file(
    make: Callable[[], SparkLake],
    history: Callable[[SparkLake], None],
    expire: Callable[[SparkLake], None],
) -> None:
    lake = make()
    history(lake)
    rows = len(lake.rows())
    lake.later(200)
    lake.maintain(erasure="all that is old must go", product=TARGET)
    assert lake.tags() == {}
    expire(lake)
    assert (lake.count(), lake.count_by_duckdb(), len(lake.rows())) == (rows, rows, rows)
    lake.append(DAYS[0], 99)
    expire(lake)
    assert lake.count() == rows + 1


@pytest.mark.req("U12", "U13")
def test_kept_versions_stay_readable_and_can_be_gone_back_to_after_expiry(
    make: Callable[[], SparkLake],
) -> None:
    lake = make()
    to_and_fro(lake)
    rows, tags = lake.rows(), lake.tags()
    old = [row["v"] for row in rows if str(row["d"]) == DAYS[1]]
    lake.later(200)
    done = lake.maintain()
    assert {one["version"] for one in done["versions_let_go"]} == {1}
    kept = lake.tags()
    assert 0 < len(kept) < len(tags)
    lake.expire_by_java()
    lake.expire_by_spark()
    assert lake.rows() == rows
    assert {lake.count(snapshot_id) for snapshot_id in kept.values()} == {len(rows)}
    lake.project.rollback(TARGET, 0, reason="wrong after all", by=WHO)
    back = [row["v"] for row in lake.rows() if str(row["d"]) == DAYS[1]]
    assert (len(lake.rows()), back == old) == (len(rows), False)
    with pytest.raises(NoSuchTableError):
        lake.catalog.load_table(f"{SHADOWS}.gone")


@pytest.mark.req("U12")
def test_tags_of_format_3_go_by_iceberg_s_own_library_on_the_same_condition(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.v3 (k bigint) TBLPROPERTIES ('format-version' = '3')")
    name, ids = lake.table("v3"), []
    commits = JavaCommits(JavaApi(lambda: lake.spark, lake.name))
    for number in range(2):
        lake.sql(f"INSERT INTO {{ns}}.v3 VALUES ({number})")
        ids.append(lake.head("v3"))
        commits.set_tag(name, f"lhb-pin-{number}", ids[-1], NEVER_EXPIRES_MS)
    writers = FixedWriters(lake.catalog, "java", commits)
    pins = IcebergPins(lake.catalog, writers)
    now = datetime.now(timezone.utc)
    done = pins.expire(name, {"lhb-pin-0": ids[0] or 0, "lhb-pin-1": 4711}, now)
    assert (done.tags, pins.tags(name)) == (("lhb-pin-0",), {"lhb-pin-1": ids[1]})
    assert lake.rows("v3") == [(0,), (1,)]
    with pytest.raises(TooBusy):
        commits.expire(name, {"main": ids[1] or 0}, ("lhb-pin-1",), ())
