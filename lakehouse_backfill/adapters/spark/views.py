"""SQL views for readers that do not use the accepted-version pointer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.dataframes import (
    quote_identifier,
    quoted_table_name,
    spark_errors,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class SparkViews:
    """Views in the catalog of the lake; the first view that is made starts the session."""

    session: Callable[[], SparkSession]
    catalog: str

    def show(self, view: str, table: str, snapshot_id: int | None) -> None:
        """Create or replace a view of a table at a snapshot, or at its head.

        The change is atomic: readers see the old or the new view. Raises Unsupported when the
        catalog does not support views.
        """
        spark = self.session()
        at = f" VERSION AS OF {int(snapshot_id)}" if snapshot_id is not None else ""
        # The DataFrame API cannot create views. Names are quoted, the id is a number.
        select = f"SELECT * FROM {quoted_table_name(self.catalog, table)}{at}"  # noqa: S608
        _create(spark, self.catalog, view, f"CREATE OR REPLACE VIEW {{}} AS {select}")


def ensure_view(
    spark: SparkSession, catalog: str, namespace: str, name: str, select_sql: str
) -> None:
    """Create the view unless it exists; raise Unsupported when the catalog has no views.

    Without the namespace there is nothing to show: no view is created.
    """
    try:
        rows = spark.sql(
            f"SHOW VIEWS IN {quote_identifier(catalog)}.{quote_identifier(namespace)}"
        ).collect()
        exists = name in {row["viewName"] for row in rows}
    except Exception as error:
        if "NoSuchNamespaceException" in str(error):
            return
        raise _view_error(name, error) from error
    if not exists:
        view = f"{namespace}.{name}"
        _create(spark, catalog, view, f"CREATE VIEW IF NOT EXISTS {{}} AS {select_sql}")


def _create(spark: SparkSession, catalog: str, view: str, statement: str) -> None:
    try:
        with commit_window("Spark.create_view"):
            spark.sql(statement.format(quoted_table_name(catalog, view)))
    except Exception as error:
        raise _view_error(view, error) from error


def _view_error(view: str, error: Exception) -> Exception:
    if "UnsupportedOperation" in str(error) or "does not support" in str(error):
        return Unsupported(
            f"the catalog keeps no views, so {view} was not made",
            fix="remove `view` from the contract; readers use accepted()",
        )
    with spark_errors(f"creating view {view}"):
        raise error
