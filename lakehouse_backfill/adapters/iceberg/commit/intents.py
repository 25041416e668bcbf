"""What a swap is to do to a table, before anybody looks at the table as it is now."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.snapshots import Operation

from lakehouse_backfill.adapters.iceberg.commit.conflicts import ErrorWording
from lakehouse_backfill.adapters.iceberg.content import LiveEntries
from lakehouse_backfill.adapters.iceberg.evolving import SchemaEvolution
from lakehouse_backfill.adapters.iceberg.metadata import ColumnIds
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table_commit import PartitionContent


@dataclass(frozen=True)
class SwapPart:
    """Partitions that get the files `wanted`, unless changed since `since_id` (None: empty).

    `source` is the table and snapshot that hold the same as rows; None: there are none.
    """

    scope: Scope
    since_id: int | None
    wanted: LiveEntries
    source: tuple[str, int] | None = None

    @property
    def rows(self) -> PartitionContent:
        """The same as rows of the source, which is None where there is nothing to read."""
        if self.source is None or not self.wanted:
            return PartitionContent(scope=self.scope)
        return PartitionContent(scope=self.scope, table=self.source[0], snapshot_id=self.source[1])


@dataclass(frozen=True)
class SwapRequest:
    """What a swap is to do. `columns`: what the table must still have; None: whatever it has."""

    target: str
    uuid: str
    parts: tuple[SwapPart, ...]
    token: str
    tags: dict[str, str]
    properties: dict[str, str]
    verb: ErrorWording
    columns: ColumnIds | None = None
    #: The snapshots (table, id) that list the files wanted.
    sources: tuple[tuple[str, int], ...] = ()
    operation: Operation = Operation.OVERWRITE
    #: The default spec that the table must still have; None: whatever it has.
    spec_id: int | None = None
    #: Whether any commit of others since the base is a conflict.
    is_frozen: bool = False
    #: The columns that it gets by the same commit; None: it keeps its own.
    evolved: SchemaEvolution | None = None
