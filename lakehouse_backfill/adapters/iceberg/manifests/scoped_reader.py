"""Reads the files of a scope in any state of a table.

Each manifest is read at most once, and only if it may list files of the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

from pyiceberg.expressions.visitors import inclusive_projection, manifest_evaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import DataScan, Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.manifests.partition_labels import PartitionLabels
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import (
    ScopeFiles,
    is_global_delete,
    is_live_entry,
    targeted_data_file,
    without_void_partition,
)
from lakehouse_backfill.adapters.iceberg.metadata import (
    has_known_entries,
    has_live_files,
    known_entries,
    view_of,
)
from lakehouse_backfill.adapters.pyiceberg_manifests import (
    ManifestReadBy,
    read_manifest_entries,
    read_manifest_list,
)
from lakehouse_backfill.adapters.pyiceberg_rows import row_range_filter
from lakehouse_backfill.domain.partitions import (
    Scope,
    describe_labels,
    label_sort_key,
    scope_row_ranges,
)
from lakehouse_backfill.errors import Unsupported

DerivedT = TypeVar("DerivedT")


class ManifestCache:
    """Entries of manifests by path, and what was derived from them; neither is ever stale.

    Manifests and snapshots never change. A key of a derived value holds all else it depends on.
    """

    def __init__(self) -> None:
        self._entries: dict[str, list[ManifestEntry]] = {}
        self._derived: dict[Hashable, Any] = {}

    def manifests(self, io: FileIO, snapshot: Snapshot | None) -> list[ManifestFile]:
        """List the snapshot's manifests; none for the empty state."""
        if snapshot is None:
            return []
        path = snapshot.manifest_list
        return self.derive(("manifests", path), lambda: read_manifest_list(io, path))

    def entries(self, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return all entries of the manifest, also those that record a removal."""
        entries = self._entries.get(manifest.manifest_path)
        if entries is None:
            entries = read_manifest_entries(io, manifest)
            self._entries[manifest.manifest_path] = entries
        return entries

    def cached_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the entries if the manifest was read before, else none."""
        return self._entries.get(manifest.manifest_path, [])

    def derive(self, key: Hashable, make: Callable[[], DerivedT]) -> DerivedT:
        """Return the value under the key, made at most once; nothing is kept of an error."""
        if key not in self._derived:
            self._derived[key] = make()
        found: DerivedT = self._derived[key]
        return found

    def cached_paths(self, manifest: ManifestFile) -> set[str]:
        """Return the paths of the live files if the manifest was read before, else none."""
        if manifest.manifest_path not in self._entries:
            return set()
        live = filter(is_live_entry, self.cached_entries(manifest))
        return self.derive(
            ("live paths", manifest.manifest_path),
            lambda: {entry.data_file.file_path for entry in live},
        )


class ScopedReader:
    """Reads the files of a scope in any state of one table."""

    def __init__(self, table: Table, scope: Scope, cache: ManifestCache | None = None) -> None:
        self._table = table
        self.scope = scope
        self._cache = cache or ManifestCache()
        self.labels = PartitionLabels(table.metadata, scope.field)
        self.scope_labels = frozenset(scope.partitions)
        self._key = (self.labels.key, self.scope_labels)
        self._may_hold: dict[int, Callable[[ManifestFile], bool]] = {}

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestFile]:
        """List the snapshot's manifests; none for the empty state."""
        if snapshot is not None and view_of(self._table.catalog) is not None:
            return list_manifests(self._table, snapshot)
        return self._cache.manifests(self._table.io, snapshot)

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return all entries of the manifest."""
        io = self._table.io
        return known_entries(self._table, manifest, lambda: self._cache.entries(io, manifest))

    def derive(self, what: str, of: int | str, make: Callable[[], DerivedT]) -> DerivedT:
        """Make a value once for all readers of the same scope and cache.

        It may depend on the scope, on how files are labelled, and on the snapshot or manifest `of`.
        """
        return self._cache.derive((what, of, self._key), make)

    def live_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the manifest's live entries; raises Unsupported when they cannot be labelled."""
        live = list(filter(is_live_entry, self.entries(manifest)))
        if live:
            self.labels.require_source(manifest.partition_spec_id, len(live))
        return live

    def may_hold(self, manifest: ManifestFile) -> bool:
        """Return whether the manifest may list files of the scope, by its partition summaries."""
        spec_id = manifest.partition_spec_id
        if not self.labels.can_label(spec_id):
            return True
        if spec_id not in self._may_hold:
            view = view_of(self._table.catalog)
            name = self._table.metadata_location, self.scope, spec_id
            made = view.evaluators.find(name) if view else None
            if made is None:
                made = self._make_evaluator(spec_id)
                if view:
                    view.evaluators.keep(name, made)
            self._may_hold[spec_id] = made
        return self._may_hold[spec_id](manifest)

    def _make_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        schema, spec = self._table.schema(), self._table.specs()[spec_id]
        projected = self.labels.bucket_filter(spec_id, self.scope)
        if projected is None:
            row_filter = row_range_filter(scope_row_ranges(self.scope))
            projected = inclusive_projection(schema, spec)(row_filter)
        return manifest_evaluator(spec, schema, projected)

    def may_list_live_files(self, manifest: ManifestFile) -> bool:
        """Return whether the manifest may list live files of the scope."""
        return has_live_files(manifest) and self.may_hold(manifest)

    def holds(self, entry: ManifestEntry) -> bool:
        """Return whether the file is in the scope.

        Raises Unsupported when it has rows both inside and outside the scope (pitfall 6).
        """
        spanned = self.labels.labels_spanned(entry.data_file)
        if spanned.isdisjoint(self.scope_labels):
            return False
        if spanned <= self.scope_labels:
            return True
        order = label_sort_key(self.scope.field)
        outside = tuple(sorted(spanned - self.scope_labels, key=order))
        raise Unsupported(
            f"{entry.data_file.file_path} lies in partition "
            f"{self.labels.file_label(entry.data_file)}, "
            f"which holds rows of the scope and of {describe_labels(outside)}",
            fix="add these partitions to the scope, or rewrite the file to the current spec "
            "first: CALL system.rewrite_data_files",
        )

    def scope_files(self, snapshot: Snapshot | None) -> ScopeFiles:
        """Return the snapshot's files of the scope."""
        return self.scope_files_in(self.manifests(snapshot))

    def scope_files_in(self, manifests: list[ManifestFile]) -> ScopeFiles:
        """Return the manifests' files of the scope: data files, and delete files for them."""
        files = ScopeFiles()
        for manifest in filter(self.may_list_scope_files, manifests):
            entries = self._entries_of_scope(manifest)
            if manifest.content == ManifestContent.DELETES:
                files.add_deletes(entries)
            else:
                files.add_data(entries)
        return files

    def may_list_scope_files(self, manifest: ManifestFile) -> bool:
        """Return as `may_list_live_files`; for certain where the manifest's entries are known.

        It takes longer to make the filter of partition summaries than to look at some files.
        Raises Unsupported as `holds`.
        """
        if has_known_entries(self._table, manifest):
            return has_live_files(manifest) and bool(self._entries_of_scope(manifest))
        return self.may_list_live_files(manifest)

    def _entries_of_scope(self, manifest: ManifestFile) -> list[ManifestEntry]:
        of_scope, path = partial(self._scope_entries, manifest), manifest.manifest_path
        view = view_of(self._table.catalog)
        if view is None or not has_known_entries(self._table, manifest):
            return self.derive("scope", path, of_scope)
        name = self._table.metadata_location, self.scope, path
        known: list[ManifestEntry] | None = view.facts.find(name)
        return view.facts.keep(name, of_scope()) if known is None else known

    def _scope_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        if manifest.content == ManifestContent.DELETES:
            return self.live_deletes(manifest)
        return list(filter(self.holds, self.live_entries(manifest)))

    def live_deletes(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the live delete files that may hide rows of the scope.

        A delete file whose spec cannot be labelled applies only to data files of that spec, which
        are refused themselves, unless it names one file or its spec has no partitions.
        """
        live = self.listed_deletes(manifest)
        if self.labels.can_label(manifest.partition_spec_id):
            return [entry for entry in live if self.holds(entry)]
        return [e for e in live if is_global_delete(e.data_file) or targeted_data_file(e.data_file)]

    def listed_deletes(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return all live delete files of the manifest; see `without_void_partition`."""
        live, specs = filter(is_live_entry, self.entries(manifest)), self._table.specs()
        return [without_void_partition(entry, specs) for entry in live]


def list_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the manifests of a snapshot, read once in a view of the table's catalog."""
    view, path = view_of(table.catalog), snapshot.manifest_list
    if view is None:
        return read_manifest_list(table.io, path)
    return list(view.manifests.get(path, lambda: read_manifest_list(table.io, path)))


def planned_entries(table: Table, scan: DataScan) -> Iterator[list[ManifestEntry]]:
    """Yield the entries of files that a scan may read, by manifest."""
    snapshot = scan.snapshot()
    if snapshot is None:
        return iter(())
    manifests = [
        ManifestReadBy(manifest, partial(_known_entries, table, manifest))
        for manifest in list_manifests(table, snapshot)
    ]
    return scan._manifest_planner.plan_manifest_entries(cast("list[ManifestFile]", manifests))


def _known_entries(table: Table, manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    return known_entries(table, manifest, partial(read_manifest_entries, io, manifest))
