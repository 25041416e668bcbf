"""The control tables of one lake: what opens and creates them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pyiceberg import exceptions
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg.control.log import ControlLog, restore_error
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    CONTROL_TABLE_NAMES,
    CONTROL_TABLES,
    ControlTable,
)
from lakehouse_backfill.fault_points import commit_window

#: How long an append retries against other writers.
APPEND_BUDGET_S = 30.0


class ControlTables:
    """Opens the control tables of `namespace`; reading never creates them, writing does."""

    def __init__(self, catalog: Catalog, namespace: str, budget_s: float = APPEND_BUDGET_S) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._budget_s = budget_s
        self._are_all_there = False

    def log(self, table: ControlTable) -> ControlLog:
        """Open one control table."""
        return ControlLog(
            self._catalog, self._namespace, table, self.ensure, self.require_all, self._budget_s
        )

    def existing(self) -> Iterator[Table]:
        """Load the control tables that exist, one after the other."""
        for control in CONTROL_TABLES:
            with suppress(exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
                yield self._catalog.load_table((self._namespace, control.name))

    def ensure(self) -> None:
        """Create the missing namespace, control tables, and columns of older releases' tables.

        Several processes may do so at once. Raises CatalogDown.
        """
        try:
            self._ensure_namespace()
            for table in CONTROL_TABLES:
                self._ensure_table(table)
        except Exception as error:
            if not catalogs.is_outage(error):
                raise
            raise errors.CatalogDown(
                f"the control tables in {self._namespace} cannot be made: {error}",
                state="no run and no version was recorded",
                fix="lakehouse-backfill doctor",
            ) from error

    def require_all(self) -> bool:
        """Return whether all are there, looking until they are; raise Tampered when one is gone.

        All are created before the first row is written. So one that is missing beside one with rows
        was dropped, and to read it as empty would forget runs, versions or evidence.
        """
        missing = frozenset() if self._are_all_there else CONTROL_TABLE_NAMES - self._present()
        self._are_all_there = not missing
        if not missing:
            return True
        written = next(filter(self._has_rows, sorted(CONTROL_TABLE_NAMES - missing)), None)
        # Another process may have created them since: those that were written to came last.
        if written is not None and (gone := sorted(missing - self._present())):
            raise restore_error(
                f"the control table {self._namespace}.{gone[0]} is gone, and {written} has rows"
            )
        return False

    def _present(self) -> frozenset[str]:
        try:
            return frozenset(name for *_, name in self._catalog.list_tables(self._namespace))
        except exceptions.NoSuchNamespaceError:
            return frozenset()

    def _has_rows(self, name: str) -> bool:
        try:
            table = self._catalog.load_table((self._namespace, name))
        except exceptions.NoSuchTableError:
            return False
        return table.current_snapshot() is not None

    def _ensure_namespace(self) -> None:
        try:
            with commit_window("Catalog.create_namespace"):
                self._catalog.create_namespace(self._namespace)
        except exceptions.NamespaceAlreadyExistsError:
            return
        except Exception:
            # The SQL catalog checks and then inserts: an IntegrityError means that another process
            # inserted in between.
            if not self._catalog.namespace_exists(self._namespace):
                raise

    def _ensure_table(self, table: ControlTable) -> None:
        identifier = (self._namespace, table.name)
        if not self._catalog.table_exists(identifier):
            try:
                schema, properties = table.schema(), table.properties()
                with commit_window("Catalog.create_table"):
                    self._catalog.create_table(identifier, schema, properties=properties)
            except exceptions.TableAlreadyExistsError:
                pass
            else:
                return
        catalogs.commit_with_retry(lambda: self._add_columns(table), f"columns for {table.name}")

    def _add_columns(self, table: ControlTable) -> None:
        """Add the missing columns as nullable ones; existing rows have null."""
        loaded = self._catalog.load_table((self._namespace, table.name))
        missing = table.missing_columns(loaded.schema())
        if missing:
            with commit_window("Catalog.update_schema"), loaded.update_schema() as update:
                for name, kind, doc in missing:
                    update.add_column(name, kind, doc)
