"""Loading transforms: by name and version, from Python and SQL files, through the public API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.staging.jobs import Job, load_job
from lakehouse_backfill.adapters.spark.views import ensure_view
from lakehouse_backfill.domain.labels.values import NamedRange
from lakehouse_backfill.domain.manifest import TransformRef
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported
from tests.support.spark.lake import COPY_JOB, DAYS, Lake, PlanMaker, copy_job

Daily = Callable[..., PlanMaker]


def load(lake: Lake, text: str, file: str = "jobs/job.py", name: str = "copy") -> Job:
    lake.job(text, file)
    wanted = TransformRef(name=name, version="1.0.0", file=file)
    return load_job(lake.spark, lake.project, wanted, {"src"})


def test_the_version_that_is_asked_for_is_loaded(lake: Lake) -> None:
    later = COPY_JOB.replace('"1.0.0"', '"1.1.0"').replace("def copy", "def copy_1_1_0")
    assert load(lake, COPY_JOB + later).info.version == "1.0.0"


def test_a_missing_version_names_what_the_file_offers(lake: Lake) -> None:
    with pytest.raises(ConfigError, match=r"copy 1\.1\.0"):
        load(lake, COPY_JOB.replace('"1.0.0"', '"1.1.0"'))


def test_inputs_that_the_manifest_lacks_are_named(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="airports"):
        load(lake, COPY_JOB.replace('("src",)', '("src", "airports")'))


def test_a_missing_file_is_not_found(lake: Lake) -> None:
    wanted = TransformRef(name="a", version="1.0.0", file="jobs/none.py")
    with pytest.raises(NotFound):
        load_job(lake.spark, lake.project, wanted, set())


@pytest.mark.parametrize("file", ["../job.py", "/etc/passwd", "jobs/../../x.py"])
def test_a_file_outside_the_project_is_refused(lake: Lake, file: str) -> None:
    wanted = TransformRef(name="a", version="1.0.0", file=file)
    with pytest.raises(ConfigError, match="outside the project"):
        load_job(lake.spark, lake.project, wanted, set())


@pytest.mark.req("X1")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("src.sparkSession._jvm.System.exit(1)", "_jvm"),
        ("src._jdf", "_jdf"),
        ("src.sparkSession.sparkContext.parallelize([1])", "sparkContext"),
        ("src.rdd.collect()", "rdd"),
        ("getattr(src.sparkSession, '_jsparkSession')", "_jsparkSession"),
        ("src.selectExpr(\"reflect('java.lang.System', 'gc')\")", "reflect"),
    ],
)
def test_reaching_past_the_api_is_refused_with_file_and_line(
    lake: Lake, line: str, found: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(lake, COPY_JOB.replace("    return", f"    {line}\n    return"))
    assert [(f.file, f.line, f.field) for f in caught.value.faults] == [("jobs/job.py", 7, found)]


def test_a_module_of_a_job_has_the_rules_of_the_job(lake: Lake, daily: Daily) -> None:
    lake.job("def rows(frame):\n    return frame._jdf\n", "jobs/steps.py")
    plan = daily(copy_job("return src")).make()
    resolved = plan.resolved.model_copy(update={"files": {"jobs/steps.py": "0" * 64}})
    with pytest.raises(ConfigError, match="past the DataFrame API") as caught:
        lake.staging().load(plan.model_copy(update={"resolved": resolved}))
    assert [(one.file, one.line) for one in caught.value.faults] == [("jobs/steps.py", 2)]


def test_a_job_that_is_not_python_is_refused_with_its_line(lake: Lake) -> None:
    with pytest.raises(ConfigError, match=r"jobs/job\.py:1"):
        load(lake, "def (")


SQL = """-- name: copy
-- version: 1.0.0
-- inputs: src
WITH mine AS (SELECT * FROM {src} WHERE d >= :publish_from AND d < :publish_to)
SELECT d, k, v + :plus AS v FROM mine
"""


@pytest.mark.req("X1")
def test_a_sql_file_computes_a_chunk_from_its_inputs_and_parameters(
    lake: Lake, daily: Daily
) -> None:
    maker = daily(file="jobs/job.sql", warm_up_days=2, config={"plus": 7})
    lake.job(SQL, "jobs/job.sql")
    plan = maker.make()
    record = lake.stage(plan)
    assert (record.output_rows, record.outside_rows) == (8, 0)
    expected = [(d, k, v + 7) for d, k, v in lake.rows("src") if str(d) in DAYS[4:6]]
    assert [row for row in lake.rows("shadow") if str(row[0]) in DAYS[4:6]] == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SQL.replace("-- version: 1.0.0\n", ""), "-- version:"),
        (SQL.replace("-- inputs: src", "-- inputs: src, "), None),
        (SQL.replace("{src}", "lake.a.b"), "not pinned"),
        (SQL + "; DROP TABLE x", "statements"),
        (SQL.replace("SELECT d,", "INSERT INTO x SELECT d,"), "INSERT"),
        (SQL.replace("1.0.0", "1.0"), "semantic version"),
    ],
)
def test_a_sql_file_is_one_query_over_its_inputs(lake: Lake, text: str, said: str | None) -> None:
    if said is None:
        assert load(lake, text, "jobs/job.sql").info.inputs == ("src",)
        return
    with pytest.raises(ConfigError, match=said):
        load(lake, text, "jobs/job.sql")


@pytest.mark.req("X7")
def test_python_functions_of_a_job_run_on_executors(lake: Lake, daily: Daily) -> None:
    helper = "def plus(value):\n    return value + OFFSET\n\nOFFSET = 5\n"
    body = 'return src.withColumn("v", F.udf(plus, "bigint")("v"))'
    plan = daily(copy_job(body, above=helper)).make()
    lake.stage(plan)
    found = sorted(row[2] for row in lake.rows("shadow") if str(row[0]) == DAYS[4])
    assert found == [9, 19, 29, 39]


@pytest.mark.req("C1")
def test_the_view_is_made_once_and_readable(lake: Lake) -> None:
    lake.sql("CREATE TABLE {ns}.base (a int)")
    lake.sql("INSERT INTO {ns}.base VALUES (1)")
    select = f"SELECT a + 1 AS b FROM lake.{lake.table('base')}"
    for _ in range(2):
        ensure_view(lake.tables, lake.namespace, "seen", select)
    assert [row["b"] for row in lake.sql("SELECT * FROM {ns}.seen").collect()] == [2]


def test_a_catalog_without_views_says_so() -> None:
    class WithoutViews:
        def sql(self, text: str) -> Any:
            raise RuntimeError("java.lang.UnsupportedOperationException: no views")

    session: Any = WithoutViews()
    with pytest.raises(Unsupported, match="keeps no views"):
        ensure_view(SparkTables(session, "lake"), "a", "v", "SELECT 1")


def test_lists_of_config_and_the_row_predicate_are_arrays_in_sql(lake: Lake) -> None:
    from lakehouse_backfill.adapters.spark.staging.jobs import JobContext

    where = "array_contains(:wanted, id) AND array_contains(:rows_id, id)"
    where += " AND id >= :rows_n[0] AND id < :rows_n[1]"
    text = SQL.split("WITH")[0] + f"SELECT id FROM {{src}} WHERE {where}"
    job = load(lake, text, "jobs/job.sql")
    context = JobContext(
        "bf-1", "backfill", datetime(2024, 2, 1, tzinfo=timezone.utc), "1.0.0",
        {"wanted": (1, 2, 3)}, row_predicate={"id": (2, 3, 4), "n": NamedRange(0, 3)},
    )  # fmt: skip
    found = job.run(context, {"src": lake.spark.range(9)})[0].collect()
    assert [row["id"] for row in found] == [2]


def test_instants_in_sql_parameters_do_not_depend_on_the_local_zone(lake: Lake) -> None:
    from lakehouse_backfill.adapters.spark.staging.jobs import JobContext

    text = SQL.split("WITH")[0] + "SELECT string(:clock) AS c FROM {src}"
    job = load(lake, text, "jobs/job.sql")
    clock = datetime(2024, 2, 1, 12, tzinfo=timezone.utc)
    context = JobContext("bf-1", "backfill", clock, "1.0.0", {})
    frame = job.run(context, {"src": lake.spark.range(1)})[0]
    assert frame.collect()[0]["c"] == "2024-02-01 12:00:00"
