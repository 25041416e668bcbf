"""Tags that keep snapshots from expiring, and the removal of tags and snapshots by metadata alone.

Iceberg's own expiry (`table.expireSnapshots()`, where main is the only reference) deletes a live
file when a *tombstone* expires: a snapshot that removed a file which a later one added again. The
expiry deletes what an expired ancestor of main removed, without a check whether it was re-added.

Iceberg before 1.12 also does so when an *island* expires: a snapshot that main no longer leads to,
because snapshots in between have expired, while a tag kept it, or because it is a chunk on a
branch of a run that was dropped. The expiry treats it as rolled back, and deletes the files that it
added, even if another manifest lists them.

Both are safe once such snapshots are removed from the metadata first, without their files. A
tombstone is removed together with everything older, which would become islands otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table, update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.catalog import (
    commit_with_retry,
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.clock import require_right_clock
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import is_live_entry
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.adapters.pyiceberg_manifests import read_manifest_entries
from lakehouse_backfill.core.planning.target.write_path import MAX_WRITTEN_FORMAT
from lakehouse_backfill.domain.retention import ExpirationResult
from lakehouse_backfill.errors import Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import Pins, SwapCommitter

#: Iceberg's default of `history.expire.max-snapshot-age-ms`: 5 days.
_DEFAULT_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000


@dataclass
class ExpirationPlan:
    """Tags and snapshots to remove together, and tags that must stay, with the reason."""

    tags: dict[str, int] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    def keep_tags(self, tombstone: int, why: str) -> None:
        """Keep the tags of a snapshot that removed files which are live again."""
        for name in [tag for tag, tagged_id in self.tags.items() if tagged_id == tombstone]:
            del self.tags[name]
            self.kept[name] = f"files that it removed are live again, and {why}"

    @property
    def result(self) -> ExpirationResult:
        """The plan as the value that the port returns."""
        return ExpirationResult(
            tags=tuple(sorted(self.tags)), snapshots=tuple(self.snapshots), kept=self.kept
        )


class TableHistory:
    """The history of one table according to its metadata."""

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata = metadata
        self._io = io
        self.main_chain = self._ancestor_ids(metadata.current_snapshot_id)
        # Format 1 has no sequence numbers; the list of snapshots is in order in all formats.
        self._order = {s.snapshot_id: place for place, s in enumerate(metadata.snapshots)}

    def plan_expiration(
        self, tags: Mapping[str, int], now_ms: int, *, at_once: bool
    ) -> ExpirationPlan:
        """Plan the removal of the tags; tags that are missing or moved are left alone."""
        present = meta.tagged_snapshots(self._metadata)
        plan = ExpirationPlan({name: i for name, i in tags.items() if present.get(name) == i})
        self._cut_at_tombstones(plan, now_ms, at_once=at_once)
        islands = self._unreferenced_snapshots(plan) - self._reachable_from_branches()
        islands |= self._adopted_chunks(plan)
        plan.snapshots += sorted(islands - set(plan.snapshots))
        return plan

    def _adopted_chunks(self, found: ExpirationPlan) -> set[int]:
        """Return the chunks of dropped branches of runs that added files which main lists."""
        refs = self._metadata.refs.items()
        held = self._reachable_from_branches()
        held |= {ref.snapshot_id for name, ref in refs if name not in found.tags}
        added = {
            s.snapshot_id: self._changed_paths(s, added=True)
            for s in self._metadata.snapshots if found.tags
            if s.snapshot_id not in held and meta.CHUNK_ID_PROPERTY in meta.snapshot_summary(s)
        }  # fmt: skip
        live = self._live_paths(set().union(*added.values())) if added else set()
        return {snapshot_id for snapshot_id, paths in added.items() if paths & live}

    def unsafe_tombstones(self) -> dict[int, str]:
        """Return tombstones without a reference, with the count of live files at risk."""
        referenced = {ref.snapshot_id for ref in self._metadata.refs.values()}
        tombstones = self.find_tombstones()
        unheld = {t: paths for t, paths in tombstones.items() if t not in referenced}
        live = self._live_paths(set().union(*unheld.values())) if unheld else set()
        return {
            snapshot_id: f"it removed {len(paths & live)} files that are live again"
            for snapshot_id, paths in unheld.items()
            if paths & live
        }

    def find_tombstones(self) -> dict[int, set[str]]:
        """Return main's snapshots that removed files which a later one of ours added again."""
        snapshots_by_id = {s.snapshot_id: s for s in self._metadata.snapshots}
        # Only our publications re-add files.
        re_adding = list(filter(meta.is_publication, self._metadata.snapshots))
        if not re_adding:
            return {}
        added = {s.snapshot_id: self._changed_paths(s, added=True) for s in re_adding}
        tombstones = {}
        for snapshot_id in self.main_chain:
            snapshot = snapshots_by_id[snapshot_id]
            later = [s for s in re_adding if self._order[s.snapshot_id] > self._order[snapshot_id]]
            if not later or meta.snapshot_operation(snapshot) == "append":
                continue
            removed = self._changed_paths(snapshot, added=False)
            re_added = removed & set().union(*(added[s.snapshot_id] for s in later))
            if re_added:
                tombstones[snapshot_id] = re_added
        return tombstones

    def _cut_at_tombstones(self, found: ExpirationPlan, now_ms: int, *, at_once: bool) -> None:
        """Remove the oldest part of main with its tombstones, or keep their tags."""
        unreferenced = self._unreferenced_snapshots(found)
        # Finding them reads manifests.
        tombstones = (
            [each for each in self.find_tombstones() if each in unreferenced]
            if unreferenced
            else ()
        )
        if not tombstones:
            return
        places = {snapshot_id: place for place, snapshot_id in enumerate(self.main_chain)}
        first = self._first_unheld_place(found, places)
        times = {s.snapshot_id: s.timestamp_ms for s in self._metadata.snapshots}
        age = self._metadata.properties.get("history.expire.max-snapshot-age-ms")
        cutoff_ms = now_ms - int(age or _DEFAULT_SNAPSHOT_AGE_MS)
        removable_places = []
        for tombstone in tombstones:
            if places[tombstone] < first:
                found.keep_tags(tombstone, "an older snapshot is held by another tag or branch")
            elif not at_once and times[tombstone] > cutoff_ms:
                found.keep_tags(tombstone, "it is younger than the history that the table keeps")
            else:
                removable_places.append(places[tombstone])
        if removable_places:
            found.snapshots += self.main_chain[min(removable_places) :]

    def _first_unheld_place(self, found: ExpirationPlan, places: Mapping[int, int]) -> int:
        """Return the place in main from which on no remaining reference holds a snapshot."""
        last = 0
        for name, ref in self._metadata.refs.items():
            if name in found.tags:
                continue
            is_tag = ref.snapshot_ref_type == SnapshotRefType.TAG
            ids = [ref.snapshot_id] if is_tag else self._ancestor_ids(ref.snapshot_id)
            last = max(last, next((places[each] for each in ids if each in places), -1))
        return last + 1

    def _unreferenced_snapshots(self, found: ExpirationPlan) -> set[int]:
        """Return the snapshots that no reference holds without the tags."""
        refs = self._metadata.refs
        referenced = {ref.snapshot_id for name, ref in refs.items() if name not in found.tags}
        return set(found.tags.values()) - referenced

    def _reachable_from_branches(self) -> set[int]:
        """Return the snapshots that branches lead to without a gap."""
        refs = self._metadata.refs.values()
        heads = [r.snapshot_id for r in refs if r.snapshot_ref_type == SnapshotRefType.BRANCH]
        return set().union(*map(self._ancestor_ids, heads))

    def _ancestor_ids(self, snapshot_id: int | None) -> list[int]:
        """List the snapshot and its ancestors, newest first, up to the first gap."""
        return [s.snapshot_id for s in meta.snapshot_ancestors(self._metadata, snapshot_id)]

    def _changed_paths(self, snapshot: Snapshot, *, added: bool) -> set[str]:
        """Return the data and delete files that the snapshot itself added, or removed."""
        status = ManifestEntryStatus.ADDED if added else ManifestEntryStatus.DELETED
        paths = set()
        for manifest in snapshot.manifests(self._io):
            count = manifest.added_files_count if added else manifest.deleted_files_count
            if manifest.added_snapshot_id == snapshot.snapshot_id and count != 0:
                entries = read_manifest_entries(self._io, manifest)
                paths |= {e.data_file.file_path for e in entries if e.status == status}
        return paths

    def _live_paths(self, suspects: set[str]) -> set[str]:
        head = self._metadata.snapshot_by_name(MAIN_BRANCH)
        paths = set()
        for manifest in head.manifests(self._io) if head else ():
            live = filter(is_live_entry, read_manifest_entries(self._io, manifest))
            paths |= suspects.intersection(entry.data_file.file_path for entry in live)
        return paths


class IcebergPins(Pins):
    """Tags with an explicit age that never passes."""

    def __init__(self, catalog: Catalog, writers: TableWriters | None = None) -> None:
        """Use `writers` for tables that PyIceberg cannot write."""
        self._catalog = catalog
        self._writers = writers

    def pin(self, table: str, snapshot_id: int, name: str) -> None:
        """Tag the snapshot and read the tag back; the same pin again does nothing.

        Raises NotFound when the snapshot is missing, Conflict when the name pins another one,
        Unsupported when the catalog does not keep the tag.
        """
        commit_with_retry(lambda: self._pin(table, snapshot_id, name), f"pin {name} on {table}")
        if not _is_pin(load_table(self._catalog, table), name, snapshot_id):
            raise Unsupported(
                f"the catalog did not keep tag {name} on {table} with its age",
                fix="use a catalog that keeps tags, or pin the source as lease_only",
            )

    def unpin(self, table: str, name: str) -> None:
        """Drop the tag if it exists."""
        commit_with_retry(lambda: self._unpin(table, name), f"unpin {name} on {table}")

    def pinned(self, table: str, name: str) -> int | None:
        """Return the snapshot id that the tag protects, or None."""
        return meta.tagged_snapshots(load_table(self._catalog, table).metadata).get(name)

    def tags(self, table: str) -> dict[str, int] | None:
        """Return our tags on a table with their snapshots; None when there is no such table."""
        loaded = load_table_or_none(self._catalog, table)
        return meta.tagged_snapshots(loaded.metadata, meta.TAG_PREFIX) if loaded else None

    def preview_expiry(
        self, table: str, tags: Mapping[str, int], now: datetime, *, at_once: bool = False
    ) -> ExpirationResult:
        """Return what `expire` would do."""
        loaded = load_table_or_none(self._catalog, table)
        return _plan_expiration(loaded, tags, now, at_once=at_once).result

    def expire(
        self, table: str, tags: Mapping[str, int], now: datetime, *, at_once: bool = False
    ) -> ExpirationResult:
        """Drop tags in one metadata-only commit, with the snapshots that must not expire otherwise.

        The commit requires that every reference of the table is unchanged, so that a concurrent pin
        causes a new plan. On a REST catalog the requirement covers the references that existed at
        the plan only: no requirement can name a new one. Raises TooBusy.
        """

        def attempt() -> ExpirationResult:
            loaded = load_table_or_none(self._catalog, table)
            plan = _plan_expiration(loaded, tags, now, at_once=at_once)
            if loaded is not None and plan.tags:
                self._commit_expiration(table, loaded, plan)
            return plan.result

        return commit_with_retry(attempt, f"letting tags of {table} go")

    def unsafe_expiries(self, table: str) -> dict[int, str]:
        """Return unreferenced snapshots whose expiry would delete live files, with the reason."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return {}
        with translate_errors():
            return TableHistory(loaded.metadata, loaded.io).unsafe_tombstones()

    def _committer(self, table: str) -> SwapCommitter | None:
        return self._writers.swap_committer(table) if self._writers else None

    def _pin(self, table: str, snapshot_id: int, name: str) -> None:
        loaded = load_table(self._catalog, table)
        commits = self._committer(table)
        if commits is None:
            meta.refuse_unwritable_format(table, loaded.metadata)
        meta.find_snapshot(loaded.metadata, snapshot_id, table)
        existing = loaded.metadata.refs.get(name)
        if existing is not None and existing.snapshot_id != snapshot_id:
            raise Conflict(
                f"{table}: {name} already names snapshot {existing.snapshot_id}, not {snapshot_id}",
                fix="use another name",
            )
        if _is_pin(loaded, name, snapshot_id):
            return
        if commits is not None:
            commits.set_tag(table, name, snapshot_id, meta.NEVER_EXPIRES_MS)
            return
        with commit_window("Pins.tag"), loaded.manage_snapshots() as changes:
            changes.create_tag(snapshot_id, name, max_ref_age_ms=meta.NEVER_EXPIRES_MS)

    def _unpin(self, table: str, name: str) -> None:
        loaded = load_table(self._catalog, table)
        if name not in meta.tagged_snapshots(loaded.metadata):
            return
        commits = self._committer(table)
        if commits is not None:
            commits.set_tag(table, name, None, meta.NEVER_EXPIRES_MS)
            return
        with translate_errors(), commit_window("Pins.tag"), loaded.manage_snapshots() as changes:
            changes.remove_tag(name)

    def _commit_expiration(self, table: str, loaded: Table, removal: ExpirationPlan) -> None:
        if self._writers is None or loaded.metadata.format_version <= MAX_WRITTEN_FORMAT:
            _commit_expiration(loaded, removal)
            return
        refs = {name: ref.snapshot_id for name, ref in loaded.metadata.refs.items()}
        tags, snapshots = tuple(removal.tags), tuple(removal.snapshots)
        require_right_clock(self._catalog)
        self._writers.java().expire(table, refs, tags, snapshots)


def _is_pin(table: Table, name: str, snapshot_id: int) -> bool:
    ref = table.metadata.refs.get(name)
    return (
        ref is not None
        and ref.snapshot_ref_type == SnapshotRefType.TAG
        and ref.snapshot_id == snapshot_id
        and ref.max_ref_age_ms == meta.NEVER_EXPIRES_MS
    )


def _plan_expiration(
    loaded: Table | None, tags: Mapping[str, int], now: datetime, *, at_once: bool
) -> ExpirationPlan:
    if loaded is None:
        return ExpirationPlan()
    now_ms = int(now.timestamp() * 1000)
    with translate_errors():
        return TableHistory(loaded.metadata, loaded.io).plan_expiration(
            tags, now_ms, at_once=at_once
        )


class _RefsUnchanged(update.ValidatableTableRequirement):
    """Refuses a commit when the table's references are not those of the plan."""

    type: str = "lakehouse-backfill-refs-unchanged"
    refs: dict[str, int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        refs = base_metadata.refs if base_metadata else {}
        if {name: ref.snapshot_id for name, ref in refs.items()} != self.refs:
            raise CommitFailedException("the table's tags and branches changed meanwhile")


def _commit_expiration(table: Table, removal: ExpirationPlan) -> None:
    """Remove tags and snapshots in one commit.

    PyIceberg does not send `_RefsUnchanged` to REST servers, so it is left out there.
    """
    metadata = table.metadata
    updates: tuple[update.TableUpdate, ...] = (
        *(update.RemoveSnapshotRefUpdate(ref_name=name) for name in removal.tags),
        # One update per snapshot: some servers accept exactly one id per update.
        *(update.RemoveSnapshotsUpdate(snapshot_ids=[each]) for each in removal.snapshots),
    )
    refs = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    requirements: list[update.TableRequirement] = [
        update.AssertTableUUID(uuid=metadata.table_uuid),
        *(update.AssertRefSnapshotId(ref=name, snapshot_id=i) for name, i in refs.items()),
    ]
    # By name: importing the class takes a second, which other catalogs need not spend.
    if "RestCatalog" not in (kind.__name__ for kind in type(table.catalog).__mro__):
        requirements.append(_RefsUnchanged(refs=refs))  # type: ignore[arg-type]
    with commit_window("Pins.expire"):
        table._do_commit(updates=updates, requirements=tuple(requirements))
