"""Queries of readers: DuckDB is loaded when one is asked, as most commands ask none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery, TableState

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class LocalDualReader:
    """`ports.rollout.Reading` on DuckDB over Arrow, without a JVM."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def compare(self, query: ReaderQuery, old: TableState, new: TableState) -> QueryComparison:
        """Run the query on both states and compare the results as multisets of rows."""
        from lakehouse_backfill.adapters.local.dual_read import compare_query

        return compare_query(self._catalog, query, old, new)
