"""Writers of a swap's snapshot: PyIceberg, or a delegated committer for what it cannot write.

The files to swap are inspected and decided before, in the same way for both. A delegated committer
commits through Iceberg's Java API or rewrites rows.

A rewrite of rows is one snapshot, and its commit sets no tags. It is finalised afterwards: a proof
that the snapshot equals the candidate, then the tags of both states. The pending work is written
in the snapshot's summary, so that any later process can finish it. The tag of the new state is set
last and marks the rewrite as finalised.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.commit import snapshot_producer
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import Swap
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.iceberg.schema import build_new_schema
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.domain import publication
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.errors import OutcomeUnknown, Unsupported
from lakehouse_backfill.ports.table_writer import SwapCommitter


class PyIcebergSnapshotWriter:
    """Writes snapshots of formats 1 and 2, without a JVM."""

    def __init__(self, cache: ManifestCache) -> None:
        self._producer = snapshot_producer.SwapProducer(cache)

    def prepare(
        self, table: Table, change: snapshot_producer.SnapshotChange, swap: Swap, attempt: int
    ) -> Callable[[], Snapshot]:
        """Write the snapshot for the table as it was loaded last; return its commit.

        Manifests of earlier attempts are reused. Readers see nothing before the commit.
        """
        metadata.refuse_unwritable_format(swap.request.target, table.metadata)
        snapshot = self._producer.write_snapshot(table, change, swap.summary(attempt), attempt)
        after = swap.request.tags.get("after")
        tags = {**change.before_tags, **({after: snapshot.snapshot_id} if after else {})}

        def land() -> Snapshot:
            snapshot_producer.commit_snapshot(
                table, snapshot, tags, swap.request.token, change.schema
            )
            return snapshot

        return land


class DelegatedSnapshotWriter:
    """Writes snapshots of any format, through the given committer."""

    def __init__(self, commits: SwapCommitter) -> None:
        self._commits = commits

    def prepare(
        self, table: Table, change: snapshot_producer.SnapshotChange, swap: Swap, attempt: int
    ) -> Callable[[], None]:
        """Order a swap of exactly the inspected files; return its commit.

        Readers see nothing before the commit. The new snapshot is found by its token. Raises
        TooBusy when the table has changed since it was loaded.
        """
        if change.schema is not None and self._commits.writes_rows:
            raise Unsupported(
                f"{swap.request.target}: commits of rows carry no change of columns",
                state="nothing was published; readers see what they saw before",
                fix="change the columns on the table itself, and plan the run again without them",
            )
        return self._commits.prepare(_swap_commit(table, change, swap, attempt))


def _swap_commit(
    table: Table, change: snapshot_producer.SnapshotChange, swap: Swap, attempt: int
) -> publication.SwapCommit:
    current, head, request = table.metadata, change.head, swap.request
    return publication.SwapCommit(
        base=publication.InspectedState(
            table=request.target,
            uuid=str(current.table_uuid),
            head_id=head.snapshot_id if head else None,
            schema_id=current.current_schema_id,
            spec_id=current.default_spec_id,
            last_column_id=current.last_column_id,
        ),
        contents=tuple(part.row_content for part in swap.parts),
        token=request.token,
        removed=tuple(name for name, e in change.removed.items() if _is_data_file(e)),
        removed_deletes=tuple(name for name, e in change.removed.items() if not _is_data_file(e)),
        added=tuple(
            publication.AddedFile(name, e.sequence_number) for name, e in change.added.items()
        ),
        sources=tuple(dict.fromkeys(part.source for part in swap.parts if part.source)),
        tags=change.before_tags,
        after=request.tags.get("after"),
        tag_age_ms=metadata.NEVER_EXPIRES_MS,
        summary=swap.summary(attempt),
        properties={metadata.PUBLICATION_PROPERTY: request.token},
        operation=request.operation,
        columns=build_new_schema(current, change.schema) if change.schema else None,
    )


def _is_data_file(entry: ManifestEntry) -> bool:
    return bool(entry.data_file.content == DataFileContent.DATA)


class RowRewriteFinalizer:
    """Finalises row rewrites on the tables of one catalog."""

    def __init__(self, catalog: Catalog, writers: TableWriters) -> None:
        self._catalog = catalog
        self._writers = writers

    def finalise(self, target: str, snapshot: Snapshot) -> None:
        """Prove the snapshot and tag it, unless that is done; other snapshots need nothing.

        The state before is tagged first, so that it cannot expire while rows are compared. A state
        that has already expired gets no tag; a rollback to it is refused. Raises
        OutcomeUnknown when the snapshot differs from the candidate: it is then visible, and neither
        accepted nor rolled back.
        """
        text = metadata.snapshot_summary(snapshot).get(publication.REWRITE_PROPERTY)
        if text is None:
            return
        pending = publication.PendingRewrite.model_validate_json(text)
        table = load_table(self._catalog, target)
        if pending.after is not None and pending.after in table.metadata.refs:
            return
        pins = IcebergPins(self._catalog, self._writers)
        before = snapshot.parent_snapshot_id
        has_before = any(ancestor.snapshot_id == before for ancestor in table.metadata.snapshots)
        if pending.before is not None and before is not None and has_before:
            pins.pin(target, before, pending.before)
        with translate_errors():
            _require_in_partitions(target, table, snapshot, pending)
        self._writers.rows().require_equal(target, snapshot.snapshot_id, pending.contents)
        if pending.after is not None:
            pins.pin(target, snapshot.snapshot_id, pending.after)


def _require_in_partitions(
    target: str, table: Table, snapshot: Snapshot, done: publication.PendingRewrite
) -> None:
    """Check that every file that the snapshot added or removed is in its partitions.

    Removed delete files that hide no rows are exempt: Iceberg leaves them out of manifests that it
    rewrites, whatever their partition.
    """
    labels = tuple(label for content in done.contents for label in content.scope.partitions)
    scope = Scope(field=done.contents[0].scope.field, partitions=labels)
    reader = ScopedReader(table, scope, ManifestCache())
    manifests = snapshot.manifests(table.io)
    oldest = _oldest_data_sequence(manifests)
    for manifest in manifests:
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            is_own = entry.status != ManifestEntryStatus.EXISTING
            if is_own and not _removes_stale_delete(entry, oldest) and not reader.holds(entry):
                raise OutcomeUnknown(
                    f"{target}@{snapshot.snapshot_id} changed {entry.data_file.file_path}, which "
                    f"lies outside the partitions {', '.join(labels)}",
                    state="the snapshot is visible, and not accepted",
                    fix="look at who wrote to the table, and set it back by hand",
                )


def _oldest_data_sequence(manifests: list[ManifestFile]) -> int | None:
    """Return the smallest sequence number of a live data file; None without data files."""
    live = (
        m for m in manifests if m.content == ManifestContent.DATA and metadata.has_live_files(m)
    )
    return min((manifest.min_sequence_number or 0 for manifest in live), default=None)


def _removes_stale_delete(entry: ManifestEntry, oldest: int | None) -> bool:
    """Return whether the entry removes a delete file that is older than all data."""
    is_delete_file = entry.data_file.content != DataFileContent.DATA
    if entry.status != ManifestEntryStatus.DELETED or not is_delete_file:
        return False
    return oldest is None or (entry.sequence_number or 0) < oldest
