"""The kit of the lake's contract tests, with commits by Spark row by row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.adapters.spark.commits.row_rewrite import SparkRewrites
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.domain.tables.commits import PartitionContent, PendingRewrite
from tests.support.lakes.writers import FixedWriters
from tests.support.spark.java import JavaKit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RewriteKit(JavaKit):
    """What runs through Spark Connect: nothing of the session but its public API."""

    def __init__(
        self, root: Path, spark: SparkSession, version: int = 3, budget_s: float = 30.0
    ) -> None:
        super().__init__(root, spark, version, budget_s)
        self.rows_way = SparkRewrites(lambda: SparkTables(spark, self.name))
        writers = FixedWriters(self.catalog, "rewrite", self.rows_way)
        self.pins = IcebergPins(self.catalog, writers)
        self.shadows = IcebergShadows(self.catalog, "shadow", writers)
        self.publisher = IcebergPublisher(self.catalog, budget_s, writers)

    def rewriting(self, text: str) -> tuple[PartitionContent, ...]:
        """Read what a swap left in its summary."""
        return PendingRewrite.model_validate_json(text).contents
