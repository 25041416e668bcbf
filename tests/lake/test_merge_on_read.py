"""A product with merge-on-read deletes by Spark, through the whole life of a run.

The oracle is Spark's own plain reading of the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.project import Project
from tests.support.spark.lake import Lake
from tests.support.spark.modes import LakeProject

DAYS = tuple(f"2024-01-0{day}" for day in range(1, 6))
COLUMNS = (("d", "date"), ("k", "long"), ("v", "long"))
JOB = """\
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform

@transform(name="tenfold", version="1.0.0", inputs=("src",))
def tenfold(context, src):
    return src.select("d", "k", (F.col("v") * 10).alias("v"))
"""


class Tenfold(LakeProject):
    transform = "tenfold"


@pytest.fixture(params=[2, 3], ids=["format 2", "format 3"])
def product(request: pytest.FixtureRequest, lake: Lake) -> Tenfold:
    """A product on the test's lake; its tables delete merge-on-read."""
    names = {f"{kind}_namespace": f"{lake.namespace}_{kind}" for kind in ("control", "shadow")}
    lake.profile = lake.profile.model_copy(update=names)
    modes = ", ".join(
        f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge")
    )
    for short in ("src", "out"):
        lake.sql(
            f"CREATE TABLE {{ns}}.{short} (d date, k bigint, v bigint) PARTITIONED BY (d) "
            f"TBLPROPERTIES ('format-version' = '{request.param}', {modes})"
        )
    lake.sql(
        "INSERT INTO {ns}.src SELECT date_add(date'2024-01-01', CAST(id % 5 AS int)), id, id "
        "FROM range(50)"
    )
    lake.sql("INSERT INTO {ns}.out SELECT d, k, v * 100 FROM {ns}.src")
    return Tenfold(lake, JOB, COLUMNS, lineage_columns=False)


def staged(product: Tenfold) -> str:
    run, project = product.plan(), product.project
    project.stage(run, "ana")
    project.validate(run, "ana")
    project.accept(run, "lead")
    return run


def days(lake: Lake, table: str = "out", snapshot_id: int | None = None) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {day: set() for day in DAYS}
    for day, key, value in lake.rows(table, snapshot_id):
        found[str(day)].add((key, value))
    return found


def deletes(lake: Lake) -> int:
    return lake.sql("SELECT * FROM {ns}.out.delete_files").count()


@pytest.mark.long
@pytest.mark.req("U12", "E3")
def test_erased_rows_stay_erased_through_publication_and_rollback(
    lake: Lake, product: Tenfold
) -> None:
    project, table = product.project, product.product
    lake.sql("DELETE FROM {ns}.out WHERE k IN (1, 3)")  # of the 2nd and the 4th
    lake.sql("DELETE FROM {ns}.src WHERE k IN (1, 2)")  # of the 2nd and the 3rd
    before = days(lake)
    assert deletes(lake) == 2

    run = staged(product)
    candidate = project.reconcile(f"{table}@{lake.head('out')}", _shadow(project, run))
    project.publish(run, "ana")

    source = days(lake, "src")
    after = days(lake)
    restated = DAYS[1:3]
    assert {day: after[day] for day in restated} == {
        day: {(key, value * 10) for key, value in source[day]} for day in restated
    }
    assert {d: after[d] for d in DAYS if d not in restated} == {
        d: before[d] for d in DAYS if d not in restated
    }
    # The file of the 2nd went, and its delete file with it; that of the 4th still hides its row.
    assert deletes(lake) == 1
    told = {item.partition: item.new_checksum for item in candidate.partitions}
    now = project.reconcile(f"{table}@{lake.head('out')}", f"{table}@{lake.head('out')}")
    assert {item.partition: item.new_checksum for item in now.partitions} == told

    lake.sql("INSERT INTO {ns}.out VALUES (date'2024-01-05', 1000, 1)")  # a live job
    preview = project.preview_rollback(table, to=0, by="ana")
    assert [item.partitions for item in preview.rewritten] == [(DAYS[1],)]
    project.rollback(table, to=0, reason="wrong", by="ana")

    back = days(lake)
    assert back == {**before, DAYS[4]: before[DAYS[4]] | {(1000, 1)}}
    assert (1, 100) not in back[DAYS[1]]
    assert deletes(lake) == 1
    shadows = lake.spark.sql(f"SHOW TABLES IN lake.{lake.namespace}_shadow").collect()
    assert not [row.tableName for row in shadows if "rollback" in row.tableName]


@pytest.mark.long
@pytest.mark.req("U12")
def test_tags_keep_live_files_from_an_expiry_after_rollback(lake: Lake, product: Tenfold) -> None:
    project, table = product.project, product.product
    project.publish(staged(product), "ana")
    project.rollback(table, to=0, reason="wrong", by="ana")
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-02', 900, 9)")
    project.publish(staged(product), "ana")
    project.rollback(table, to=0, reason="wrong again", by="ana")
    files, rows = lake.files("out"), days(lake)

    _expire_everything(lake)

    assert lake.files("out") == files
    assert _missing(files) == set()
    assert days(lake) == rows

    # Without the tags the same expiry deletes files that readers need: the test provokes it.
    for name in lake.catalog.load_table(table).metadata.refs:
        if name.startswith("lhb-"):
            lake.sql(f"ALTER TABLE {{ns}}.out DROP TAG `{name}`")
    _expire_everything(lake)
    assert lake.files("out") == files
    assert _missing(files) != set()


def _missing(files: set[str]) -> set[str]:
    return {f for f in files if not Path(f.removeprefix("file:").replace("//", "/", 1)).exists()}


def _expire_everything(lake: Lake) -> None:
    """Iceberg's core expiry, whose incremental clean-up deletes re-added files (pitfall 42)."""
    spark: Any = lake.spark
    jvm = spark.sparkContext._jvm
    name = f"lake.{lake.namespace}.out"
    java = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    now = jvm.java.lang.System.currentTimeMillis()
    java.expireSnapshots().expireOlderThan(now).retainLast(1).cleanExpiredFiles(True).commit()


def _shadow(project: Project, run: str) -> str:
    plan = project.wiring.context.runs.plan(run)
    return str(plan.shadow_table)


@pytest.mark.long
@pytest.mark.req("U12")
def test_an_erasure_deletes_what_spark_staged_for_a_cancelled_run_and_nothing_else(
    lake: Lake, product: Tenfold
) -> None:
    project, table = product.project, product.product
    lake.sql("DELETE FROM {ns}.out WHERE k IN (1, 3)")
    published = staged(product)
    project.publish(published, "ana")
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-02', 99, 99)")
    cancelled = staged(product)
    project.cancel(cancelled, "ana", "no")
    lake.sql("INSERT INTO {ns}.out VALUES (date'2024-01-02', 98, 98)")
    rows, folders = days(lake), _shadow_files(project)
    assert {run for run, files in folders.items() if files} == {published, cancelled}
    seen = project.maintain("ana", table, "request 4711", dry_run=True)
    assert not seen.left
    (deleted,) = project.maintain("ana", table, "request 4711").deleted
    assert seen.deleted == (deleted,)
    assert (deleted.run_id, deleted.files) == (cancelled, len(folders[cancelled]))
    after = _shadow_files(project)
    assert (after[published], after[cancelled]) == (folders[published], set())
    assert days(lake) == rows


def _shadow_files(project: Project) -> dict[str, set[Path]]:
    """All files in the folders of the shadows of all runs, checksums of Hadoop left out."""
    found: dict[str, set[Path]] = {}
    warehouse = Path(project.wiring.profile.catalog["warehouse"].removeprefix("file://"))
    for status in project.wiring.context.runs.list(open_only=False):
        name = _shadow(project, status.run_id).rpartition(".")[2]
        paths = warehouse.glob(f"*/{name}/**/*")
        found[status.run_id] = {
            path for path in paths if path.is_file() and not path.name.endswith(".crc")
        }
    return found
