"""The lake: reading tables, pinning snapshots, shadows, and swapping files by metadata alone.

Implemented by `iceberg/` (PyIceberg, no JVM). Every method with a side effect may be repeated: a
second call finds what the first did.
"""

from __future__ import annotations

from typing import Protocol

from lakehouse_backfill.fault_points import side_effect
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.publication import AdoptRequest, ChunkCommit, RevertRequest, Swap
from lakehouse_backfill.model.scope import RowRange, Scope, ScopeField
from lakehouse_backfill.model.table import (
    LiveFile,
    ScanEstimate,
    Snapshot,
    TableInfo,
    TableRef,
)


class Tables(Protocol):
    """Reading table metadata."""

    def describe(self, table: str) -> TableInfo | None:
        """Give the table's current state, or None when it does not exist."""
        ...

    def resolve(self, ref: TableRef) -> Snapshot:
        """Give the snapshot that `ref` names (id, tag, branch, ISO timestamp; head if none).

        Raises NotFound when the table, reference or snapshot does not exist.
        """
        ...

    def files(self, table: str, snapshot_id: int | None, field: ScopeField) -> list[LiveFile]:
        """List the live data files of a snapshot, each with its partition label for `field`.

        Raises Unsupported when a live file's spec has no such field, or delete files are live.
        """
        ...

    def estimate(
        self, table: str, snapshot_id: int | None, ranges: tuple[RowRange, ...]
    ) -> ScanEstimate:
        """Tell what a scan pruned to `ranges` would read; no ranges: everything."""
        ...

    def scope_field(self, info: TableInfo, column: str) -> ScopeField:
        """Give the partition field of `column`; raises Unsupported when none can be scoped."""
        ...

    @side_effect
    def create(self, contract: Contract) -> TableInfo:
        """Create the product's empty table from its contract, unless it exists."""
        ...


class Pins(Protocol):
    """Tags that keep snapshots from expiring, each with an explicit huge age."""

    @side_effect
    def pin(self, table: str, snapshot_id: int, name: str) -> None:
        """Tag the snapshot and read the tag back; the same pin again does nothing."""
        ...

    @side_effect
    def unpin(self, table: str, name: str) -> None:
        """Drop the tag if it is there."""
        ...

    def pinned(self, table: str, name: str) -> int | None:
        """Give the snapshot id that the tag protects, or None."""
        ...


class Shadows(Protocol):
    """Zero-copy clones that runs write into."""

    @side_effect
    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone `target` at the snapshot as table `shadow` by one metadata file, and verify it.

        A shadow that is already there and has the snapshot as base is given back as it is.
        Raises Unsupported when the catalog does not keep what was registered.
        """
        ...

    @side_effect
    def fence(self, shadow: str, epoch: int) -> None:
        """Let only writers of `epoch` and later commit to the shadow from now on; one commit.

        Whoever loaded the shadow before cannot commit any more, also in the middle of a write.
        The same epoch again does nothing. Raises RunMoved when a later epoch has fenced it.
        """
        ...

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the shadow, oldest first, from its snapshot log."""
        ...

    @side_effect
    def retire(self, shadow: str) -> None:
        """Drop the shadow from the catalog; its files stay."""
        ...


class Publisher(Protocol):
    """Metadata-only commits on a target; always a child of its current head."""

    @side_effect
    def adopt(self, request: AdoptRequest) -> Swap:
        """Swap the shadow's files in. Only commits that touch the scope conflict.

        Raises TargetChanged (names snapshot, operation, writer, partitions), TooBusy,
        OutcomeUnknown, Unsupported.
        """
        ...

    @side_effect
    def revert(self, request: RevertRequest) -> Swap:
        """Put partitions back to earlier contents, with their original sequence numbers."""
        ...

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Say which commit changed rows of the scope since the snapshot; compaction is none."""
        ...

    def find(self, target: str, token: str) -> Swap | None:
        """Look in the target for the commit of publication `token`."""
        ...
