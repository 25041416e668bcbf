"""Writers of tables that a test fixes, whatever the tables' metadata says."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import ChosenWritePath, JvmState, WritePath


class FixedWriters(TableWriters):
    """Chooses one writer for all tables."""

    def __init__(self, catalog: Catalog, way: WritePath, committer: Any) -> None:
        super().__init__(catalog, JvmState, lambda: committer, lambda: committer)
        self._way = way

    def choose(self, table: str, scope: Scope | None = None) -> ChosenWritePath:
        del table, scope
        return ChosenWritePath(way=self._way, why="the test asks for it")
