"""Names and columns as Spark wants them: always quoted, never pasted into SQL unquoted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def quote_identifier(name: str) -> str:
    """Quote one identifier, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


def quoted_column(name: str) -> Column:
    """Refer to the top-level column called exactly `name`, dots and spaces included."""
    from pyspark.sql import functions as F

    return F.col(quote_identifier(name))


def quoted_table_name(catalog: str, table: str) -> str:
    """Give the quoted three-part name of `namespace.table` in the catalog."""
    return ".".join(quote_identifier(part) for part in (catalog, *table.split(".")))
