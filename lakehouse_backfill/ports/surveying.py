"""Facts by which the way of changing a table is chosen."""

from __future__ import annotations

from typing import Protocol

from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.ways import TableFacts


class TableSurveyor(Protocol):
    """Looking at a table before it is changed, at its metadata alone."""

    def survey(self, table: str, scope: Scope | None) -> TableFacts | None:
        """Give the facts for changing the scope; no scope: only what the table itself says.

        None when the table does not exist.
        """
        ...
