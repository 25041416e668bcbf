"""The control tables of one lake: all of them made together, each opened as a log."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

from lakehouse_backfill.errors import CatalogDown
from lakehouse_backfill.iceberg.catalog import is_outage
from lakehouse_backfill.iceberg.control_log import ControlLog
from lakehouse_backfill.iceberg.control_schemas import CONTROL_TABLES, ControlTable

#: How long an append tries to win against other writers.
BUDGET_S = 30.0


class ControlTables:
    """Opens the control tables of `namespace`; reading never creates them, writing does."""

    def __init__(self, catalog: Catalog, namespace: str, budget_s: float = BUDGET_S) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._budget_s = budget_s

    def log(self, table: ControlTable) -> ControlLog:
        """Open one control table."""
        return ControlLog(self._catalog, self._namespace, table, self.ensure, self._budget_s)

    def ensure(self) -> None:
        """Create the namespace and all control tables that are missing.

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
        if self._catalog.table_exists(identifier):
            return
        try:
            self._catalog.create_table(identifier, table.schema(), properties=table.properties())
        except TableAlreadyExistsError:
            return
