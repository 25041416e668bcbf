"""Reads tables of the lake at exact snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import filters
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quoted_table_name
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.scope import RowRange, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read_table(
    spark: SparkSession,
    catalog_name: str,
    table: str,
    snapshot_id: int | None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Give a table at a snapshot, in that snapshot's schema; its head when the id is None.

    What others commit afterwards is not seen. Raises NotFound.
    """
    name = quoted_table_name(catalog_name, table)
    with spark_errors(f"reading {table}"):
        reader = spark.read.options(**(options or {}))
        if snapshot_id is not None:
            reader = reader.option("versionAsOf", str(snapshot_id))
        frame = reader.table(name)
        _ = frame.schema  # Spark Connect looks for the table when it is asked about it
        return frame


def read_scope(
    spark: SparkSession, catalog_name: str, table: str, snapshot_id: int | None, scope: Scope
) -> DataFrame:
    """Give only the rows of the scope's partitions."""
    frame = read_table(spark, catalog_name, table, snapshot_id)
    return restrict_to_ranges(spark, catalog_name, table, frame, partitions.scope_row_ranges(scope))


def restrict_to_ranges(
    spark: SparkSession, catalog_name: str, table: str, frame: DataFrame, rows: Sequence[RowRange]
) -> DataFrame:
    """Keep the rows of any of the ranges of a frame that was read from the table.

    Iceberg binds pushed-down filters to the table's current schema: a column that was renamed or
    dropped since the snapshot is filtered by Spark itself.
    """
    with spark_errors(f"reading {table}"):
        current = spark.table(quoted_table_name(catalog_name, table)).columns
    is_current = all(each.column in current for each in rows)
    return frame.where(filters.range_filter(rows) if is_current else filters.is_in_ranges(rows))


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Give an empty frame: what a table that does not exist, or has no snapshot, holds."""
    return spark.createDataFrame([], schema)
