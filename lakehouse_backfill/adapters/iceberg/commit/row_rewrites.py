"""What is left to do after a swap by rows: the proof of its rows, then the tags of both states.

A rewrite of rows sets no tags in its commit. The pending work is written in the snapshot's summary,
so that any later process can finish it; the tag of the new state is set last.
"""

from __future__ import annotations

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
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import (
    REWRITE_PROPERTY,
    PendingRewrite,
)
from lakehouse_backfill.errors import OutcomeUnknown


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
        text = metadata.snapshot_summary(snapshot).get(REWRITE_PROPERTY)
        if text is None:
            return
        pending = PendingRewrite.model_validate_json(text)
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
    target: str, table: Table, snapshot: Snapshot, done: PendingRewrite
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
