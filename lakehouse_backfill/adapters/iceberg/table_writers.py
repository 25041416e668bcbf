"""Who writes a table's commits: PyIceberg, Iceberg's Java API, or Spark row by row.

The choice follows from the table's metadata (`core/planning/write_path.py`). Writers that need a
JVM are made by the given factories, and only for a table that needs them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.iceberg.tables import IcebergTableSurveyor
from lakehouse_backfill.core.planning.write_path import choose_write_path
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import ChosenWritePath, JvmState
from lakehouse_backfill.ports.table_writer import (
    CloneCommitter,
    RowRewriter,
    SwapCommitter,
    TableCommitter,
)


class TableWriters:
    """The writers of one catalog's tables; None stands for PyIceberg, which needs no JVM."""

    def __init__(
        self,
        catalog: Catalog,
        jvm_state: Callable[[], JvmState],
        java: Callable[[], TableCommitter],
        rows: Callable[[], RowRewriter],
    ) -> None:
        """Use `java` with a JVM of this process, `rows` through Spark Connect."""
        self._catalog = catalog
        self._jvm_state = jvm_state
        self._java = java
        self.rows = rows

    def choose(self, table: str, scope: Scope | None = None) -> ChosenWritePath:
        """Choose from the table as it is now; no scope: for tags and clones."""
        facts = IcebergTableSurveyor(self._catalog).survey(table, scope)
        return choose_write_path(facts, self._jvm_state())

    def swap_committer(self, table: str, scope: Scope | None = None) -> SwapCommitter | None:
        """Return what commits swaps and tags on the table."""
        chosen = self.choose(table, scope).way
        if chosen == "pyiceberg":
            return None
        return self._java() if chosen == "java" else self.rows()

    def clone_committer(self, table: str) -> CloneCommitter | None:
        """Return what commits clones of the table; through Spark Connect, metadata files do."""
        chosen = self.choose(table).way
        if chosen == "pyiceberg":
            return None
        if chosen == "java":
            return self._java()
        from lakehouse_backfill.adapters.iceberg.shadow.clone import FileCloneCommitter

        return FileCloneCommitter(self._catalog)

    def upkeep_committer(self) -> TableCommitter:
        """Return what removes snapshots from tables that PyIceberg cannot write."""
        return self._java()
