"""The commits that PyIceberg cannot make; carried and erased rows.

Taking over chunks of an earlier revision, and finding rows that must not come back.

Making the commits that PyIceberg reads but cannot write: table format 3.

One protocol for each thing that is written, as not everybody can write everything.

Who calls has inspected the table, decided and written down every file; who implements it commits
exactly that, or nothing. There is no retry in here.
"""

from __future__ import annotations

from typing import Protocol

from lakehouse_backfill.domain.catch_up import (
    CarryRequest,
    DeletedRows,
    ExcludedRows,
    TableState,
    TombstonedRows,
)
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import (
    ChunkCommit,
    CloneCommit,
    NewSchema,
    PartitionContent,
    SwapCommit,
)
from lakehouse_backfill.fault_points import side_effect


class Carrying(Protocol):
    """Moving staged partitions from one shadow to another, by metadata alone."""

    @side_effect
    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Let a shadow hold the partitions as another one has them, in one commit.

        A chunk that is there already is given back as it is. Raises RunMoved once the shadow was
        fenced by a later epoch, TargetChanged when the two have other columns.
        """
        ...


class DeletionFinder(Protocol):
    """Looking for deleted rows; reads key columns, and starts no JVM."""

    def gone(
        self, old: TableState, new: TableState, scope: Scope, key: tuple[str, ...]
    ) -> DeletedRows:
        """Count the rows of `old` whose key `new` does not hold in the scope, and say where."""
        ...

    def named(
        self, state: TableState, partitions: tuple[str, ...], left_out: ExcludedRows
    ) -> TombstonedRows:
        """Count the rows of the partitions that tombstones or erasures name."""
        ...


class PreparedSnapshot(Protocol):
    """A snapshot whose manifests are written, and that nobody sees yet."""

    def commit(self) -> None:
        """Put it on the table, with its tags and properties, in one commit.

        Raises TooBusy when another writer was first, so that it certainly did not land; whatever
        else is raised says nothing about that.
        """
        ...


class SwapCommitter(Protocol):
    """Swaps of partitions, each in one commit."""

    @property
    def writes_rows(self) -> bool:
        """Whether rows are written anew instead of files taken over."""
        ...

    def prepare(self, order: SwapCommit) -> PreparedSnapshot:
        """Write the manifests of a swap; what an earlier attempt wrote is used again.

        Raises TooBusy when the table is not in the inspected state any more, NotFound when a file
        is not listed where the order says.
        """
        ...


class RowVerifier(Protocol):
    """Proving that what was written anew is what was to be written."""

    def require_equal(
        self, table: str, snapshot_id: int, contents: tuple[PartitionContent, ...]
    ) -> None:
        """Compare count and checksum of the rows; raises OutcomeUnknown when they differ."""
        ...


class TagCommitter(Protocol):
    """Tags, each in one commit."""

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        """Set the tag, or drop it (None). Raises TooBusy when another writer was first."""
        ...


class UpkeepCommitter(Protocol):
    """Letting go of tags and snapshots."""

    def take_out(
        self, table: str, refs: dict[str, int], tags: tuple[str, ...], snapshots: tuple[int, ...]
    ) -> None:
        """Drop tags and snapshots, while the table has exactly the references `refs`.

        Raises TooBusy when it has others by now, or another writer was first.
        """
        ...


class CloneCommitter(Protocol):
    """Clones of tables."""

    def write_clone(self, order: CloneCommit) -> None:
        """Write the metadata file of a clone; no catalog knows of it yet."""
        ...

    def fence(self, table: str, found_uuid: str, uuid: str, properties: dict[str, str]) -> None:
        """Give the table another UUID and set properties, unless its UUID is not `found_uuid`."""
        ...

    def set_columns(self, table: str, found_uuid: str, columns: NewSchema) -> None:
        """Give the table other columns, unless its UUID is not `found_uuid`."""
        ...


class TableCommitter(SwapCommitter, TagCommitter, UpkeepCommitter, CloneCommitter, Protocol):
    """All of them, on tables of any format."""
