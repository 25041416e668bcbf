"""A product with merge-on-read deletes by Spark, through the whole life of a run.

The oracle is Spark's own plain reading of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.project import Project
from tests.support.spark.lake import Lake

DAYS = tuple(f"2024-01-0{day}" for day in range(1, 6))
PROFILES = """\
api_version: lakehouse-backfill/v1
default: lab
profiles:
  lab:
    environment: dev
    control_namespace: {ns}_control
    shadow_namespace: {ns}_shadow
    catalog:
      name: lake
      type: sql
      uri: "sqlite:///${{project}}/catalog.db?timeout=30"
      warehouse: "file://${{project}}/warehouse"
    spark: {{spark.master: "local[2]", spark.sql.shuffle.partitions: "2"}}
"""
CONTRACT = """\
api_version: lakehouse-backfill/v1
product: {ns}.out
table: {ns}.out
description: Amounts per day.
owner: ana
key: [d, k]
partitioning: [{{column: d}}]
columns:
  - {{name: d, type: date}}
  - {{name: k, type: long}}
  - {{name: v, type: long}}
consumers: []
classification: internal
retention_days: unlimited
lineage_columns: false
roles: {{approve: [ana], accept: [ana], publish: [ana]}}
"""
MANIFEST = """\
api_version: lakehouse-backfill/v1
run: {{requested_by: ana, reason: wrong rate, reason_code: bug_fix}}
product: {ns}.out
transform: {{name: tenfold, version: 1.0.0, file: jobs/tenfold.py}}
sources:
  src: {{table: {ns}.src, range: {{column: d, from: 2024-01-01, to: 2024-02-01}}}}
target:
  partitions: {{column: d, from: 2024-01-02, to: 2024-01-04}}
validation: {{edge_partitions: 0}}
"""
JOB = """\
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform

@transform(name="tenfold", version="1.0.0", inputs=("src",))
def tenfold(context, src):
    return src.select("d", "k", (F.col("v") * 10).alias("v"))
"""


@pytest.fixture(params=[2, 3], ids=["format 2", "format 3"])
def project(request: pytest.FixtureRequest, lake: Lake) -> Iterator[Project]:
    """A project on the test's lake; its target deletes merge-on-read."""
    folder, ns = lake.profile_folder, lake.namespace
    for name, text in {
        "catalog/profiles.yaml": PROFILES,
        f"catalog/contracts/{ns}.out.yaml": CONTRACT,
        "jobs/run.yaml": MANIFEST,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(ns=ns), encoding="utf-8")
    (folder / "jobs/tenfold.py").write_text(JOB, encoding="utf-8")
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
    yield Project.open(folder)
    for file in (folder / "catalog/profiles.yaml", folder / f"catalog/contracts/{ns}.out.yaml"):
        file.unlink()


def staged(project: Project) -> str:
    run = str(project.plan("jobs/run.yaml", by="ana").run_id)
    project.approve(run, "ana")
    project.stage(run, "ana")
    project.validate(run, "ana")
    project.accept(run, "ana")
    return run


def days(lake: Lake, table: str = "out", snapshot_id: int | None = None) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {day: set() for day in DAYS}
    for day, key, value in lake.rows(table, snapshot_id):
        found[str(day)].add((key, value))
    return found


def deletes(lake: Lake) -> int:
    return lake.sql("SELECT * FROM {ns}.out.delete_files").count()


@pytest.mark.req("U12", "E3")
def test_erased_rows_stay_erased_through_publication_and_rollback(
    lake: Lake, project: Project, tmp_path: Path
) -> None:
    product = f"{lake.namespace}.out"
    lake.sql("DELETE FROM {ns}.out WHERE k IN (1, 3)")  # of the 2nd and the 4th
    lake.sql("DELETE FROM {ns}.src WHERE k IN (1, 2)")  # of the 2nd and the 3rd
    before = days(lake)
    assert deletes(lake) == 2

    run = staged(project)
    candidate = project.reconcile(f"{product}@{lake.head('out')}", _shadow(project, run))
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
    now = project.reconcile(f"{product}@{lake.head('out')}", f"{product}@{lake.head('out')}")
    assert {item.partition: item.new_checksum for item in now.partitions} == told

    lake.sql("INSERT INTO {ns}.out VALUES (date'2024-01-05', 1000, 1)")  # a live job
    preview = project.preview_rollback(product, to=0)
    assert [item.partitions for item in preview.rewritten] == [(DAYS[1],)]
    project.rollback(product, to=0, reason="wrong", by="ana")

    back = days(lake)
    assert back == {**before, DAYS[4]: before[DAYS[4]] | {(1000, 1)}}
    assert (1, 100) not in back[DAYS[1]]
    assert deletes(lake) == 1
    shadows = lake.spark.sql(f"SHOW TABLES IN lake.{lake.namespace}_shadow").collect()
    assert not [row.tableName for row in shadows if "rollback" in row.tableName]


@pytest.mark.req("U12")
def test_tags_keep_live_files_from_an_expiry_after_rollback(lake: Lake, project: Project) -> None:
    product = f"{lake.namespace}.out"
    project.publish(staged(project), "ana")
    project.rollback(product, to=0, reason="wrong", by="ana")
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-02', 900, 9)")
    project.publish(staged(project), "ana")
    project.rollback(product, to=0, reason="wrong again", by="ana")
    files, rows = lake.files("out"), days(lake)

    _expire_everything(lake)

    assert lake.files("out") == files
    assert _missing(files) == set()
    assert days(lake) == rows

    # Without the tags the same expiry deletes files that readers need: the test provokes it.
    for name in lake.catalog.load_table(product).metadata.refs:
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


@pytest.mark.req("U12")
def test_an_erasure_deletes_what_spark_staged_for_a_cancelled_run_and_nothing_else(
    lake: Lake, project: Project
) -> None:
    product = f"{lake.namespace}.out"
    lake.sql("DELETE FROM {ns}.out WHERE k IN (1, 3)")
    published = staged(project)
    project.publish(published, "ana")
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-02', 99, 99)")
    cancelled = staged(project)
    project.cancel(cancelled, "ana", "no")
    lake.sql("INSERT INTO {ns}.out VALUES (date'2024-01-02', 98, 98)")
    rows, folders = days(lake), _shadow_files(project)
    assert {run for run, files in folders.items() if files} == {published, cancelled}
    seen = project.maintain("ana", product, "request 4711", dry_run=True)
    assert not seen.left
    (deleted,) = project.maintain("ana", product, "request 4711").deleted
    assert seen.deleted == (deleted,)
    assert (deleted.run_id, deleted.files) == (cancelled, len(folders[cancelled]))
    after = _shadow_files(project)
    assert (after[published], after[cancelled]) == (folders[published], set())
    assert days(lake) == rows


def _shadow_files(project: Project) -> dict[str, set[Path]]:
    """All files in the folders of the shadows of all runs, checksums of Hadoop left out."""
    found: dict[str, set[Path]] = {}
    warehouse = project.wiring.folder / "warehouse"
    for status in project.wiring.context.runs.list(open_only=False):
        name = _shadow(project, status.run_id).rpartition(".")[2]
        paths = warehouse.glob(f"*/{name}/**/*")
        found[status.run_id] = {
            path for path in paths if path.is_file() and not path.name.endswith(".crc")
        }
    return found
