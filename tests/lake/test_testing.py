"""Helpers for job code and for its tests: ids, money, ordered lists, and the assertions."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from datetime import date, datetime, timezone
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark.staging.proofs import compare_repeated
from lakehouse_backfill.columns import deterministic_id, money, ordered_list
from lakehouse_backfill.core.guards.analysed_plan import find_in_plan
from lakehouse_backfill.testing import assert_deterministic, assert_warm_up, job_context

PAGE = Path(__file__).parents[2] / "docs" / "determinism.md"
HEAD = """from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F, Window

@transform(name="job", version="1.0.0", inputs=("src",))
def job(context, src):
    return """


def module(folder: Path, text: str) -> Any:
    path = folder / "job_under_test.py"
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(f"job_{abs(hash(str(folder)))}", path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def src(spark: SparkSession) -> DataFrame:
    rows = [(n % 7, date(2024, 1, 1 + n % 20), n * 0.1, f"t{n}") for n in range(200)]
    return spark.createDataFrame(rows, "k int, d date, x double, t string").repartition(3)


@pytest.mark.req("D1")
def test_the_example_of_the_page_runs(tmp_path: Path, spark: SparkSession) -> None:
    blocks = [block.split("```")[0] for block in PAGE.read_text("utf-8").split("```python\n")[1:]]
    (example,) = (block for block in blocks if "def test_orders" in block)
    module(tmp_path, example).test_orders(spark)


REFUSED = [
    ('src.withColumn("r", F.rand())', "job_under_test.py:6: rand.*random_value.*instead"),
    ('src.groupBy("k").agg(F.sum("x").alias("x"))', "job_under_test.py:6: sum.x.*float_sum"),
    ('src.repartition(3, getattr(F, "ra" + "nd")())', "random_shuffle"),
    pytest.param(
        'src.groupBy("k").applyInPandas(lambda rows: rows.head(1), src.schema)',
        "input comes in another order: 7 rows, then 7; columns that differ: d, x, t",
        marks=pytest.mark.long,
    ),
]


@pytest.mark.req("D1")
@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_a_transform_that_may_differ_fails_the_assertion(
    tmp_path: Path, src: DataFrame, text: str, problem: str
) -> None:
    made = module(tmp_path, HEAD + text)
    with pytest.raises(AssertionError, match=f"(?s){problem}"):
        assert_deterministic(made.job, {"src": src})


def test_a_kind_that_is_allowed_does_not_fail_the_assertion(tmp_path: Path, src: DataFrame) -> None:
    made = module(tmp_path, HEAD + 'src.groupBy("k").agg(F.sum(F.col("x") * 0).alias("x"))')
    assert_deterministic(made.job, {"src": src}, allow=("float_sum",))


@pytest.mark.req("D1")
def test_a_warm_up_that_is_too_short_fails_the_assertion(tmp_path: Path, src: DataFrame) -> None:
    text = """
import datetime
from pyspark.sql import Window

@transform(name="job", version="1.0.0", inputs=("src",))
def job(context, src):
    days = src.groupBy("d").agg(F.count("*").alias("n"))
    window = Window.orderBy(F.unix_date("d")).rangeBetween(-2, 0)
    return days.withColumn("n", F.sum("n").over(window))
"""
    made = module(tmp_path, HEAD.partition("@")[0] + text)
    day = {"source": ("src", "d"), "day": ("d", date(2024, 1, 12))}
    assert_warm_up(made.job, {"src": src}, **day, warm_up_days=2)
    with pytest.raises(AssertionError, match="twice the warm-up of 1 days"):
        assert_warm_up(made.job, {"src": src}, **day, warm_up_days=1)


def test_only_a_transform_can_be_asserted_on(src: DataFrame) -> None:
    with pytest.raises(TypeError, match="decorate it with @transform"):
        assert_deterministic(lambda context, src: src, {"src": src})


def test_a_context_for_tests_has_every_field_of_a_run() -> None:
    made = job_context(config={"rate": 2})
    assert (made.run_id, made.mode, made.config["rate"]) == ("bf-test", "backfill", 2)
    assert made.clock == datetime(2024, 1, 1, tzinfo=timezone.utc)


@pytest.mark.req("D2")
def test_ids_come_from_the_values_alone(spark: SparkSession) -> None:
    rows = [("a", "bc", 1), ("ab", "c", 1), ("", None, 1), (None, "", 1), ("a", "bc", None)]
    frame = spark.createDataFrame(rows, "a string, b string, n int")
    ids = frame.select("a", "b", "n", deterministic_id("a", F.col("b"), "n").alias("id"))
    first = {row[:3]: row["id"] for row in ids.collect()}
    again = {row[:3]: row["id"] for row in ids.repartition(4, "id").collect()}
    assert first == again
    assert len(set(first.values())) == len(rows)
    assert all(len(one) == 64 for one in first.values())
    text = '{"0":"a","1":"bc","2":1}'
    assert first["a", "bc", 1] == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ValueError, match="needs the columns"):
        deterministic_id()


@pytest.mark.req("D2")
def test_ids_do_not_depend_on_the_session_time_zone_and_see_microseconds(
    spark: SparkSession,
) -> None:
    instants = ["2024-01-01 00:00:00.000001+00:00", "2024-01-01 00:00:00.000002+00:00"]
    frame = spark.createDataFrame([(one,) for one in instants], "t string")
    ids = frame.select(deterministic_id(F.col("t").cast("timestamp")).alias("id"))
    zone = spark.conf.get("spark.sql.session.timeZone")
    utc = [row["id"] for row in ids.collect()]
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
        assert [row["id"] for row in ids.collect()] == utc
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert len(set(utc)) == 2


@pytest.mark.req("D2")
def test_money_is_exact_and_rounds_halves_away_from_zero(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(0.1,), (0.2,), (2.675,), (-2.675,)], "x double")
    values = [str(row[0]) for row in frame.select(money("x")).collect()]
    assert values == ["0.10", "0.20", "2.68", "-2.68"]
    assert str(frame.agg(F.sum(money("x", scale=3))).collect()[0][0]) == "0.300"


@pytest.mark.req("D2")
def test_an_ordered_list_is_the_same_whatever_order_rows_come_in(src: DataFrame) -> None:
    def build(change: Callable[[DataFrame], DataFrame]) -> DataFrame:
        return change(src).groupBy("k").agg(ordered_list("t", "d"))

    assert compare_repeated(src.sparkSession, build).is_equal
    listed = src.where("k = 1 AND x < 5").groupBy("k").agg(ordered_list("t", "d").alias("ts"))
    expected = sorted(
        (date(2024, 1, 1 + n % 20), f"t{n}") for n in range(200) if n % 7 == 1 and n * 0.1 < 5
    )
    assert listed.collect()[0]["ts"] == [name for _, name in expected]


@pytest.mark.req("D2")
def test_the_columns_for_job_code_are_not_flagged(src: DataFrame) -> None:
    rows = src.groupBy("k").agg(F.sum(money("x")).alias("x"), ordered_list("t", "d").alias("ts"))
    made = rows.withColumn("id", deterministic_id("k"))
    assert find_in_plan(made._jdf.queryExecution().analyzed().toJSON()) == ()
