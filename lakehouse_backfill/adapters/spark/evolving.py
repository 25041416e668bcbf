"""An old state of a table under the columns that a run gives it: new names, wider types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.domain.rules_schema_change import renamed_columns, widened_columns
from lakehouse_backfill.domain.schema_change import SchemaChange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Iceberg's names of types that a column can be widened to, as Spark calls them.
_SPARK_TYPES = {"long": "bigint", "double": "double"}


def apply_schema_change(frame: DataFrame, change: SchemaChange) -> DataFrame:
    """Give the rows under the new names and types; columns that come are not made up."""
    names, types = renamed_columns(change), widened_columns(change)
    if not names and not types:
        return frame
    chosen = []
    for name in frame.columns:
        value = quoted_column(name)
        if name in types:
            value = value.cast(_SPARK_TYPES.get(types[name], types[name]))
        chosen.append(value.alias(names.get(name, name)))
    return frame.select(*chosen)
