"""The lake: table metadata, pins, shadows, publication by metadata, stored files.

Implemented with PyIceberg; no JVM is needed to read metadata. Every method with a side effect may
be repeated: a second call returns the result of the first.

What PyIceberg reads but cannot write (table format 3) has a protocol for each kind of commit, as
not every writer supports all. The caller has inspected the table, decided, and listed every file;
the implementation commits exactly that, or nothing, and never retries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Protocol

from lakehouse_backfill.domain import publication
from lakehouse_backfill.domain.catch_up import CarryRequest, Drift
from lakehouse_backfill.domain.comparison.checksums import FileBytes
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.key_ranges import KeyBounds, KeyRanges
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.retention import ExpirationResult
from lakehouse_backfill.domain.sources.topic_offsets import LandedEvents, TableLanding
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.domain.tables.commits import (
    AdoptRequest,
    ChunkCommit,
    CloneCommit,
    CommitResult,
    NewSchema,
    PartitionContent,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
    SwapCommit,
)
from lakehouse_backfill.domain.tables.files import (
    ColumnSpan,
    LiveFile,
    MetadataFile,
    ScanEstimate,
    ScopedFiles,
)
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.domain.tables.table import CatalogMovements, Snapshot, TableInfo, TableRef
from lakehouse_backfill.fault_points import side_effect


class Tables(Protocol):
    """Reads table metadata and creates product tables."""

    def describe(self, table: str) -> TableInfo | None:
        """Return the table's current state, or None when it does not exist."""
        ...

    def committed_at(self, table: str) -> datetime | None:
        """Return when a table was last committed to; None when there is no such table."""
        ...

    def positions(self, table: str) -> dict[str, str]:
        """Return the resume positions that writers left in summaries of main; may be empty."""
        ...

    def marks(self, table: str) -> frozenset[str]:
        """Return the marks of signed commits in all snapshots of a table: `BOUND_PROPERTY`.

        Empty when there are none, and when there is no such table.
        """
        ...

    def resolve(self, ref: TableRef) -> Snapshot:
        """Return the snapshot that `ref` names (id, tag, branch, ISO timestamp; head if none).

        Raises NotFound when the table, reference or snapshot does not exist.
        """
        ...

    def files(
        self, table: str, snapshot_id: int | None, field: ScopeField, counting: Collection[str] = ()
    ) -> list[LiveFile]:
        """List the live data files of a snapshot, each with its partition label for `field`.

        Each file lists the delete files that apply to it, and its non-null value counts of the
        columns in `counting`, where its metadata has them. Raises Unsupported when a live file's
        spec has no such field.
        """
        ...

    def column_spans(
        self,
        table: str,
        snapshot_id: int | None,
        column: str,
        appended_since: int | None = None,
    ) -> tuple[ColumnSpan, ...]:
        """Return which values of a time column each live data file holds, by metadata alone.

        With `appended_since`: only the files that appends after that snapshot added. Raises
        Unsupported when the table has no such column of time, or the snapshot is no child of it.
        """
        ...

    def key_bounds(self, table: str, snapshot_id: int, wanted: KeyRanges) -> KeyBounds:
        """Return the bounds that `wanted` leaves open; raises Unsupported for unusable values."""
        ...

    def scoped(self, table: str, snapshot_id: int | None, scope: Scope) -> ScopedFiles:
        """Return the live data files of the scope, and the partition tuples that hold them.

        Each manifest that may list such files is read once, and no other. Raises Unsupported when a
        file holds rows both inside and outside of the scope.
        """
        ...

    def estimate(
        self, table: str, snapshot_id: int | None, ranges: tuple[RowRange, ...]
    ) -> ScanEstimate:
        """Estimate from metadata what a scan pruned to `ranges` reads; no ranges: everything."""
        ...

    def scope_field(self, info: TableInfo, column: str) -> ScopeField:
        """Return the partition field of `column`; raise Unsupported when it cannot be scoped."""
        ...

    def movements(
        self, since: datetime, first: Collection[str], skip: Collection[str], limit: int
    ) -> CatalogMovements:
        """List the commits since the instant to tables of the catalog, on any branch.

        At most `limit` tables are read: those in `first`, then those of their namespaces, then
        others by name. Other tables of the namespaces in `skip` are left out.
        """
        ...

    @side_effect
    def create(self, contract: Contract) -> TableInfo:
        """Create the product's empty table from its contract, unless it exists."""
        ...


class TableCopies(Protocol):
    """Copies of the real lake's tables in that of a rehearsal; the real lake is only read."""

    def real_metadata(self, table: str) -> str:
        """Return what names the real table's newest state."""
        ...

    def require_other_lake(self, tables: tuple[str, ...]) -> None:
        """Raise Conflict when the rehearsal's lake has one of the tables, and it is no copy."""
        ...

    @side_effect
    def copy(self, table: str) -> None:
        """Copy a table as it is now by metadata alone; an earlier copy is replaced."""
        ...


class LandedTopics(Protocol):
    """Raw tables of topics at a snapshot, for those who plan by them."""

    def landing(self, table: str, snapshot_id: int) -> TableLanding | None:
        """Return the newest landing behind a snapshot, from metadata; None: there is none."""
        ...

    def events(self, table: str, snapshot_id: int, span: RowRange) -> LandedEvents:
        """Return where the events of a span lie; three columns of the files with them are read."""
        ...


class Pins(Protocol):
    """Tags that keep snapshots from expiring, each with an explicit huge age.

    Expired tags and their snapshots are removed by metadata alone; files stay.
    """

    @side_effect
    def pin(self, table: str, snapshot_id: int, name: str) -> None:
        """Tag the snapshot and read the tag back; the same pin again does nothing."""
        ...

    @side_effect
    def unpin(self, table: str, name: str) -> None:
        """Drop the tag if it exists."""
        ...

    def pinned(self, table: str, name: str) -> int | None:
        """Return the snapshot id that the tag protects, or None."""
        ...

    def tags(self, table: str) -> dict[str, int] | None:
        """Return our tags on a table with their snapshots; None when there is no such table."""
        ...

    def preview_expiry(
        self, table: str, tags: Mapping[str, int], now: datetime, *, at_once: bool = False
    ) -> ExpirationResult:
        """Return what `expire` would do."""
        ...

    @side_effect
    def expire(
        self, table: str, tags: Mapping[str, int], now: datetime, *, at_once: bool = False
    ) -> ExpirationResult:
        """Drop tags in one metadata-only commit, with snapshots that regular expiry must not drop.

        A tag that is missing or names another snapshot is left unchanged. A tag is kept, with the
        reason, when without it the next expiry could delete a live file. `at_once`: also drop when
        that removes history younger than the table's own settings keep.
        """
        ...

    def unsafe_expiries(self, table: str) -> dict[int, str]:
        """Return snapshots without a reference whose expiry would delete live files, and why."""
        ...


class Shadows(Protocol):
    """What runs write into: zero-copy clones, or branches of the target. The name says which."""

    def list(self, targets: Collection[str] = ()) -> tuple[str, ...]:
        """Return the shadows in the catalog, but for those that are marked as retired.

        Those on branches are looked for in the tables `targets`.
        """
        ...

    def capabilities(self) -> Capabilities | None:
        """Return what `doctor` found last of this catalog; None when that is not known here."""
        return None

    @side_effect
    def open(
        self, target: str, snapshot_id: int | None, shadow: str, properties: dict[str, str]
    ) -> TableInfo:
        """Clone `target` at the snapshot as `shadow` by one metadata file, or branch off from it.

        Returns an existing shadow with that base unchanged. Raises Unsupported when the catalog
        does not keep what was registered.
        """
        ...

    @side_effect
    def fence(self, shadow: str, epoch: int) -> None:
        """Allow only writers of `epoch` and later to commit to the shadow from now on; one commit.

        What a writer that loaded the shadow earlier still commits is refused, even in the middle of
        a write, or lands where nobody reads. The same epoch again does nothing. Raises RunMoved
        when a later epoch has fenced the shadow.
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
        """Create a table of its own for a snapshot of the shadow, which outlives the shadow.

        A repeat returns the same table. Raises Conflict when something else has the name.
        """
        ...

    @side_effect
    def retire(self, shadow: str) -> None:
        """Drop the shadow from the catalog, or the branches; files stay."""
        ...


class VersionTables(Protocol):
    """Tables that hold all kept versions of a product, each row with its version and status."""

    def require_fit(self, source: str, snapshot_id: int | None) -> None:
        """Raise Unsupported unless the files of a version can be listed with their labels."""
        ...

    @side_effect
    def open(self, name: str, product: str, source: str) -> None:
        """Make the empty table unless it is there, for versions with the columns of `source`.

        Raises Conflict where the name is used for something else, Unsupported.
        """
        ...

    @side_effect
    def show(self, labels: publication.VersionLabels) -> None:
        """Make the rows say what `labels` says, by one commit of metadata; a repeat does nothing.

        Readers see the labels before it or after it. Later acts are never taken back. Raises
        Conflict when somebody else wrote to the table, Unsupported, TooBusy, OutcomeUnknown.
        """
        ...

    def fault(self, labels: publication.VersionLabels) -> str:
        """Return how the table differs from what it has to say; empty: it does not."""
        ...


class Publisher(Protocol):
    """Metadata-only commits on a target or a shadow, always as a child of its current head."""

    @side_effect
    def adopt(self, request: AdoptRequest) -> CommitResult:
        """Swap the shadow's files in. Only commits that touch the scope conflict.

        Raises TargetChanged (names snapshot, operation, writer, partitions), TooBusy,
        OutcomeUnknown, Unsupported.
        """
        ...

    @side_effect
    def adopt_together(self, requests: tuple[AdoptRequest, ...]) -> tuple[CommitResult, ...]:
        """Adopt in several tables by one commit of the catalog: all of them, or none.

        Raises what `adopt` does of any of them; Unsupported as `require_one_commit`.
        """
        ...

    @side_effect
    def revert_together(self, requests: tuple[RevertRequest, ...]) -> tuple[CommitResult, ...]:
        """Restore partitions of several tables by one commit, without any that is rewritten."""
        ...

    def require_one_commit(self, targets: tuple[tuple[str, Scope], ...]) -> None:
        """Raise Unsupported unless one commit can change all of the tables in their scopes."""
        ...

    @side_effect
    def revert(self, request: RevertRequest) -> CommitResult:
        """Restore earlier contents of partitions, with their original sequence numbers.

        Rewritten partitions get the files of their shadow. Raises Unsupported when a partition that
        must be rewritten is not.
        """
        ...

    @side_effect
    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Add the partitions of another shadow to a shadow as they are, in one commit.

        Returns a chunk that is already there unchanged. Raises RunMoved once the shadow is fenced
        by a later epoch, TargetChanged when the columns of the two shadows differ.
        """
        ...

    def rewrites(
        self, target: str, field: ScopeField, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Return the partitions that cannot be restored by re-adding their files, and why."""
        ...

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Describe the commit that changed rows of the scope since then; ignore compactions."""
        ...

    def prove(self, request: AdoptRequest) -> None:
        """Check the shadow as `adopt` does, with the same errors, before anything is reserved."""
        ...

    def preview(self, request: AdoptRequest | RevertRequest) -> None:
        """Check what `adopt` or `revert` does, with the same errors; nothing is written."""
        ...

    def drifts(
        self,
        target: str,
        scope: Scope | None,
        since_snapshot_id: int | None,
        until_snapshot_id: int | None = None,
    ) -> tuple[Drift, ...]:
        """List the commits since the snapshot that changed rows of the scope, oldest first.

        They are those that lead to `until_snapshot_id`, by default to the head of main.

        No scope: of the table, from its metadata alone; the commits then name no partitions. No
        snapshot: since the table was empty. Compactions are left out. Raises TargetChanged when a
        change cannot be assigned to a commit (history is missing, a compaction lost rows),
        NotFound.
        """
        ...

    def find(self, target: str, token: str, *, finalise: bool = True) -> CommitResult | None:
        """Look in the target for the commit of publication `token`.

        Finishes an interrupted swap by rows, which may start Spark and writes tags. With
        `finalise=False` it only reads.
        """
        ...


class StoredFiles(Protocol):
    """Files in the store; the cost grows with the files that are named, not with the table."""

    def files(self, table: str, snapshot_id: int, scope: Scope) -> tuple[LiveFile, ...]:
        """List the live data files of the scope, by path, as often as the snapshot's manifests do.

        Raises NotFound when table or snapshot do not exist, Unsupported when a file holds rows both
        inside and outside of the scope.
        """
        ...

    def metadata(self, table: str, snapshot_id: int, scope: Scope) -> tuple[MetadataFile, ...]:
        """Hash the snapshot's manifest list and the manifests that may list files of the scope.

        Sorted by path; a file that cannot be read is left out. Raises NotFound as `files` does.
        """
        ...

    def sizes(self, table: str, paths: Collection[str]) -> dict[str, int]:
        """Return the files' sizes from the store; missing files are left out."""
        ...

    def reading(self, table: str, snapshot_id: int) -> str:
        """Return the digest of a snapshot's columns: field ids, names, types.

        A file has the same rows under equal readings. Lineage columns, order, documentation and
        whether a column is required do not count, nor do promotions that keep the row hash.
        """
        ...

    def digests(self, table: str, paths: Collection[str]) -> dict[str, FileBytes]:
        """Hash the files' bytes, several files at a time; missing files are left out."""
        ...


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
