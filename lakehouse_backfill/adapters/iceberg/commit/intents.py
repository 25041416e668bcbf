"""What a swap is to do to a table, before anybody looks at the table as it is now."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.snapshots import Operation

from lakehouse_backfill.adapters.iceberg.commit.conflicts import Verb
from lakehouse_backfill.adapters.iceberg.content import Live
from lakehouse_backfill.adapters.iceberg.evolving import Evolved
from lakehouse_backfill.adapters.iceberg.metadata import ColumnIds
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table_commit import RowsOf


@dataclass(frozen=True)
class Part:
    """Partitions that get the files `wanted`, unless changed since `since_id` (None: empty).

    `source` is the table and snapshot that hold the same as rows; None: there are none.
    """

    scope: Scope
    since_id: int | None
    wanted: Live
    source: tuple[str, int] | None = None

    @property
    def rows(self) -> RowsOf:
        """The same as rows of the source, which is None where there is nothing to read."""
        if self.source is None or not self.wanted:
            return RowsOf(scope=self.scope)
        return RowsOf(scope=self.scope, table=self.source[0], snapshot_id=self.source[1])


@dataclass(frozen=True)
class Intent:
    """What a swap is to do. `columns`: what the table must still have; None: whatever it has."""

    target: str
    uuid: str
    parts: tuple[Part, ...]
    token: str
    tags: dict[str, str]
    properties: dict[str, str]
    verb: Verb
    columns: ColumnIds | None = None
    #: The snapshots (table, id) that list the files wanted.
    sources: tuple[tuple[str, int], ...] = ()
    operation: Operation = Operation.OVERWRITE
    #: The default spec that the table must still have; None: whatever it has.
    spec_id: int | None = None
    #: Whether any commit of others since the base is a conflict.
    is_frozen: bool = False
    #: The columns that it gets by the same commit; None: it keeps its own.
    evolved: Evolved | None = None
