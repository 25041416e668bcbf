"""Tables, pins, shadows, publisher, stored files.

The lake: reading tables, pinning snapshots, shadows, and swapping files by metadata alone.

Implemented by `iceberg/` (PyIceberg, no JVM). Every method with a side effect may be repeated: a
second call finds what the first did.

What lies in the store of a table, as its metadata lists it and as it is; no JVM, no rows.

Facts by which the way of changing a table is chosen.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.plan import TableFacts
from lakehouse_backfill.domain.publication import (
    AdoptRequest,
    ChunkCommit,
    CommitResult,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
)
from lakehouse_backfill.domain.table import (
    LiveFile,
    MetadataFile,
    ScanEstimate,
    SchemaChange,
    Snapshot,
    SpecPartitions,
    TableInfo,
    TableRef,
)
from lakehouse_backfill.fault_points import side_effect


class Tables(Protocol):
    """Reading table metadata."""

    def describe(self, table: str) -> TableInfo | None:
        """Give the table's current state, or None when it does not exist."""
        ...

    def positions(self, table: str) -> dict[str, str]:
        """Give what writers left in the summaries of main to find where they stopped; may be {}."""
        ...

    def resolve(self, ref: TableRef) -> Snapshot:
        """Give the snapshot that `ref` names (id, tag, branch, ISO timestamp; head if none).

        Raises NotFound when the table, reference or snapshot does not exist.
        """
        ...

    def files(
        self,
        table: str,
        snapshot_id: int | None,
        field: ScopeField,
        counting: Collection[str] = (),
    ) -> list[LiveFile]:
        """List the live data files of a snapshot, each with its partition label for `field`.

        Each names the delete files that apply to it, and how many values it holds of the columns
        in `counting`, where its metadata says so. Raises Unsupported when a live file's spec has
        no such field.
        """
        ...

    def places(
        self, table: str, snapshot_id: int | None, scope: Scope
    ) -> tuple[SpecPartitions, ...]:
        """Resolve the labels of a scope to the partition tuples that hold its files, by spec.

        Raises Unsupported when a file lies in the scope and in partitions beside it.
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

    @side_effect
    def evolve(self, shadow: str, base_schema_id: int, change: SchemaChange) -> None:
        """Change the shadow's columns by one commit; the same change again does nothing.

        Raises Conflict when its columns are neither those of the base schema nor the changed ones.
        """
        ...

    def chunks(self, shadow: str) -> tuple[ChunkCommit, ...]:
        """List the chunks committed to the shadow, oldest first, from its snapshot log."""
        ...

    @side_effect
    def keep(
        self, shadow: str, snapshot_id: int, name: str, properties: dict[str, str]
    ) -> TableInfo:
        """Give a snapshot of the shadow a table of its own, which outlives the shadow.

        The same again gives it back. Raises Conflict when something else has the name.
        """
        ...

    @side_effect
    def retire(self, shadow: str) -> None:
        """Drop the shadow from the catalog; its files stay."""
        ...


class Publisher(Protocol):
    """Metadata-only commits on a target; always a child of its current head."""

    @side_effect
    def adopt(self, request: AdoptRequest) -> CommitResult:
        """Swap the shadow's files in. Only commits that touch the scope conflict.

        Raises TargetChanged (names snapshot, operation, writer, partitions), TooBusy,
        OutcomeUnknown, Unsupported.
        """
        ...

    @side_effect
    def revert(self, request: RevertRequest) -> CommitResult:
        """Put partitions back to earlier contents, with their original sequence numbers.

        Rewritten ones get the files of their shadow. Raises Unsupported when a partition that has
        to be rewritten is not.
        """
        ...

    def rewrites(
        self, target: str, field: ScopeField, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Say which partitions cannot go back by adding their files again, and why."""
        ...

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Say which commit changed rows of the scope since the snapshot; compaction is none."""
        ...

    def prove(self, request: AdoptRequest) -> None:
        """Check the shadow as `adopt` does, before anything is reserved; raises what that would."""
        ...

    def drifts(self, target: str, scope: Scope, since_snapshot_id: int | None) -> tuple[Drift, ...]:
        """Name the commits since the snapshot that changed rows of the scope, oldest first.

        None: since the table was empty. Compactions are none. Raises TargetChanged when no commit
        can be named for what changed (history is gone, a compaction lost rows), NotFound.
        """
        ...

    def find(self, target: str, token: str, *, settle: bool = True) -> CommitResult | None:
        """Look in the target for the commit of publication `token`.

        A swap by rows that was cut off is finished by who finds it, for which Spark may start and
        tags are written; not with `settle=False`, which only reads.
        """
        ...


class StoredFiles(Protocol):
    """Files of one snapshot's partitions; the cost follows them, not the table."""

    def files(self, table: str, snapshot_id: int, scope: Scope) -> tuple[LiveFile, ...]:
        """List the live data files of the scope, by path, as often as the snapshot's manifests do.

        Raises NotFound when table or snapshot are gone, Unsupported when a file lies in the scope
        and beside it.
        """
        ...

    def metadata(self, table: str, snapshot_id: int, scope: Scope) -> tuple[MetadataFile, ...]:
        """Hash the snapshot's manifest list and the manifests that may list files of the scope.

        By path; one that cannot be read is left out. Raises NotFound as `files` does.
        """
        ...

    def sizes(self, table: str, paths: Collection[str]) -> dict[str, int]:
        """Ask the store for the files' sizes; those that are gone are left out."""
        ...


class TableSurveyor(Protocol):
    """Looking at a table before it is changed, at its metadata alone."""

    def survey(self, table: str, scope: Scope | None) -> TableFacts | None:
        """Give the facts for changing the scope; no scope: only what the table itself says.

        None when the table does not exist.
        """
        ...
