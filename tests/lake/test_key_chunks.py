"""Chunks of a whole table by buckets and ranges of its key: killed, resumed, compared by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction
from pyspark.sql.functions import array

from lakehouse_backfill.adapters.spark.dataframes import is_in_ranges
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain.labels.key_ranges import range_label
from lakehouse_backfill.domain.partitions import (
    NULL_LABEL,
    Chunk,
    Scope,
    ScopeField,
    scope_row_ranges,
)
from lakehouse_backfill.errors import ChecksFailed
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.examples.plans import a_plan
from tests.support.fakes.kills import Killed, hooked
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.lake]

JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="out", version="21.0.0", inputs=("src",))
def job(context, src):
    reason = F.when(F.col("name") == "bad", F.lit("no name")).alias("_reject_reason")
    found = src.groupBy("id").agg(F.max("name").alias("name"), F.sum("v").alias("v"))
    return found.select("id", "name", "v", reason)
"""
ANSWERS = "consumers: []\nclassification: internal\nretention_days: unlimited\n"
BUCKETS, ROWS = 5, 45
CUTS: dict[str, Any] = {
    "buckets": {"key_buckets": {"column": "id", "count": BUCKETS}},
    "ranges": {"key_ranges": {"column": "id", "bounds": [-5, 9, 20, 32]}},
    "chosen ranges": {"key_ranges": {"column": "id", "size": ROWS // BUCKETS}},
}


@pytest.fixture
def project(lake: Lake) -> Project:
    where = str(lake.profile_folder)
    real = {k: v.replace("${project}", where) for k, v in lake.profile.catalog.items()}
    profile = lake.profile.model_copy(update={"catalog": real})
    (lake.project / "catalog").mkdir(exist_ok=True)
    lake.sql("CREATE TABLE {ns}.out (id bigint, name string, v bigint) USING iceberg")
    lake.append("out", *((number, "old", number) for number in range(ROWS)))
    lake.sql("CREATE TABLE {ns}.src (id bigint, name string, v bigint, t date) USING iceberg")
    rows = [(n % 40, f"n{n % 3}", n, date(2024, 1, 1 + n % 28)) for n in range(200)]
    lake.append("src", *rows, *((n, "bad", 1, date(2024, 1, 1)) for n in range(70, 73)))
    return Project(Adapters(lake.project, profile, NullProgress(), "dev"))


def planned(
    project: Project,
    lake: Lake,
    cut: str,
    job: str = JOB,
    own: str | None = None,
    **limits: int,
) -> str:
    """Plan a run of the whole table in chunks by key, and approve it."""
    contract = Path(project.add_product(lake.table("out"), "lead").file)
    contract.write_text(contract.read_text().replace("key: []", "key: [id]") + ANSWERS)
    lake.job(job, "jobs/out/transform.py")
    manifest = Path(project.new_manifest(contract.stem, None, None, "why", "bug_fix", "ann").file)
    drawn = yaml.safe_load(manifest.read_text())
    window = {"column": "t", "from": date(2023, 12, 1), "to": date(2024, 2, 1)}
    drawn["sources"]["src"] |= {"table": lake.table("src"), "range": window}
    # Jobs of one name and version have one code in the lake, which other tests use too.
    drawn["transform"]["version"] = "21.0.1" if job != JOB else "21.0.0"
    if own is not None:
        drawn["sources"]["src"]["partition_column"] = own
    drawn["limits"] = CUTS[cut] | limits
    drawn["safety"] = drawn.get("safety", {}) | {"max_rejected_share": 0.5}
    manifest.write_text(yaml.safe_dump(drawn))
    run_id = str(project.plan(manifest, by="ann").run_id)
    project.approve(run_id, by="lead")
    return run_id


def held(lake: Lake, short: str) -> list[tuple[Any, ...]]:
    rows = lake.catalog.load_table(lake.table(short)).scan().to_arrow()
    return duckdb.from_arrow(rows).order("id").fetchall()


def computed(lake: Lake) -> list[tuple[Any, ...]]:
    """Compute what the job computes by DuckDB."""
    source = duckdb.from_arrow(lake.catalog.load_table(lake.table("src")).scan().to_arrow())
    return source.query(
        "source",
        "SELECT id, max(name), sum(v)::BIGINT FROM source WHERE name <> 'bad' "
        "GROUP BY id ORDER BY id",
    ).fetchall()


@contextmanager
def killed_on(point: str, time: int) -> Iterator[None]:
    """Kill the process when it reaches a point for the n-th time."""
    reached = Counter[str]()

    def kill(found: str) -> None:
        reached[found] += 1
        if found == point and reached[found] == time:
            raise Killed(point)

    with pytest.raises(Killed), hooked(kill):
        yield


@pytest.mark.req("P3", "X2", "X3")
@pytest.mark.parametrize("cut", ["buckets", "chosen ranges"])
def test_chunks_by_key_are_gone_on_with_after_kills_and_make_the_whole_table(
    lake: Lake, project: Project, cut: str
) -> None:
    run_id = planned(project, lake, cut)
    before = held(lake, "out")
    for point, time in (
        ("Spark.overwrite:committed", 1),
        ("ControlLog.backfill_chunk_run:committing", 2),
        ("Spark.overwrite:committing", 2),
    ):
        with killed_on(point, time):
            project.run(run_id, "ann", take_over=True)
        chunks = project.chunks(run_id).chunks
    assert len(chunks) == BUCKETS
    statuses = [chunk.status for chunk in chunks]
    assert statuses.count("done") in range(1, BUCKETS)
    found = project.run(run_id, "ann", take_over=True).to_dict()
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    wanted = computed(lake)
    ledger = project.chunks(run_id).chunks
    assert sum(chunk.output_rows or 0 for chunk in ledger) == len(wanted)
    assert sum(chunk.rejected_rows or 0 for chunk in ledger) == 3
    assert {chunk.input_rows for chunk in ledger} == {203}
    assert held(lake, "out") == before
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    assert held(lake, "out") == wanted
    checks = project.verify(run_id, deep=True).to_dict()["checks"]
    assert [check["name"] for check in checks if check["ok"] is False] == []
    project.rollback(lake.table("out"), reason="wrong", by="lead")
    assert held(lake, "out") == before


@pytest.mark.req("P3", "X2", "X3")
def test_chunks_by_key_read_only_their_own_rows_where_the_source_names_the_key(
    lake: Lake, project: Project
) -> None:
    """Of ranges as well, in the test below."""
    run_id = planned(project, lake, "buckets", own="id", parallel=2)
    with killed_on("ControlLog.backfill_chunk_run:committing", 2):
        project.run(run_id, "ann", take_over=True)
    found = project.run(run_id, "ann", take_over=True).to_dict()
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    assert sum(chunk.input_rows or 0 for chunk in project.chunks(run_id).chunks) == 203
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    assert held(lake, "out") == computed(lake)


@pytest.mark.req("X3", "X9", "T4")
def test_a_commit_without_an_answer_that_lands_late_is_refused_and_the_chunk_is_there_once(
    lake: Lake, project: Project
) -> None:
    """It is on its way while the run waits, and arrives when the next attempt is computed."""
    run_id = planned(project, lake, "ranges", own="id", failures_in_a_row=2)
    plan = project.wiring.context.runs.plan(run_id)
    reached, refused, on_its_way = Counter[str](), list[Exception](), list[Transaction]()

    def lose_the_answer(point: str) -> None:
        reached[point] += 1
        attempt = reached[point] if point == "Spark.overwrite:committing" else 0
        if attempt == 2:
            table = lake.catalog.load_table(plan.shadow_table)
            rows = [row for row in computed(lake) if -5 <= row[0] < 9]
            columns = zip(*rows, strict=True)
            added = pa.table(dict(zip(("id", "name", "v"), columns, strict=True)))
            mark = {"lakehouse-backfill.chunk-id": plan.resolved.chunks[1].chunk_id}
            on_its_way.append(table.transaction())
            on_its_way[0].append(added, snapshot_properties=mark)
            raise RuntimeError("org.apache.iceberg.exceptions.CommitStateUnknownException: 504")
        if attempt == 3:
            try:
                on_its_way[0].commit_transaction()
            except (CommitFailedException, ValueError) as error:
                refused.append(error)

    with hooked(lose_the_answer):
        found = project.run(run_id, "ann").to_dict()
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    assert "UUID does not match" in str(refused)
    assert reached["Spark.overwrite:committed"] == len(plan.resolved.chunks)
    assert sum(chunk.input_rows or 0 for chunk in project.chunks(run_id).chunks) == 203
    project.accept(run_id, by="lead")
    project.publish(run_id, by="lead")
    assert held(lake, "out") == computed(lake)


@pytest.mark.req("P3", "Q9")
def test_a_row_of_a_key_that_another_chunk_reads_halts_the_run(
    lake: Lake, project: Project
) -> None:
    moved = JOB.replace('found.select("id"', 'found.select((F.col("id") + 1).alias("id")')
    run_id = planned(project, lake, "ranges", job=moved.replace("21.0.0", "21.0.1"), own="id")
    with pytest.raises(ChecksFailed, match="outside and left out"):
        project.run(run_id, "ann")


@pytest.mark.req("P3", "Q9")
def test_of_a_chunk_by_key_spark_reads_only_what_its_own_commit_added(
    lake: Lake,
) -> None:
    lake.sql("CREATE TABLE {ns}.parts (id bigint, d date) USING iceberg")
    commits = []
    for rows in ([(1,), (3,)], [(12,), (15,)], [(30,)]):
        lake.append("parts", *((key, date(2024, 1, 1)) for (key,) in rows))
        commits.append(lake.head("parts"))
        if len(commits) == 1:
            first = lake.files("parts")
    field = ScopeField(column="id", transform="range", type="long")
    keys = Scope(field=field, partitions=(range_label(10, 20),))
    plan = a_plan().model_copy(update={"shadow_table": lake.table("parts")})
    chunk = Chunk(chunk_id="c0002-range-2-of-3", partitions=("all",), keys=keys)
    for path in first:
        Path(path.removeprefix("file:")).unlink()
    found = lake.tables.read_chunk(plan, chunk, commits[1])
    assert sorted(row["id"] for row in found.collect()) == [12, 15]


@pytest.mark.req("P3")
def test_spark_finds_each_key_in_the_one_range_that_holds_it(lake: Lake) -> None:
    """Also texts beyond the basic plane, which UTF-16 orders otherwise, and none."""
    moments = [datetime(year, 1, 1, 0, 0, 0, 1, timezone.utc) for year in (1901, 2024, 9999)]
    values: dict[tuple[str, str], list[Any]] = {
        ("long", "bigint"): [-(2**63), -1, 0, 2**63 - 1],
        ("string", "string"): ["", "Z", "a", "\u00e9", "\uffff", "\U00010000", "\U0010ffff"],
        ("date", "date"): [date.min, date(1970, 1, 1), date.max],
        ("timestamptz", "timestamp"): moments,
        ("timestamp", "timestamp_ntz"): [one.replace(tzinfo=None) for one in moments],
        ("decimal(5, 2)", "decimal(5,2)"): [Decimal(n).scaleb(-2) for n in (-99999, 1, 99999)],
    }
    for (kind, of_spark), keys in values.items():
        rows = lake.spark.createDataFrame(
            [(max(0, at - 1), key) for at, key in enumerate((None, *keys))],
            f"place int, k {of_spark}",
        )
        ends = pairwise((None, *keys[1:], None))
        field = ScopeField(column="k", transform="range", type=kind)
        labels = [range_label(lower, upper) for lower, upper in ends]
        labels_of_chunks = [(NULL_LABEL, labels[0]), *((label,) for label in labels[1:])]
        scopes = [Scope(field=field, partitions=labels) for labels in labels_of_chunks]
        held = [is_in_ranges(scope_row_ranges(scope)).cast("int") for scope in scopes]
        for row in rows.select("place", "k", array(*held).alias("held")).collect():
            assert [at for at, one in enumerate(row["held"]) if one] == [row["place"]], row
