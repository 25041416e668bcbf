"""The port `Differ` on Spark: the cases of the contract suite give the oracle's answers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported
from lakehouse_backfill.ports.compute import DiffRequest
from lakehouse_backfill.spark.diff import SparkDiffer
from tests.contract.differ_cases import CASES, SIMPLE, Case, Maker, append, check, simple

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

SPARK_CASES = [pytest.param(case, id=case.name) for case in CASES if "spark" in case.engines]
_numbers = itertools.count(1)


@pytest.fixture
def make(catalog: Catalog) -> Maker:
    return Maker(catalog, f"differ{next(_numbers)}")


@pytest.mark.req("Q5")
@pytest.mark.parametrize("case", SPARK_CASES)
def test_a_diff_is_what_comparing_row_by_row_gives(
    spark: SparkSession, make: Maker, case: Case
) -> None:
    check(SparkDiffer(spark, "lake"), case.build(make))


@pytest.mark.req("Q5")
def test_partitions_whose_files_are_shared_are_not_read(
    spark: SparkSession, catalog: Catalog, make: Maker
) -> None:
    built = next(case for case in CASES if case.name == "same snapshot").build(make)
    for task in catalog.load_table(built.request.old_table).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    check(SparkDiffer(spark, "lake"), built)


BAD_REQUESTS = [
    pytest.param({"old_table": "no.table"}, NotFound, "no.table", id="table"),
    pytest.param({"new_snapshot_id": 7}, NotFound, "7", id="snapshot"),
    pytest.param({"key": ("d", "nope")}, ConfigError, "key column nope", id="key"),
    pytest.param({"where": "nope > 1"}, ConfigError, "no column nope", id="column"),
    pytest.param({"where": "v"}, ConfigError, "not true or false", id="number"),
]


@pytest.mark.req("Q5")
@pytest.mark.parametrize(("change", "error", "words"), BAD_REQUESTS)
def test_a_request_that_does_not_fit_says_why(
    spark: SparkSession, make: Maker, change: dict[str, object], error: type[Exception], words: str
) -> None:
    table = make.table(SIMPLE)
    first, second = append(table, simple()), append(table, simple(1))
    base = make.request(table, first, second, ("d", "k"))
    request = DiffRequest(**{**base.__dict__, **change})
    with pytest.raises(error, match=words):
        SparkDiffer(spark, "lake").diff(request)


@pytest.mark.req("Q5")
def test_a_nested_key_is_refused(spark: SparkSession, make: Maker) -> None:
    built = next(case for case in CASES if case.name == "nested types").build(make)
    request = DiffRequest(**{**built.request.__dict__, "key": ("st",)})
    with pytest.raises(Unsupported, match="key column st"):
        SparkDiffer(spark, "lake").diff(request)
