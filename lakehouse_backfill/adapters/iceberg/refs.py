"""Tags that keep snapshots from expiring, and the removal of tags and snapshots by metadata alone.

Iceberg's own expiry (`table.expireSnapshots()`, where main is the only reference) deletes a live
file when a *tombstone* expires: a snapshot that removed a file which a later one added again. The
expiry deletes what an expired ancestor of main removed, without a check whether it was re-added.

Iceberg before 1.12 also does so when an *island* expires: a snapshot that main no longer leads to,
because snapshots in between have expired, while a tag kept it. The expiry treats it as rolled
back, and deletes the files that it added, even if another manifest lists them.

Both are safe once such snapshots are removed from the metadata first, without their files. A
tombstone is removed together with everything older, which would become islands otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from lakehouse_backfill.adapters.iceberg.catalog import (
    commit_with_retry,
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.manifests import read_manifest_entries
from lakehouse_backfill.adapters.iceberg.metadata import (
    BASE_SNAPSHOT_PROPERTY,
    CHUNK_ID_PROPERTY,
    NEVER_EXPIRES_MS,
    PUBLICATION_PROPERTY,
    RETIRED_PROPERTY,
    TAG_PREFIX,
    find_snapshot,
    refuse_unwritable_format,
    snapshot_ancestors,
    snapshot_operation,
    snapshot_summary,
)
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.core.planning.write_path import MAX_WRITTEN_FORMAT
from lakehouse_backfill.domain.rollout import ExpirationResult
from lakehouse_backfill.errors import Conflict, NotFound, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.control import Upkeep
from lakehouse_backfill.ports.system import Clock
from lakehouse_backfill.ports.table_writer import SwapCommitter
from lakehouse_backfill.ports.tables import Pins

#: Iceberg's default of `history.expire.max-snapshot-age-ms`: 5 days.
_DEFAULT_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000


@dataclass
class ExpirationPlan:
    """Tags and snapshots to remove together, and tags that must stay, with the reason."""

    tags: dict[str, int] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


class TableHistory:
    """The history of one table according to its metadata."""

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata = metadata
        self._io = io
        #: Snapshot ids of main, newest first, up to the first gap.
        self.main_chain = [
            s.snapshot_id for s in snapshot_ancestors(metadata, metadata.current_snapshot_id)
        ]
        # Format 1 has no sequence numbers; the list of snapshots is in order in all formats.
        self._order = {s.snapshot_id: place for place, s in enumerate(metadata.snapshots)}

    def plan_expiration(
        self, tags: Mapping[str, int], now_ms: int, *, at_once: bool
    ) -> ExpirationPlan:
        """Plan the removal of the tags; tags that are missing or moved are left alone."""
        refs = self._metadata.refs
        plan = ExpirationPlan()
        plan.tags = {
            name: snapshot_id
            for name, snapshot_id in tags.items()
            if name in refs
            and refs[name].snapshot_id == snapshot_id
            and refs[name].snapshot_ref_type == SnapshotRefType.TAG
        }
        self._cut_at_tombstones(plan, now_ms, at_once=at_once)
        unreferenced = self._unreferenced_snapshots(plan)
        on_branches = self._reachable_from_branches()
        islands = unreferenced - on_branches - set(plan.snapshots)
        plan.snapshots += sorted(islands)
        return plan

    def unsafe_tombstones(self) -> dict[int, str]:
        """Return tombstones without a reference, with the count of live files at risk."""
        referenced = {ref.snapshot_id for ref in self._metadata.refs.values()}
        unheld = {
            tombstone: paths
            for tombstone, paths in self.find_tombstones().items()
            if tombstone not in referenced
        }
        live = self._live_paths(set().union(*unheld.values())) if unheld else set()
        return {
            snapshot_id: f"it removed {len(paths & live)} files that are live again"
            for snapshot_id, paths in unheld.items()
            if paths & live
        }

    def find_tombstones(self) -> dict[int, set[str]]:
        """Return main's snapshots that removed files which a later one of ours added again."""
        snapshots_by_id = {s.snapshot_id: s for s in self._metadata.snapshots}
        re_adding = [s for s in snapshots_by_id.values() if _may_re_add_files(s)]
        if not re_adding:
            return {}
        added = {s.snapshot_id: self._changed_paths(s, added=True) for s in re_adding}
        tombstones = {}
        for snapshot_id in self.main_chain:
            snapshot = snapshots_by_id[snapshot_id]
            later = [s for s in re_adding if self._order[s.snapshot_id] > self._order[snapshot_id]]
            if not later or not _may_remove_files(snapshot):
                continue
            removed = self._changed_paths(snapshot, added=False)
            re_added = removed & set().union(*(added[s.snapshot_id] for s in later))
            if re_added:
                tombstones[snapshot_id] = re_added
        return tombstones

    def _cut_at_tombstones(self, found: ExpirationPlan, now_ms: int, *, at_once: bool) -> None:
        """Remove the oldest part of main with its tombstones, or keep their tags."""
        unreferenced = self._unreferenced_snapshots(found)
        tombstones = (
            [tombstone for tombstone in self.find_tombstones() if tombstone in unreferenced]
            if unreferenced
            else []
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
                self._keep_tags(
                    found, tombstone, "an older snapshot is held by another tag or branch"
                )
            elif not at_once and times[tombstone] > cutoff_ms:
                self._keep_tags(
                    found, tombstone, "it is younger than the history that the table keeps"
                )
            else:
                removable_places.append(places[tombstone])
        if removable_places:
            found.snapshots += self.main_chain[min(removable_places) :]

    def _keep_tags(self, found: ExpirationPlan, snapshot_id: int, why: str) -> None:
        for name in [tag for tag, tagged_id in found.tags.items() if tagged_id == snapshot_id]:
            del found.tags[name]
            found.kept[name] = f"files that it removed are live again, and {why}"

    def _first_unheld_place(self, found: ExpirationPlan, places: Mapping[int, int]) -> int:
        """Return the place in main from which on no remaining reference holds a snapshot."""
        last = 0
        for name, ref in self._metadata.refs.items():
            if name in found.tags:
                continue
            ancestors = snapshot_ancestors(self._metadata, ref.snapshot_id)
            if ref.snapshot_ref_type == SnapshotRefType.TAG:
                ids = [ref.snapshot_id]
            else:
                ids = [s.snapshot_id for s in ancestors]
            held_place = next(
                (places[snapshot_id] for snapshot_id in ids if snapshot_id in places), -1
            )
            last = max(last, held_place)
        return last + 1

    def _unreferenced_snapshots(self, found: ExpirationPlan) -> set[int]:
        """Return the snapshots that no reference holds without the tags."""
        refs = self._metadata.refs
        referenced = {ref.snapshot_id for name, ref in refs.items() if name not in found.tags}
        return set(found.tags.values()) - referenced

    def _reachable_from_branches(self) -> set[int]:
        """Return the snapshots that branches lead to without a gap."""
        branches = [
            ref.snapshot_id
            for ref in self._metadata.refs.values()
            if ref.snapshot_ref_type == SnapshotRefType.BRANCH
        ]
        return {
            s.snapshot_id
            for head_id in branches
            for s in snapshot_ancestors(self._metadata, head_id)
        }

    def _changed_paths(self, snapshot: Snapshot, *, added: bool) -> set[str]:
        """Return the data and delete files that the snapshot itself added, or removed."""
        status = ManifestEntryStatus.ADDED if added else ManifestEntryStatus.DELETED
        return {
            entry.data_file.file_path
            for manifest in self._own_manifests(snapshot, added=added)
            for entry in read_manifest_entries(self._io, manifest)
            if entry.status == status
        }

    def _own_manifests(self, snapshot: Snapshot, *, added: bool) -> Iterator[ManifestFile]:
        for manifest in snapshot.manifests(self._io):
            count = manifest.added_files_count if added else manifest.deleted_files_count
            if manifest.added_snapshot_id == snapshot.snapshot_id and count != 0:
                yield manifest

    def _live_paths(self, suspects: set[str]) -> set[str]:
        head = self._metadata.snapshot_by_name(MAIN_BRANCH)
        manifests = head.manifests(self._io) if head else []
        return {
            entry.data_file.file_path
            for manifest in manifests
            for entry in read_manifest_entries(self._io, manifest)
            if entry.status != ManifestEntryStatus.DELETED and entry.data_file.file_path in suspects
        }


def _may_re_add_files(snapshot: Snapshot) -> bool:
    """Return whether the snapshot may have re-added files: only our publications do."""
    return PUBLICATION_PROPERTY in snapshot_summary(snapshot)


def _may_remove_files(snapshot: Snapshot) -> bool:
    return snapshot_operation(snapshot) != "append"


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
        ref = load_table(self._catalog, table).metadata.refs.get(name)
        if ref is None or ref.snapshot_ref_type != SnapshotRefType.TAG:
            return None
        return ref.snapshot_id

    def _committer(self, table: str) -> SwapCommitter | None:
        return self._writers.swap_committer(table) if self._writers else None

    def _pin(self, table: str, snapshot_id: int, name: str) -> None:
        loaded = load_table(self._catalog, table)
        commits = self._committer(table)
        if commits is None:
            refuse_unwritable_format(table, loaded.metadata)
        find_snapshot(loaded.metadata, snapshot_id, table)
        existing = loaded.metadata.refs.get(name)
        if existing is not None and existing.snapshot_id != snapshot_id:
            raise Conflict(
                f"{table}: {name} already names snapshot {existing.snapshot_id}, not {snapshot_id}",
                fix="use another name",
            )
        if _is_pin(loaded, name, snapshot_id):
            return
        if commits is not None:
            commits.set_tag(table, name, snapshot_id, NEVER_EXPIRES_MS)
            return
        with commit_window("Pins.tag"), loaded.manage_snapshots() as changes:
            changes.create_tag(snapshot_id, name, max_ref_age_ms=NEVER_EXPIRES_MS)

    def _unpin(self, table: str, name: str) -> None:
        loaded = load_table(self._catalog, table)
        ref = loaded.metadata.refs.get(name)
        if ref is None or ref.snapshot_ref_type != SnapshotRefType.TAG:
            return
        commits = self._committer(table)
        if commits is not None:
            commits.set_tag(table, name, None, NEVER_EXPIRES_MS)
            return
        with translate_errors(), commit_window("Pins.tag"), loaded.manage_snapshots() as changes:
            changes.remove_tag(name)


def _is_pin(table: Table, name: str, snapshot_id: int) -> bool:
    ref = table.metadata.refs.get(name)
    return (
        ref is not None
        and ref.snapshot_ref_type == SnapshotRefType.TAG
        and ref.snapshot_id == snapshot_id
        and ref.max_ref_age_ms == NEVER_EXPIRES_MS
    )


class IcebergUpkeep(Upkeep):
    """Upkeep of the tables of one catalog."""

    def __init__(
        self,
        catalog: Catalog,
        shadow_namespace: str,
        clock: Clock,
        writers: TableWriters | None = None,
    ) -> None:
        """Use `writers` for tables that PyIceberg cannot write: format 3."""
        self._catalog = catalog
        self._writers = writers
        self._namespace = shadow_namespace
        self._clock = clock

    def shadows(self) -> dict[str, int]:
        """Return the shadows in the catalog, each with the bytes that its chunks wrote."""
        with translate_errors():
            try:
                names = self._catalog.list_tables(self._namespace)
            except NoSuchNamespaceError:
                return {}
        bytes_by_shadow = {}
        for name in (".".join(identifier) for identifier in names):
            try:
                metadata = load_table(self._catalog, name).metadata
            except NotFound:
                continue  # another process dropped it, or its files are missing
            if (
                BASE_SNAPSHOT_PROPERTY in metadata.properties
                and RETIRED_PROPERTY not in metadata.properties
            ):
                bytes_by_shadow[name] = _chunk_bytes_written(metadata)
        return bytes_by_shadow

    def tags(self, table: str) -> dict[str, int] | None:
        """Return our tags on a table with their snapshots; None when there is no such table."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return None
        return {
            name: ref.snapshot_id
            for name, ref in loaded.metadata.refs.items()
            if ref.snapshot_ref_type == SnapshotRefType.TAG and name.startswith(TAG_PREFIX)
        }

    def written(self, table: str) -> datetime | None:
        """Return when a table was last committed to; None when there is no such table."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return None
        return datetime.fromtimestamp(loaded.metadata.last_updated_ms / 1000, timezone.utc)

    def would_let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Return what `let_go` would do now."""
        loaded = load_table_or_none(self._catalog, table)
        return (
            ExpirationResult()
            if loaded is None
            else _expiration_result(self._plan_expiration(loaded, tags, at_once=at_once))
        )

    def let_go(
        self, table: str, tags: Mapping[str, int], *, at_once: bool = False
    ) -> ExpirationResult:
        """Drop tags in one metadata-only commit, with the snapshots that must not expire otherwise.

        The commit requires that every reference of the table is unchanged, so that a concurrent pin
        causes a new plan. On a REST catalog the requirement covers the references that existed at
        the plan only: no requirement can name a new one. Raises TooBusy.
        """
        results: list[ExpirationResult] = []

        def once() -> None:
            loaded = load_table_or_none(self._catalog, table)
            removal = ExpirationPlan()
            if loaded is not None:
                removal = self._plan_expiration(loaded, tags, at_once=at_once)
            if loaded is not None and removal.tags:
                self._commit(table, loaded, removal)
            results[:] = [_expiration_result(removal)]

        commit_with_retry(once, f"letting tags of {table} go")
        return results[0]

    def dangers(self, table: str) -> dict[int, str]:
        """Return unreferenced snapshots whose expiry would delete live files, with the reason."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return {}
        with translate_errors():
            return TableHistory(loaded.metadata, loaded.io).unsafe_tombstones()

    def _plan_expiration(
        self, loaded: Table, tags: Mapping[str, int], *, at_once: bool
    ) -> ExpirationPlan:
        now_ms = int(self._clock.now().timestamp() * 1000)
        with translate_errors():
            return TableHistory(loaded.metadata, loaded.io).plan_expiration(
                tags, now_ms, at_once=at_once
            )

    def _commit(self, table: str, loaded: Table, removal: ExpirationPlan) -> None:
        if self._writers is None or loaded.metadata.format_version <= MAX_WRITTEN_FORMAT:
            _commit_expiration(loaded, removal)
            return
        refs = {name: ref.snapshot_id for name, ref in loaded.metadata.refs.items()}
        tags, snapshots = tuple(removal.tags), tuple(removal.snapshots)
        self._writers.upkeep_committer().take_out(table, refs, tags, snapshots)


class _RefsUnchanged(ValidatableTableRequirement):
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
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=n) for n in removal.tags]
    # One update per snapshot: some servers accept exactly one id per update.
    updates += [
        RemoveSnapshotsUpdate(snapshot_ids=[snapshot_id]) for snapshot_id in removal.snapshots
    ]
    refs = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    requirements: list[TableRequirement] = [
        AssertTableUUID(uuid=metadata.table_uuid),
        *(
            AssertRefSnapshotId.model_validate({"ref": n, "snapshot-id": i})
            for n, i in refs.items()
        ),
    ]
    if type(table.catalog).__name__ != "RestCatalog":
        requirements.append(_RefsUnchanged(refs=refs))  # type: ignore[arg-type]
    with commit_window("Upkeep.let_go"):
        table._do_commit(updates=tuple(updates), requirements=tuple(requirements))


def _expiration_result(removal: ExpirationPlan) -> ExpirationResult:
    return ExpirationResult(
        tags=tuple(sorted(removal.tags)), snapshots=tuple(removal.snapshots), kept=removal.kept
    )


def _chunk_bytes_written(metadata: TableMetadata) -> int:
    summaries = (snapshot_summary(snapshot) for snapshot in metadata.snapshots)
    return sum(
        int(summary.get("added-files-size", "0"))
        for summary in summaries
        if CHUNK_ID_PROPERTY in summary
    )
