"""Commits that PyIceberg reads but cannot write (table format 3); carried and deleted rows.

Each kind of commit has its own protocol, as not every writer supports all of them. The caller has
inspected the table, decided, and listed every file. The implementation commits exactly that, or
nothing, and never retries.
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
    """Moves staged partitions from one shadow to another, by metadata alone."""

    @side_effect
    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Add the partitions of another shadow to a shadow as they are, in one commit.

        Returns a chunk that is already there unchanged. Raises RunMoved once the shadow is fenced
        by a later epoch, TargetChanged when the columns of the two shadows differ.
        """
        ...


class DeletionFinder(Protocol):
    """Finds deleted rows; reads key columns and starts no JVM."""

    def gone(
        self, old: TableState, new: TableState, scope: Scope, key: tuple[str, ...]
    ) -> DeletedRows:
        """Count the rows of `old` whose key is missing from `new` in the scope, with samples."""
        ...

    def named(
        self, state: TableState, partitions: tuple[str, ...], left_out: ExcludedRows
    ) -> TombstonedRows:
        """Count the rows of the partitions that tombstones or erasures name."""
        ...


class PreparedSnapshot(Protocol):
    """A snapshot whose manifests are written, but which is not visible yet."""

    def commit(self) -> None:
        """Commit the snapshot to the table, with its tags and properties, in one commit.

        Raises TooBusy when another writer was first, so the snapshot certainly did not land. After
        any other error the outcome is unknown.
        """
        ...


class SwapCommitter(Protocol):
    """Swaps of partitions and tags, each in one commit."""

    @property
    def writes_rows(self) -> bool:
        """Whether rows are rewritten instead of files taken over."""
        ...

    def prepare(self, order: SwapCommit) -> PreparedSnapshot:
        """Write the manifests of a swap, reusing those of an earlier attempt.

        Raises TooBusy when the table is no longer in the inspected state, NotFound when a file is
        not listed where the order says.
        """
        ...

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        """Set the tag, or drop it (None). Raises TooBusy when another writer was first."""
        ...


class RowRewriter(SwapCommitter, Protocol):
    """Swaps that rewrite rows; whether the rows are right is verified after the commit."""

    def require_equal(
        self, table: str, snapshot_id: int, contents: tuple[PartitionContent, ...]
    ) -> None:
        """Compare count and checksum of the rows; raise OutcomeUnknown when they differ."""
        ...


class CloneCommitter(Protocol):
    """Clones of tables."""

    def write_clone(self, order: CloneCommit) -> None:
        """Write the metadata file of a clone, before it is in any catalog."""
        ...

    def fence(self, table: str, found_uuid: str, uuid: str, properties: dict[str, str]) -> None:
        """Replace the table's UUID and set properties, unless its UUID is not `found_uuid`."""
        ...

    def set_columns(self, table: str, found_uuid: str, columns: NewSchema) -> None:
        """Replace the table's columns, unless its UUID is not `found_uuid`."""
        ...


class TableCommitter(SwapCommitter, CloneCommitter, Protocol):
    """All of these commits, and the removal of snapshots, on tables of any format."""

    def take_out(
        self, table: str, refs: dict[str, int], tags: tuple[str, ...], snapshots: tuple[int, ...]
    ) -> None:
        """Drop tags and snapshots, if the table has exactly the references `refs`.

        Raises TooBusy when the references differ, or another writer was first.
        """
        ...
