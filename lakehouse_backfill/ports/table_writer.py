"""Commits that PyIceberg reads but cannot write (table format 3).

Each kind of commit has its own protocol, as not every writer supports all of them. The caller has
inspected the table, decided, and listed every file. The implementation commits exactly that, or
nothing, and never retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakehouse_backfill.domain.publication import (
    CloneCommit,
    NewSchema,
    PartitionContent,
    SwapCommit,
)


class SwapCommitter(Protocol):
    """Swaps of partitions and tags, each in one commit."""

    @property
    def writes_rows(self) -> bool:
        """Whether rows are rewritten instead of files taken over."""
        ...

    def prepare(self, order: SwapCommit) -> Callable[[], None]:
        """Write the manifests of a swap, reusing those of an earlier attempt; return its commit.

        The commit makes the snapshot visible with its tags and properties, at once. It raises
        TooBusy when another writer was first, so the snapshot certainly did not land; after any
        other error the outcome is unknown.

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

    def expire(
        self, table: str, refs: dict[str, int], tags: tuple[str, ...], snapshots: tuple[int, ...]
    ) -> None:
        """Drop tags and snapshots, if the table has exactly the references `refs`.

        Raises TooBusy when the references differ, or another writer was first.
        """
        ...
