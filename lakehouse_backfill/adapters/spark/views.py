"""SQL views for readers who know nothing of pointers."""

from __future__ import annotations

from collections.abc import Callable
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


class SparkViews:
    """Views in the catalog of the lake; the session is started when the first one is made."""

    def __init__(self, session: Callable[[], SparkSession], catalog: str) -> None:
        self._session = session
        self._catalog = catalog

    def show(self, view: str, table: str, snapshot_id: int | None) -> None:
        """Make the view show a table at a snapshot, or its head; readers see old or new.

        Raises Unsupported where the catalog keeps no views.
        """
        spark = self._session()
        at = f" VERSION AS OF {int(snapshot_id)}" if snapshot_id is not None else ""
        # Views cannot be made by the DataFrame API; names are quoted, the id is a number.
        select = f"SELECT * FROM {quoted_table_name(self._catalog, table)}{at}"  # noqa: S608
        _create(spark, self._catalog, view, f"CREATE OR REPLACE VIEW {{}} AS {select}")


def ensure_view(
    spark: SparkSession, catalog: str, namespace: str, name: str, select_sql: str
) -> None:
    """Create the view unless it is there; raises Unsupported where the catalog keeps no views.

    Where the namespace is not there yet, there is nothing to show.
    """
    try:
        shown = spark.sql(
            f"SHOW VIEWS IN {quote_identifier(catalog)}.{quote_identifier(namespace)}"
        ).collect()
        is_there = name in {row["viewName"] for row in shown}
    except Exception as error:
        if "NoSuchNamespaceException" in str(error):
            return
        raise _view_error(name, error) from error
    if not is_there:
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
