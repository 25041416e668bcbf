"""Comparing on Spark in tasks, or grouped by key: which is chosen, and that both agree."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pytest
from pyiceberg.types import LongType

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.distributed.key_groups import (
    DistributedDiffer,
    GroupedDiffer,
)
from lakehouse_backfill.adapters.local.distributed.parallel import ParallelDiffer, compare_parts
from lakehouse_backfill.adapters.spark import workers
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.workers import SparkWorkers
from lakehouse_backfill.errors import Unsupported
from tests.contract.differ_cases import CASES, Built, Maker, append, check
from tests.support.lakes.deletes import hide_equal_rows

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.lake
_numbers = itertools.count(1)


def ways(spark: SparkSession, catalog: Catalog, limit_bytes: int = 1 << 30) -> DistributedDiffer:
    local = LocalDiffer(catalog)
    tasks = ParallelDiffer(
        local, SparkWorkers(SparkTables(spark, "lake")), limit_bytes, least_rows=1
    )
    return DistributedDiffer(tasks, GroupedDiffer(local, SparkWorkers(SparkTables(spark, "lake"))))


@pytest.fixture
def built(catalog: Catalog) -> Built:
    case = CASES.named("empty old side")
    return case.build(Maker(catalog, f"ways{next(_numbers)}"))


@pytest.mark.req("Q5")
def test_workers_answer_in_order_and_elsewhere(spark: SparkSession) -> None:
    def joined(common: bytes, parts: Sequence[bytes]) -> bytes:
        return common + b"".join(parts) + f"@{os.getpid()}".encode()

    asked = SparkWorkers(SparkTables(spark, "lake"))
    tasks = [[b"a", b"b"], [b"c"], *([bytes([65 + number])] for number in range(20))]
    answers = [each.split(b"@") for each in asked.run_all(joined, b":", tasks)]
    assert asked.count(compare_parts) >= 1
    assert all(said.startswith(b":") for said, _ in answers)
    parts = [part for each in tasks for part in each]
    assert b"".join(said[1:] for said, _ in answers) == b"".join(parts)
    assert str(os.getpid()).encode() not in {pid for _, pid in answers}
    assert list(asked.run_all(joined, b":", [])) == []


@pytest.mark.req("Q5")
def test_partitions_are_compared_in_tasks_and_the_answer_says_so(
    spark: SparkSession, catalog: Catalog, built: Built
) -> None:
    check(ways(spark, catalog), built)
    found = ways(spark, catalog).diff(built.request)
    assert found.engine == "spark"
    assert found.how.startswith(f"whole partitions in {len(found.partitions)} parts, ")


@pytest.mark.req("Q5")
def test_a_partition_too_large_for_a_task_is_grouped_by_key(
    spark: SparkSession, catalog: Catalog, built: Built
) -> None:
    check(ways(spark, catalog, limit_bytes=0), built)
    found = ways(spark, catalog, limit_bytes=0).diff(built.request)
    assert found.how.startswith("rows grouped by key: partition 2024-01-01 has ")
    assert "more than a worker takes" in found.how


@pytest.mark.req("Q5")
def test_workers_without_this_version_are_not_asked(
    spark: SparkSession, catalog: Catalog, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "__version__", "9.9")
    monkeypatch.setattr(workers, "_worker_counts", WeakKeyDictionary())
    with pytest.raises(Unsupported, match=r"do not have lakehouse-backfill 9\.9"):
        SparkWorkers(SparkTables(spark, "lake")).count(compare_parts)
    with pytest.raises(Unsupported, match=r"do not have lakehouse-backfill 9\.9") as refused:
        ways(spark, catalog).diff(built.request)
    assert "executors" in refused.value.fix


@pytest.mark.req("Q5")
def test_workers_that_cannot_import_the_work_say_why(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(common: bytes, parts: Sequence[bytes]) -> bytes:
        raise NotImplementedError

    monkeypatch.setattr(elsewhere, "__module__", "not_on_the_executors")
    monkeypatch.setattr(workers, "_worker_counts", WeakKeyDictionary())
    with pytest.raises(Unsupported, match="No module named 'not_on_the_executors'"):
        SparkWorkers(SparkTables(spark, "lake")).count(elsewhere)


@pytest.mark.req("Q5")
def test_equality_deletes_are_left_to_sparks_reader(spark: SparkSession, catalog: Catalog) -> None:
    make = Maker(catalog, f"ways{next(_numbers)}")
    table = make.table({"id": LongType(), "v": LongType()})
    before = append(table, [{"id": number, "v": number} for number in range(5)])
    after = hide_equal_rows(table, 1, 3, partition=(), spec_id=table.spec().spec_id)
    found = ways(spark, catalog).diff(make.request(table, before, after, ("id",)))
    assert (found.summary.removed, found.summary.unchanged) == (2, 3)
    assert "equality deletes" in found.how
