"""The control tables of one lake: all of them made together, each opened as a log."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

from lakehouse_backfill.adapters.iceberg.catalog import is_outage
from lakehouse_backfill.adapters.iceberg.control.control_log import ControlLog
from lakehouse_backfill.adapters.iceberg.control.control_schemas import CONTROL_TABLES
from lakehouse_backfill.adapters.iceberg.control.control_table import ControlTable
from lakehouse_backfill.adapters.iceberg.patience import commit_with_retry
from lakehouse_backfill.errors import CatalogDown
from lakehouse_backfill.fault_points import commit_window

#: How long an append tries to win against other writers.
APPEND_BUDGET_S = 30.0


class ControlTables:
    """Opens the control tables of `namespace`; reading never creates them, writing does."""

    def __init__(self, catalog: Catalog, namespace: str, budget_s: float = APPEND_BUDGET_S) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._budget_s = budget_s

    def log(self, table: ControlTable) -> ControlLog:
        """Open one control table."""
        return ControlLog(self._catalog, self._namespace, table, self.ensure, self._budget_s)

    def ensure(self) -> None:
        """Create what is missing: the namespace, control tables, and columns of an older release's.

        Several processes may do so at once. Raises CatalogDown.
        """
        try:
            self._ensure_namespace()
            for table in CONTROL_TABLES:
                self._ensure_table(table)
        except Exception as error:
            if not is_outage(error):
                raise
            raise CatalogDown(
                f"the control tables in {self._namespace} cannot be made: {error}",
                state="no run and no version was recorded",
                fix="lakehouse-backfill doctor",
            ) from error

    def _ensure_namespace(self) -> None:
        try:
            with commit_window("Catalog.create_namespace"):
                self._catalog.create_namespace(self._namespace)
        except NamespaceAlreadyExistsError:
            return
        except Exception:
            # The SQL catalog looks first and inserts then (IntegrityError): another process was
            # in between.
            if not self._catalog.namespace_exists(self._namespace):
                raise

    def _ensure_table(self, table: ControlTable) -> None:
        identifier = (self._namespace, table.name)
        if not self._catalog.table_exists(identifier):
            try:
                schema, properties = table.schema(), table.properties()
                with commit_window("Catalog.create_table"):
                    self._catalog.create_table(identifier, schema, properties=properties)
            except TableAlreadyExistsError:
                pass
            else:
                return
        commit_with_retry(lambda: self._add_columns(table), f"columns for {table.name}")

    def _add_columns(self, table: ControlTable) -> None:
        """Add the columns that are missing, as nullable ones; rows that are there have null."""
        found = self._catalog.load_table((self._namespace, table.name))
        missing = table.missing(found.schema())
        if missing:
            with commit_window("Catalog.update_schema"), found.update_schema() as update:
                for name, kind, doc in missing:
                    update.add_column(name, kind, doc)
