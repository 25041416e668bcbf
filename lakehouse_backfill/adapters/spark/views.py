"""SQL views for readers that do not use the accepted-version pointer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.domain.publication import ACCEPTED_ROWS
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window

if TYPE_CHECKING:
    # Every command makes the views' port; only those that use Spark load it.
    from lakehouse_backfill.adapters.spark.dataframes import SparkTables


@dataclass(frozen=True)
class SparkViews:
    """Views in the catalog of the lake; the first view that is made starts the session."""

    tables: Callable[[], SparkTables]

    def show(
        self, view: str, table: str, snapshot_id: int | None, *, accepted_only: bool = False
    ) -> None:
        """Create or replace a view of a table at a snapshot, or at its head.

        `accepted_only`: of a table of versions only the accepted rows. The change is atomic:
        readers see the old or the new view. Raises Unsupported when the catalog does not support
        views.
        """
        tables = self.tables()
        at = f" VERSION AS OF {int(snapshot_id)}" if snapshot_id is not None else ""
        # The DataFrame API cannot create views. Names are quoted, the id is a number.
        rows = ACCEPTED_ROWS if accepted_only else ""
        select = f"SELECT * FROM {tables.quoted_name(table)}{at}{rows}"  # noqa: S608
        _create(tables, view, f"CREATE OR REPLACE VIEW {{}} AS {select}")


def ensure_view(tables: SparkTables, namespace: str, name: str, select_sql: str) -> None:
    """Create the view unless it exists; raise Unsupported when the catalog has no views.

    Without the namespace there is nothing to show: no view is created.
    """
    try:
        rows = tables.spark.sql(f"SHOW VIEWS IN {tables.quote(namespace)}").collect()
        exists = name in {row["viewName"] for row in rows}
    except Exception as error:
        if "NoSuchNamespaceException" in str(error):
            return
        raise _view_error(name, error) from error
    if not exists:
        view = f"{namespace}.{name}"
        _create(tables, view, f"CREATE VIEW IF NOT EXISTS {{}} AS {select_sql}")


def _create(tables: SparkTables, view: str, statement: str) -> None:
    try:
        with commit_window("Spark.create_view"):
            tables.spark.sql(statement.format(tables.quoted_name(view)))
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
