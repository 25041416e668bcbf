"""What a table's history allows to be taken out of it, so that no later expiry deletes live files.

Iceberg's own expiry (`table.expireSnapshots()`, where main is the only reference) deletes a live
file when a *tombstone* expires: a snapshot that removed a file which a later one added again. It
deletes what an expired ancestor of main removed, without looking whether that came back.

Iceberg before 1.12 also does so when an *island* expires: a snapshot that main does not lead to
any more, as what came between has expired, while a tag kept it. It is taken for one that was
rolled back, and what it added is deleted, also where another manifest lists it by now.

Taking such snapshots out of the metadata first, without their files, makes both safe. A tombstone
goes together with everything older: what would be left of that would be islands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.deletion_vectors import read_manifest_entries
from lakehouse_backfill.adapters.iceberg.metadata import (
    snapshot_ancestors,
    snapshot_operation,
    snapshot_summary,
)
from lakehouse_backfill.adapters.iceberg.names import PUBLICATION_PROPERTY

#: What Iceberg takes for `history.expire.max-snapshot-age-ms` where a table says nothing: 5 days.
_DEFAULT_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000


@dataclass
class ExpirationPlan:
    """Tags and snapshots that can go together, and tags that must stay, with the reason."""

    tags: dict[str, int] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


class TableHistory:
    """The history of one table as its metadata knows it."""

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata = metadata
        self._io = io
        #: main, newest first, as far as it is known without a gap
        self.chain = [
            s.snapshot_id for s in snapshot_ancestors(metadata, metadata.current_snapshot_id)
        ]
        # Format 1 has no sequence numbers; the list of snapshots is in order everywhere.
        self._order = {s.snapshot_id: place for place, s in enumerate(metadata.snapshots)}

    def removal(self, tags: Mapping[str, int], now_ms: int, *, at_once: bool) -> ExpirationPlan:
        """Work out what dropping the tags takes; those that are gone or moved are left alone."""
        refs = self._metadata.refs
        found = ExpirationPlan()
        found.tags = {
            name: snapshot_id
            for name, snapshot_id in tags.items()
            if name in refs
            and refs[name].snapshot_id == snapshot_id
            and refs[name].snapshot_ref_type == SnapshotRefType.TAG
        }
        self._cut(found, now_ms, at_once=at_once)
        losing = self._losing(found)
        reachable = self._reachable()
        islands = losing - reachable - set(found.snapshots)
        found.snapshots += sorted(islands)
        return found

    def dangers(self) -> dict[int, str]:
        """Name tombstones that nothing holds, with how many files their expiry would delete."""
        held = {ref.snapshot_id for ref in self._metadata.refs.values()}
        tombs = {one: paths for one, paths in self.tombstones().items() if one not in held}
        live = self._live(set().union(*tombs.values())) if tombs else set()
        return {
            snapshot_id: f"it removed {len(paths & live)} files that are live again"
            for snapshot_id, paths in tombs.items()
            if paths & live
        }

    def tombstones(self) -> dict[int, set[str]]:
        """Give the snapshots of main that removed files which a later one of ours added again."""
        known = {s.snapshot_id: s for s in self._metadata.snapshots}
        again = [s for s in known.values() if _may_re_add_files(s)]
        if not again:
            return {}
        added = {s.snapshot_id: self._paths(s, added=True) for s in again}
        found = {}
        for snapshot_id in self.chain:
            snapshot = known[snapshot_id]
            later = [s for s in again if self._order[s.snapshot_id] > self._order[snapshot_id]]
            if not later or not _may_remove_files(snapshot):
                continue
            removed = self._paths(snapshot, added=False)
            back = removed & set().union(*(added[s.snapshot_id] for s in later))
            if back:
                found[snapshot_id] = back
        return found

    def _cut(self, found: ExpirationPlan, now_ms: int, *, at_once: bool) -> None:
        """Take the oldest part of main out with the tombstones in it, or keep their tags."""
        losing = self._losing(found)
        tombs = [one for one in self.tombstones() if one in losing] if losing else []
        if not tombs:
            return
        places = {snapshot_id: place for place, snapshot_id in enumerate(self.chain)}
        first = self._first_free(found, places)
        times = {s.snapshot_id: s.timestamp_ms for s in self._metadata.snapshots}
        age = self._metadata.properties.get("history.expire.max-snapshot-age-ms")
        youngest = now_ms - int(age or _DEFAULT_SNAPSHOT_AGE_MS)
        free = []
        for one in tombs:
            if places[one] < first:
                self._keep(found, one, "an older snapshot is held by another tag or branch")
            elif not at_once and times[one] > youngest:
                self._keep(found, one, "it is younger than the history that the table keeps")
            else:
                free.append(places[one])
        if free:
            found.snapshots += self.chain[min(free) :]

    def _keep(self, found: ExpirationPlan, snapshot_id: int, why: str) -> None:
        for name in [tag for tag, held in found.tags.items() if held == snapshot_id]:
            del found.tags[name]
            found.kept[name] = f"files that it removed are live again, and {why}"

    def _first_free(self, found: ExpirationPlan, places: Mapping[int, int]) -> int:
        """Give the place in main from which on no reference that stays holds anything."""
        last = 0
        for name, ref in self._metadata.refs.items():
            if name in found.tags:
                continue
            line = snapshot_ancestors(self._metadata, ref.snapshot_id)
            if ref.snapshot_ref_type == SnapshotRefType.TAG:
                ids = [ref.snapshot_id]
            else:
                ids = [s.snapshot_id for s in line]
            met = next((places[one] for one in ids if one in places), -1)
            last = max(last, met)
        return last + 1

    def _losing(self, found: ExpirationPlan) -> set[int]:
        """Give the snapshots that no reference holds once the tags are gone."""
        refs = self._metadata.refs
        held = {ref.snapshot_id for name, ref in refs.items() if name not in found.tags}
        return set(found.tags.values()) - held

    def _reachable(self) -> set[int]:
        """Give what branches lead to without a gap."""
        branches = [
            ref.snapshot_id
            for ref in self._metadata.refs.values()
            if ref.snapshot_ref_type == SnapshotRefType.BRANCH
        ]
        return {s.snapshot_id for one in branches for s in snapshot_ancestors(self._metadata, one)}

    def _paths(self, snapshot: Snapshot, *, added: bool) -> set[str]:
        """Give the files, of data and of deletes, that the snapshot itself added, or removed."""
        status = ManifestEntryStatus.ADDED if added else ManifestEntryStatus.DELETED
        return {
            entry.data_file.file_path
            for manifest in self._own(snapshot, added=added)
            for entry in read_manifest_entries(self._io, manifest)
            if entry.status == status
        }

    def _own(self, snapshot: Snapshot, *, added: bool) -> Iterator[ManifestFile]:
        for manifest in snapshot.manifests(self._io):
            count = manifest.added_files_count if added else manifest.deleted_files_count
            if manifest.added_snapshot_id == snapshot.snapshot_id and count != 0:
                yield manifest

    def _live(self, suspects: set[str]) -> set[str]:
        head = self._metadata.snapshot_by_name(MAIN_BRANCH)
        manifests = head.manifests(self._io) if head else []
        return {
            entry.data_file.file_path
            for manifest in manifests
            for entry in read_manifest_entries(self._io, manifest)
            if entry.status != ManifestEntryStatus.DELETED and entry.data_file.file_path in suspects
        }


def _may_re_add_files(snapshot: Snapshot) -> bool:
    """Tell whether the snapshot may have added files that were there before: only ours do."""
    return PUBLICATION_PROPERTY in snapshot_summary(snapshot)


def _may_remove_files(snapshot: Snapshot) -> bool:
    return snapshot_operation(snapshot) != "append"
