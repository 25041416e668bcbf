"""Holds a table as it is looked at, through the write that follows the look.

A write by name loads the table anew: fenced between the look and that load, it would be taken as it
is then. From that load on, Iceberg compares the table's UUID.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.names import quoted_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a write says that found the table otherwise than it was looked at.
TABLE_MOVED_MARKER = "LHB_TABLE_MOVED"


def pin_table_identity(spark: SparkSession, name: str) -> DataFrame:
    """Give no rows, in the columns of a table; ask for it before you look at the table.

    What holds these rows too cannot be written once the table has another UUID than now: Spark
    refuses to run a query on a table that it loaded under another one, even if it need not read it.
    Through Spark Connect, where tables are loaded by each query, it cannot be written once anything
    was committed to the table; that failure says MOVED.
    """
    opened = spark.table(name)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return _fail_if_committed(spark, name, opened)
    return opened.limit(0)


def _fail_if_committed(spark: SparkSession, name: str, opened: DataFrame) -> DataFrame:
    """Compare the table's metadata files with those of now, in the query that writes.

    Iceberg lists them when it plans that query, which has loaded the table to be written by then:
    a commit before that load is seen here, and one after it by Iceberg's own comparison.
    """
    from pyspark.sql import functions as F

    log = spark.table(f"{name}.`metadata_log_entries`").select("file")
    known = [row["file"] for row in log.collect()]
    said = F.raise_error(F.lit(f"{TABLE_MOVED_MARKER}: {name}")).cast("boolean")
    added = log.where(F.when(quoted_column("file").isin(known), F.lit(col=False)).otherwise(said))
    nothing = F.lit(None)
    return added.select(
        *(nothing.cast(field.dataType).alias(field.name) for field in opened.schema.fields)
    )
