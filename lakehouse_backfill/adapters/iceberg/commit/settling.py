"""Finishing a swap by rows: proof that it is the candidate, and the tags of both states.

Such a swap is one snapshot, and nothing else comes by the same commit. What is left to do stands
in its summary, so that whoever finds it does it: the tag of the new state is the last, and says
that all is done.
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

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import has_live_files, snapshot_summary
from lakehouse_backfill.adapters.iceberg.pins import IcebergPins
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table_commit import REWRITE_PROPERTY, PendingRewrite
from lakehouse_backfill.errors import OutcomeUnknown
from lakehouse_backfill.ports.table_commits import RowVerifier, TagCommitter


class RowRewriteFinalizer:
    """Settles swaps on the tables of one catalog."""

    def __init__(self, catalog: Catalog, proof: RowVerifier, tags: TagCommitter) -> None:
        self._catalog = catalog
        self._proof = proof
        self._pins = IcebergPins(catalog, tags)

    def settle(self, target: str, snapshot: Snapshot) -> None:
        """Prove the snapshot and tag it, unless that is done; other snapshots need nothing.

        The state before is tagged at once, lest it expires while rows are compared; one that has
        expired already gets no tag, and who rolls back to it is told that it is gone. Raises
        OutcomeUnknown when it holds something else than the candidate: it is visible then, and
        neither accepted nor given back.
        """
        text = snapshot_summary(snapshot).get(REWRITE_PROPERTY)
        if text is None:
            return
        done = PendingRewrite.model_validate_json(text)
        table = load_table(self._catalog, target)
        if done.after is not None and done.after in table.metadata.refs:
            return
        before = snapshot.parent_snapshot_id
        is_there = any(one.snapshot_id == before for one in table.metadata.snapshots)
        if done.before is not None and before is not None and is_there:
            self._pins.pin(target, before, done.before)
        with translate_errors():
            _require_in_partitions(target, table, snapshot, done)
        self._proof.require_equal(target, snapshot.snapshot_id, done.contents)
        if done.after is not None:
            self._pins.pin(target, snapshot.snapshot_id, done.after)


def _require_in_partitions(
    target: str, table: Table, snapshot: Snapshot, done: PendingRewrite
) -> None:
    """Look at every file that the snapshot added or removed: all lie in its partitions.

    But for delete files that hide nothing any more: Iceberg leaves them out of the manifests that
    it writes anew, whatever partition they are of.
    """
    labels = tuple(label for one in done.contents for label in one.scope.partitions)
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
    """Give the least sequence number that a live data file can have; None: there is none."""
    live = (m for m in manifests if m.content == ManifestContent.DATA and has_live_files(m))
    return min((manifest.min_sequence_number or 0 for manifest in live), default=None)


def _removes_stale_delete(entry: ManifestEntry, oldest: int | None) -> bool:
    """Tell whether the entry removes a delete file that is older than all data."""
    is_delete_file = entry.data_file.content != DataFileContent.DATA
    if entry.status != ManifestEntryStatus.DELETED or not is_delete_file:
        return False
    return oldest is None or (entry.sequence_number or 0) < oldest
