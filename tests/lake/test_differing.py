"""Every differing row on Spark: the same as the local engine gives, on the cases of the diff."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.distributed.key_groups import GroupedDiffer
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.workers import SparkWorkers
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.domain.serialization import canonical_json
from tests.contract.differ_cases import CASES, Maker

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)
#: Each takes Spark some seconds; the local engine runs all of them in tests/contract.
WANTED = ("duplicate keys", "no key", "null partition", "decimals exactly")


def told(rows: list[DifferingRow]) -> Counter[str]:
    return Counter(canonical_json([*row]) for row in rows)


@pytest.mark.req("U9")
def test_both_engines_name_the_same_rows(spark: SparkSession, catalog: Catalog) -> None:
    local, compared = LocalDiffer(catalog), 0
    spark_engine = GroupedDiffer(local, SparkWorkers(SparkTables(spark, "lake")), group_rows=2)
    for case in (case for case in CASES if case.name in WANTED):
        built = case.build(Maker(catalog, f"differing{next(_numbers)}"))
        expected = list(local.differing(built.request))
        found = list(spark_engine.differing(built.request))
        assert told(found) == told(expected), case.name
        assert [row.partition for row in found] == [row.partition for row in expected]
        compared += len(expected)
    assert compared
