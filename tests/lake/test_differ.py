"""The port `Differ` on Spark: the cases of the contract suite give the oracle's answers."""

from __future__ import annotations

import itertools
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.distributed.key_groups import GroupedDiffer
from lakehouse_backfill.adapters.local.distributed.parallel import ParallelDiffer
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.workers import SparkWorkers
from lakehouse_backfill.ports.comparison import DiffRequest
from tests.contract.differ_cases import (
    CASES,
    Case,
    Maker,
    append,
    check,
    day,
)
from tests.contract.differ_more_cases import MORE_CASES
from tests.support.lakes.deletes import hide_equal_rows

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.req("Q5")

GROUPED_CASES = [
    pytest.param(case, id=case.name) for case in (*CASES, *MORE_CASES) if "spark" in case.engines
]
#: Of each kind one, as tests/contract compares all cases in such parts, without Spark.
IN_TASKS = (
    "all primitive types", "nested types", "nulls in keys and values", "duplicate keys", "no key",
    "condition", "null partition", "two layouts", "empty old side", "evolved layout",
    "rows deleted merge-on-read", "several files in a partition", "tolerance of decimals",
    "a file listed twice, with a condition",
)  # fmt: skip
TASK_CASES = [
    pytest.param(case, id=case.name) for case in (*CASES, *MORE_CASES) if case.name in IN_TASKS
]
_numbers = itertools.count(1)


def in_tasks(spark: SparkSession, catalog: Catalog) -> ParallelDiffer:
    """Compare every partition in a Spark task of its own."""
    return ParallelDiffer(
        LocalDiffer(catalog), SparkWorkers(SparkTables(spark, "lake")), 1 << 40, least_rows=1
    )


def grouped(spark: SparkSession, catalog: Catalog, group_rows: int = 2) -> GroupedDiffer:
    """Compare rows that Spark groups by key, a few to a group."""
    return GroupedDiffer(LocalDiffer(catalog), SparkWorkers(SparkTables(spark, "lake")), group_rows)


@pytest.fixture
def make(catalog: Catalog) -> Maker:
    return Maker(catalog, f"differ{next(_numbers)}")


@pytest.mark.parametrize("case", TASK_CASES)
def test_a_diff_in_tasks_is_what_comparing_row_by_row_gives(
    spark: SparkSession, catalog: Catalog, make: Maker, case: Case
) -> None:
    check(in_tasks(spark, catalog), case.build(make))


@pytest.mark.long
@pytest.mark.parametrize("case", GROUPED_CASES)
def test_a_diff_by_groups_is_what_comparing_row_by_row_gives(
    spark: SparkSession, catalog: Catalog, make: Maker, case: Case
) -> None:
    check(grouped(spark, catalog), case.build(make))


def test_only_partitions_with_new_equality_deletes_are_compared(
    spark: SparkSession, catalog: Catalog, make: Maker
) -> None:
    columns = {"id": LongType(), "d": DateType(), "v": LongType()}
    table = make.table(columns, [("d", IdentityTransform())])
    rows = [{"id": number, "d": day(number % 3), "v": number} for number in range(30)]
    before = append(table, rows)
    partition = ((day(1) - date(1970, 1, 1)).days,)
    after = hide_equal_rows(table, 1, 4, 5, partition=partition, spec_id=table.spec().spec_id)
    found = grouped(spark, catalog).diff(make.request(table, before, after, ("id",)))
    counts = [(each.partition, each.removed, each.unchanged) for each in found.partitions]
    assert counts == [("2024-01-01", 0, 10), ("2024-01-02", 2, 8), ("2024-01-03", 0, 10)]
    assert (found.files.shared, found.files.old_only, found.files.new_only) == (2, 1, 1)
    later = append(table, [{"id": 99, "d": day(1), "v": 1}])
    found = grouped(spark, catalog).diff(make.request(table, after, later, ("id",)))
    counts = [(each.partition, each.added, each.unchanged) for each in found.partitions]
    assert counts == [("2024-01-01", 0, 10), ("2024-01-02", 1, 8), ("2024-01-03", 0, 10)]


def test_partitions_whose_files_are_shared_are_not_read(
    spark: SparkSession, catalog: Catalog, make: Maker
) -> None:
    built = CASES.named("same snapshot").build(make)
    for task in catalog.load_table(built.request.old_table).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    check(grouped(spark, catalog), built)


def test_all_engines_see_what_deletion_vectors_hide(spark: SparkSession, catalog: Catalog) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.vectors")
    spark.sql(
        "CREATE TABLE lake.vectors.t (d date, k bigint, v bigint) USING iceberg PARTITIONED BY (d) "
        "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read')"
    )
    spark.sql(
        "INSERT INTO lake.vectors.t SELECT date_add(DATE'2024-01-01', int(id % 3)), id, id "
        "FROM range(0, 30, 1, 1)"
    )
    states = [catalog.load_table("vectors.t").current_snapshot()]
    spark.sql("DELETE FROM lake.vectors.t WHERE k IN (0, 3, 4)")
    states.append(catalog.load_table("vectors.t").current_snapshot())
    spark.sql("UPDATE lake.vectors.t SET v = -1 WHERE k IN (6, 7)")
    states.append(catalog.load_table("vectors.t").current_snapshot())
    ids = [state.snapshot_id for state in states if state is not None]
    for old, new, counts in ((0, 1, (0, 3, 0)), (1, 2, (0, 0, 2)), (0, 2, (0, 3, 2))):
        request = DiffRequest("vectors.t", ids[old], "vectors.t", ids[new], ("d", "k"))
        local = LocalDiffer(catalog).diff(request)
        total = local.summary
        assert (total.added, total.removed, total.changed) == counts
        for differ in (grouped(spark, catalog), in_tasks(spark, catalog)):
            found = differ.diff(request)
            assert found.partitions == local.partitions
            assert found.samples == local.samples
