"""Restricted columns are followed through Spark's own plans, and stopped before a shadow exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark.session.session import analysed_plan_json
from lakehouse_backfill.core.guards.privacy.column_flow import TracedInput, trace_columns
from lakehouse_backfill.core.staging.determinism import RESTRICTED_FLOW
from lakehouse_backfill.errors import Blocked
from tests.support.spark.lake import Lake
from tests.support.spark.modes import Make, Modes

pytestmark = [pytest.mark.lake, pytest.mark.req("E3")]

Build = Callable[[DataFrame], DataFrame]


def same_rows(frames: Iterator[Any]) -> Iterator[Any]:
    yield from frames


#: What a transform makes of columns k, mail (restricted) and v; columns that hold mail. Spark does
#: not write out how a rollup and an unpivot make their columns: they count as made of all.
PLANS: dict[str, tuple[Build, set[str]]] = {
    "as it is": (lambda f: f, {"mail"}),
    "renamed, then dropped": (
        lambda f: f.withColumnRenamed("mail", "x").withColumn("y", F.upper("x")).drop("x"), {"y"}),
    "in texts and structures": (
        lambda f: f.select("k", F.concat_ws(";", "mail", "v").alias("a"),
                           F.struct("k", "mail").alias("b"), F.sha2("mail", 256).alias("c")),
        {"a", "b", "c"}),
    "a case": (
        lambda f: f.select("k", F.when(F.col("mail") == "a", 1).otherwise(F.col("v")).alias("a")),
        {"a"}),
    "a self join": (
        lambda f: f.alias("l").join(f.alias("r"), F.col("l.k") == F.col("r.v"))
        .select("l.k", F.col("r.mail").alias("a"), F.col("r.v").alias("b")), {"a"}),
    "a join by name": (
        lambda f: f.select("k", "v").join(f.select("k", F.col("mail").alias("a")), "k", "full"),
        {"a"}),
    "groups": (
        lambda f: f.groupBy("k").agg(F.max("mail").alias("a"), F.count("mail").alias("n"),
                                     F.sum("v").alias("s")), {"a"}),
    "a rollup": (
        lambda f: f.rollup("k", "mail").agg(F.sum("v").alias("s")), {"k", "mail"}),
    "a pivot": (lambda f: f.groupBy("k").pivot("v", [1, 2]).agg(F.first("mail")), {"1", "2"}),
    "a union by name": (
        lambda f: f.select("k", F.lit("x").alias("a"))
        .unionByName(f.select(F.col("mail").alias("a"), "k")), {"a"}),
    "a window": (
        lambda f: f.withColumn("a", F.lag("mail").over(Window.partitionBy("v").orderBy("k")))
        .withColumn("n", F.row_number().over(Window.partitionBy("mail").orderBy("k")))
        .select("a", "n"), {"a"}),
    "parts as rows": (
        lambda f: f.select("k", F.explode(F.split("mail", "@")).alias("a")), {"a"}),
    "a function in Python": (
        lambda f: f.select("k", F.udf(lambda one: one)("mail").alias("a"),
                           F.udf(lambda one: one)("k").alias("b")), {"a"}),
    "rows in Python": (lambda f: f.mapInPandas(same_rows, "a string, b long"), {"a", "b"}),
    "groups in Python": (
        lambda f: f.select("k", "v").groupBy("k").applyInPandas(lambda p: p, "k long, v long"),
        set()),
    "groups in Python with the column": (
        lambda f: f.groupBy("k").applyInPandas(lambda p: p, "k long, mail string, v long"),
        {"k", "mail", "v"}),
    "unpivoted": (
        lambda f: f.select("k", "mail", F.col("v").cast("string").alias("v"))
        .unpivot(["k"], ["mail", "v"], "name", "a"), {"name", "a"}),
    "a query": (
        lambda f: f.sparkSession.sql(
            "WITH c AS (SELECT k, mail AS m FROM {f}) SELECT c.k, d.m AS a, "
            "(SELECT max(m) FROM c) AS b FROM c JOIN c d ON c.k = d.k "
            "WHERE c.m IN (SELECT mail FROM {f})", f=f), {"a", "b"}),
    "a lateral query": (
        lambda f: f.sparkSession.sql(
            "SELECT k, a FROM {f}, LATERAL (SELECT lower(mail) AS a)", f=f), {"a"}),
    "a function on an array": (
        lambda f: f.select("k", F.transform(F.array("mail"), F.upper).alias("a"),
                           F.transform(F.array("k"), lambda one: one + 1).alias("b")), {"a"}),
    "sorted, distinct, sampled": (
        lambda f: f.select("k", F.col("mail").alias("a")).distinct().orderBy("a").sample(0.5)
        .repartition(2, "k").hint("broadcast").limit(3), {"a"}),
    "a filter decides, and shows nothing": (
        lambda f: f.where(F.col("mail") == "a").select("k", F.col("mail").isNull().alias("n")),
        set()),
}  # fmt: skip


def test_columns_are_followed_through_what_spark_makes_of_the_code(lake: Lake) -> None:
    lake.create("people", (("k", "long"), ("mail", "string"), ("v", "long")))
    frame = lake.spark.table(f"{lake.name}.{lake.table('people')}")
    given = TracedInput("p", frozenset({"k", "mail", "v"}), frozenset({"mail"}))
    found = {}
    for name, (build, _) in PLANS.items():
        text = analysed_plan_json(build(frame))
        assert text is not None
        traced = trace_columns(text, (given,))
        assert set(traced) == {one.casefold() for one in build(frame).columns}, name
        found[name] = {column for column, origins in traced.items() if origins == {"p.mail"}}
    assert found == {name: columns for name, (_, columns) in PLANS.items()}


JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@F.udf("bigint")
def shifted(value):
    return value + 1

@transform(name="copies", version="1.0.0", inputs=("src",))
def job(context, src):
    return src.select("d", "k", "tenant", "v", shifted("v").alias("ver"))
"""


def staged(make: Make, **safety: Any) -> tuple[Modes, str]:
    """Plan a job that copies the restricted column `v` into `ver`, by a function in Python."""
    modes = make(privacy={"columns": {"v": {"classification": "restricted"}}})
    modes.source("2, 1, A, 20, 1", "3, 1, A, 30, 1")
    modes.transform = "copies"
    modes.lake.job(JOB, "jobs/job.py")
    given = {"columns": {"v": "restricted"}, "purposes": {"repair": ["*"]}}
    run = {"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix", "purpose": "repair"}
    return modes, modes.plan(source={"privacy": given}, run=run, safety=safety)


def test_a_copy_under_another_name_is_refused_before_a_shadow_exists(make: Make) -> None:
    modes, run_id = staged(make)
    with pytest.raises(Blocked, match=r"ver \(of class internal\) is made of src\.v") as refused:
        modes.project.stage(run_id, "ann")
    context = modes.project.wiring.context
    assert context.tables.describe(context.runs.plan(run_id).shadow_table) is None
    assert refused.value.state == "no row was written; readers see what they saw before"


def test_a_copy_that_a_person_waives_by_name_is_staged_and_is_evidence(make: Make) -> None:
    waiver = {"column": "ver", "by": "lead", "reason": "shifted by a number that nobody knows"}
    modes, run_id = staged(make, restricted_flows=[waiver])
    assert modes.project.stage(run_id, "ann").state == "staged"
    found = modes.project.wiring.context.evidence.newest(run_id, RESTRICTED_FLOW)
    assert found is not None
    assert found[1] == {"columns": {"v": ["src.v"], "ver": ["src.v"]}}
