"""Catalyst's analysed plan: what decides about the output of a transform, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lakehouse_backfill.core.guards.analysed_plan import find_in_plan

Build = Callable[[DataFrame], DataFrame]


def by_key() -> object:
    return Window.partitionBy("k").orderBy("d")


FOUND: dict[str, tuple[Build, list[tuple[str, str]]]] = {
    "now": (lambda f: f.withColumn("x", F.now()), [("wall_clock", "now()")]),
    "today": (lambda f: f.where(F.col("d") < F.current_date()), [("wall_clock", "current_date()")]),
    "curdate": (lambda f: f.withColumn("x", F.curdate()), [("wall_clock", "current_date()")]),
    "local time": (
        lambda f: f.withColumn("x", F.localtimestamp()), [("wall_clock", "localtimestamp()")]),
    "rand": (lambda f: f.withColumn("x", F.rand(3)), [("random_value", "rand()")]),
    "rand read through an alias": (
        lambda f: f.withColumn("r", F.rand()).select((F.col("r") * 2).alias("x")),
        [("random_value", "rand()")]),
    "rand in a subquery": (
        lambda f: f.sparkSession.sql(
            "SELECT k, (SELECT max(r) FROM (SELECT rand() AS r FROM {f})) AS m FROM {f}", f=f),
        [("random_value", "rand()")]),
    "rand in a common table expression": (
        lambda f: f.sparkSession.sql(
            "WITH a AS (SELECT k, rand() AS r FROM {f}) SELECT a.r FROM a JOIN a b ON a.k = b.k",
            f=f),
        [("random_value", "rand()")]),
    "rand in the second part of a union": (
        lambda f: f.select("x").union(f.select(F.rand())), [("random_value", "rand()")]),
    "uuid": (lambda f: f.withColumn("i", F.expr("uuid()")), [("generated_id", "uuid()")]),
    "row ids": (
        lambda f: f.withColumn("i", F.monotonically_increasing_id()),
        [("generated_id", "monotonically_increasing_id()")]),
    "partition ids": (
        lambda f: f.withColumn("i", F.spark_partition_id()),
        [("generated_id", "spark_partition_id()")]),
    "file name": (lambda f: f.withColumn("i", F.input_file_name()),
                  [("file_name", "input_file_name()")]),
    "user": (lambda f: f.withColumn("i", F.current_user()), [("environment", "current_user()")]),
    "time zone": (lambda f: f.withColumn("i", F.current_timezone()),
                  [("time_zone", "current_timezone()")]),
    "list": (lambda f: f.groupBy("k").agg(F.collect_list("v")),
             [("unordered_collection", "collect_list(v)")]),
    "set": (lambda f: f.groupBy("k").agg(F.collect_set("v")),
            [("unordered_collection", "collect_set(v)")]),
    "first": (lambda f: f.groupBy("k").agg(F.first("v")), [("unordered_first", "first(v)")]),
    "last": (lambda f: f.groupBy("k").agg(F.last("v")), [("unordered_first", "last(v)")]),
    "any": (lambda f: f.groupBy("k").agg(F.any_value("v")), [("unordered_first", "any_value(v)")]),
    "duplicates": (lambda f: f.dropDuplicates(["k"]), [("unordered_first", "dropDuplicates()")]),
    "row number by a key that may repeat": (
        lambda f: f.withColumn("n", F.row_number().over(by_key())).where("n = 1").drop("n"),
        [("tied_rank", "row_number(k, d)")]),
    "row number by nothing": (
        lambda f: f.withColumn("n", F.row_number().over(Window.orderBy(F.lit(1)))),
        [("tied_rank", "row_number()")]),
    "max_by": (lambda f: f.groupBy("k").agg(F.max_by("v", "d")), [("tied_rank", "max_by(v, d)")]),
    "limit": (lambda f: f.limit(2), [("unordered_limit", "limit()")]),
    "limit of rows sorted by a key that may repeat": (
        lambda f: f.orderBy("d").limit(2), [("tied_rank", "limit of sorted rows()")]),
    "sample": (lambda f: f.sample(0.5, seed=1), [("unordered_limit", "sample()")]),
    "sum of doubles": (lambda f: f.groupBy("k").agg(F.sum("x")), [("float_sum", "sum(x)")]),
    "mean of doubles": (lambda f: f.groupBy("k").agg(F.avg("x")), [("float_sum", "avg(x)")]),
    "rounded sum": (lambda f: f.groupBy("k").agg(F.round(F.sum(F.col("x") * 2), 2)),
                    [("float_sum", "sum(x)")]),
    "sum over a window": (
        lambda f: f.withColumn("s", F.sum("x").over(Window.partitionBy("k"))),
        [("float_sum", "sum(x)")]),
    "deviation": (lambda f: f.groupBy("k").agg(F.stddev("v")), [("float_sum", "stddev(v)")]),
    "a udf that says so": (
        lambda f: f.withColumn("u", F.udf(str).asNondeterministic()("v")),
        [("random_value", "str(v)")]),
}  # fmt: skip
SHUFFLES: dict[str, Build] = {
    "repartition": lambda f: f.repartition(3, F.rand()),
    "repartition by an alias": lambda f: f.withColumn("r", F.rand()).repartition(3, "r").drop("r"),
    "grouping": lambda f: f.groupBy((F.rand() * 8).cast("int")).count(),
    "grouping by an alias": lambda f: (
        f.withColumn("r", (F.rand() * 8).cast("int")).groupBy("r").count().drop("r")
    ),
    "join": lambda f: f.withColumn("i", F.expr("uuid()")).join(f.select("k", "d"), "k").join(
        f.select(F.expr("uuid()").alias("i"), F.col("v").alias("w")), "i"),
    "window": lambda f: f.withColumn(
        "n", F.count("*").over(Window.partitionBy(F.spark_partition_id()))),
    "distinct": lambda f: f.withColumn("r", F.rand()).distinct(),
    "sort": lambda f: f.orderBy(F.rand()),
}  # fmt: skip
CLEAN: dict[str, Build] = {
    "filter": lambda f: f.where("k > 0").withColumn("y", F.col("x") * 2),
    "sums": lambda f: f.groupBy("k").agg(F.sum("v"), F.avg("v"), F.max("x"), F.count("*")),
    "sum of decimals": lambda f: f.groupBy("k").agg(F.sum(F.col("x").cast("decimal(18,2)"))),
    "sum of whole doubles": lambda f: f.groupBy("k").agg(F.sum(F.col("v").cast("double"))),
    "sorted list": lambda f: f.groupBy("k").agg(F.sort_array(F.collect_list("v")).alias("vs")),
    "list that is sorted later": lambda f: (
        f.groupBy("k").agg(F.collect_list("v").alias("vs")).select("k", F.array_sort("vs"))
    ),
    "size of a set": lambda f: f.groupBy("k").agg(F.size(F.collect_set("v"))),
    "a random column that is dropped": lambda f: f.withColumn("r", F.rand()).drop("r"),
    "first of the group's own key": lambda f: f.groupBy("k").agg(F.first("k"), F.max("v")),
    "rank": lambda f: f.withColumn("n", F.rank().over(by_key())).where("n = 1"),
    "row number by what groups made unique": lambda f: (
        f.groupBy("k", "d").agg(F.max("v").alias("v"))
        .withColumn("n", F.row_number().over(by_key())).where("n = 1")
    ),
    "limit by what groups made unique": lambda f: f.groupBy("k").count().orderBy("k").limit(2),
    "no rows": lambda f: f.limit(0),
    "one row": lambda f: f.agg(F.max("v")).limit(1),
    "distinct": lambda f: f.distinct(),
    "join and union": lambda f: f.join(f.groupBy("k").count(), "k").drop("count").union(f),
    "repartition by a hash": lambda f: f.repartition(3, F.xxhash64("k")),
    "cube": lambda f: f.cube("k", "d").agg(F.sum("v")),
    "explode": lambda f: f.select("k", F.explode(F.array("v", "k")).alias("e")),
    "udf": lambda f: f.withColumn("u", F.udf(str)("v")),
    "pandas": lambda f: f.groupBy("k").applyInPandas(lambda rows: rows, f.schema),
    "literal of a clock": lambda f: f.withColumn("at", F.lit("2024-01-01").cast("timestamp")),
}  # fmt: skip


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "k int, d date, v bigint, x double")


def found(frame: DataFrame) -> list[tuple[str, str]]:
    plan = frame._jdf.queryExecution().analyzed().toJSON()
    return [(fact.kind, str(fact)) for fact in find_in_plan(plan)]


@pytest.mark.req("D1")
@pytest.mark.parametrize(("build", "expected"), FOUND.values(), ids=FOUND)
def test_what_makes_two_runs_differ_is_found(
    frame: DataFrame, build: Build, expected: list[tuple[str, str]]
) -> None:
    assert found(build(frame)) == expected


@pytest.mark.req("D1")
@pytest.mark.parametrize("build", SHUFFLES.values(), ids=SHUFFLES)
def test_a_shuffle_by_a_random_value_is_found(frame: DataFrame, build: Build) -> None:
    assert "random_shuffle" in [kind for kind, _ in found(build(frame))]


@pytest.mark.req("D1")
@pytest.mark.parametrize("build", CLEAN.values(), ids=CLEAN)
def test_an_honest_plan_is_not_flagged(frame: DataFrame, build: Build) -> None:
    assert found(build(frame)) == []


@pytest.mark.long
def test_a_plan_may_be_deep(frame: DataFrame) -> None:
    deep = frame.withColumn("r", F.rand())
    for number in range(400):
        deep = deep.withColumn("r", F.col("r") + number)
    assert found(deep) == [("random_value", "rand()")]
