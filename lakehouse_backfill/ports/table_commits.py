"""Making the commits that PyIceberg reads but cannot write: table format 3.

One protocol for each thing that is written, as not everybody can write everything.

Who calls has inspected the table, decided and written down every file; who implements it commits
exactly that, or nothing. There is no retry in here.
"""

from __future__ import annotations

from typing import Protocol

from lakehouse_backfill.domain.table_commit import (
    CloneCommit,
    NewSchema,
    PartitionContent,
    SwapCommit,
)


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
