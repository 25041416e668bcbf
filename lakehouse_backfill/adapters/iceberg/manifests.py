"""Reading manifests: each at most once, and only those that may hold a run's partitions."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.expressions.visitors import inclusive_projection, manifest_evaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.content import (
    ScopeFiles,
    is_global_delete,
    targeted_data_file,
)
from lakehouse_backfill.adapters.iceberg.deletion_vectors import (
    read_manifest_entries,
    unique_file_name,
)
from lakehouse_backfill.adapters.iceberg.filters import row_range_filter
from lakehouse_backfill.adapters.iceberg.labels import PartitionLabels
from lakehouse_backfill.adapters.iceberg.metadata import has_live_files
from lakehouse_backfill.domain.partitions import describe_labels, label_sort_key, scope_row_ranges
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.errors import Unsupported


class ManifestCache:
    """Entries of manifests by path. Manifests never change, so nothing is ever stale."""

    def __init__(self) -> None:
        self._entries: dict[str, list[ManifestEntry]] = {}

    def entries(self, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        """Give all entries of the manifest, also those that record a removal."""
        found = self._entries.get(manifest.manifest_path)
        if found is None:
            found = read_manifest_entries(io, manifest)
            self._entries[manifest.manifest_path] = found
        return found

    def known(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Give the entries if the manifest was read before, else none."""
        return self._entries.get(manifest.manifest_path, [])


class ScopedReader:
    """Reads one state of a table, seen through the partitions of a scope."""

    def __init__(self, table: Table, scope: Scope, cache: ManifestCache) -> None:
        self._table = table
        self.scope = scope
        self._cache = cache
        self.labels = PartitionLabels(table.metadata, scope.field)
        self.wanted = frozenset(scope.partitions)
        self._may_hold: dict[int, Callable[[ManifestFile], bool]] = {}

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestFile]:
        """List the snapshot's manifests; none for the empty state."""
        return [] if snapshot is None else snapshot.manifests(self._table.io)

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Give all entries of the manifest."""
        return self._cache.entries(self._table.io, manifest)

    def live(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Give the manifest's live entries; raises Unsupported when they cannot be labelled."""
        live = [e for e in self.entries(manifest) if e.status != ManifestEntryStatus.DELETED]
        if live and not self.labels.knows(manifest.partition_spec_id):
            raise self.labels.uncovered(manifest.partition_spec_id, len(live))
        return live

    def may_hold(self, manifest: ManifestFile) -> bool:
        """Tell from the partition summaries whether the manifest may list files of the scope."""
        spec_id = manifest.partition_spec_id
        if not self.labels.knows(spec_id):
            return True
        if spec_id not in self._may_hold:
            schema, spec = self._table.schema(), self._table.specs()[spec_id]
            projected = inclusive_projection(schema, spec)(
                row_range_filter(scope_row_ranges(self.scope))
            )
            self._may_hold[spec_id] = manifest_evaluator(spec, schema, projected)
        return self._may_hold[spec_id](manifest)

    def holds(self, entry: ManifestEntry) -> bool:
        """Tell whether the file lies in the scope.

        Raises Unsupported when it lies in the scope and in partitions beside it (pitfall 6).
        """
        inside = self.labels.spanned(entry.data_file)
        if inside <= self.wanted:
            return True
        if inside.isdisjoint(self.wanted):
            return False
        raise self._spanning(entry, inside)

    def _spanning(self, entry: ManifestEntry, inside: frozenset[str]) -> Unsupported:
        order = label_sort_key(self.scope.field)
        beside = tuple(sorted(inside - self.wanted, key=order))
        return Unsupported(
            f"{entry.data_file.file_path} lies in partition {self.labels.of(entry.data_file)}, "
            f"which holds rows of the scope and of {describe_labels(beside)}",
            fix="add these partitions to the scope, or rewrite the file to the current spec "
            "first: CALL system.rewrite_data_files",
        )

    def in_scope(self, snapshot: Snapshot | None) -> ScopeFiles:
        """Give what the snapshot holds of the scope."""
        return self.in_scope_of(self.manifests(snapshot))

    def in_scope_of(self, manifests: list[ManifestFile]) -> ScopeFiles:
        """Give what the manifests list of the scope: data files, and delete files for them."""
        found = ScopeFiles()
        for manifest in manifests:
            if not has_live_files(manifest) or not self.may_hold(manifest):
                continue
            if manifest.content == ManifestContent.DELETES:
                entries = self.live_deletes(manifest)
                found.deletes.update(
                    (unique_file_name(entry.data_file), entry) for entry in entries
                )
            else:
                found.add_data(entry for entry in self.live(manifest) if self.holds(entry))
        return found

    def live_deletes(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Give the live delete files that may hide rows of the scope.

        One of a spec that cannot be labelled only applies to data files of that spec, which are
        refused by themselves, unless it names one file, or its spec has no partitions at all.
        """
        live = [e for e in self.entries(manifest) if e.status != ManifestEntryStatus.DELETED]
        if self.labels.knows(manifest.partition_spec_id):
            return [entry for entry in live if self.holds(entry)]
        return [e for e in live if is_global_delete(e.data_file) or targeted_data_file(e.data_file)]
