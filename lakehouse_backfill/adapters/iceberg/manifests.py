"""Manifests: the data files, delete files and deletion vectors of a scope.

Each manifest is read at most once, and only if it may list files of the scope.

A data file has the same content in two states only when the same delete files apply to it: rows
hidden by merge-on-read are not visible in a list of data files (pitfall 40).

PyIceberg 0.12 reads entries without the fields that identify deletion vectors. One Puffin file
holds many vectors, each at its offset, and each hides rows of one data file (Iceberg spec,
deletion vectors).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2s
from typing import Any, NamedTuple, TypeVar

from pyiceberg.expressions.visitors import inclusive_projection, manifest_evaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from lakehouse_backfill.adapters.iceberg.avro_files import (
    list_manifests,
    read_manifest_entries,
    read_manifest_list,
)
from lakehouse_backfill.adapters.iceberg.metadata import (
    has_known_entries,
    has_live_files,
    known_entries,
    view_of,
)
from lakehouse_backfill.adapters.iceberg.partitions import PartitionLabels, row_range_filter
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_LABEL,
    Scope,
    describe_labels,
    label_sort_key,
    scope_row_ranges,
)
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import Unsupported

_NEWEST_FORMAT = 3
_FIELD_POSITIONS = {
    field.name: position for position, field in enumerate(DATA_FILE_TYPE[_NEWEST_FORMAT].fields)
}


def unique_file_name(file: DataFile) -> str:
    """Return a name that is unique among live files: the path, for a vector with its offset."""
    offset = _data_file_field(file, "content_offset")
    return file.file_path if offset is None else f"{file.file_path}#{offset}"


def _data_file_field(file: DataFile, name: str) -> Any:
    position = _FIELD_POSITIONS[name]
    return file._data[position] if position < len(file._data) else None


#: Live files by name: a data file's path.
LiveEntries = dict[str, ManifestEntry]
#: The reserved id of the column `file_path` of position delete files.
_FILE_PATH_FIELD_ID = 2147483546
_ALL_PARTITIONS = ("everywhere",)


class Listing(NamedTuple):
    """A listing of a live data file in a manifest, with the delete files that apply to it."""

    path: str
    entry: ManifestEntry
    deletes: frozenset[str]


def describe_live_file(labels: PartitionLabels, listing: Listing, **more: Any) -> LiveFile:
    """Return the domain value of a listing, with further fields in `more`."""
    file = listing.entry.data_file
    label = labels.file_label(file)
    return LiveFile(
        path=listing.path,
        spec_id=file.spec_id,
        partition=None if labels.is_beside(file) else label,
        rows=file.record_count,
        size_bytes=file.file_size_in_bytes,
        place=_place_digest(label, file),
        **{"deletes": tuple(sorted(listing.deletes)), **more},
    )


def _place_digest(label: str | None, file: DataFile) -> str:
    """Name a file's partition where its label alone does not; a digest, as values may be secret."""
    values = [file.partition[at] for at in range(len(file.partition))]
    if not values or (len(values) == 1 and label != WHOLE_TABLE_LABEL):
        return ""
    return blake2s(repr((file.spec_id, values)).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class ScopeFiles:
    """Live data files of a scope, and the live delete files that may hide rows of them."""

    data: LiveEntries = field(default_factory=dict)
    deletes: LiveEntries = field(default_factory=dict)
    #: Further listings of the files in `data`: readers see their rows once for each.
    repeated: list[LiveEntries] = field(default_factory=list)

    def add_data(self, entries: Iterable[ManifestEntry]) -> None:
        """Add listings of data files; `data` holds the last listing of each file."""
        for entry in entries:
            name, earlier = unique_file_name(entry.data_file), entry
            for listed in (self.data, *self.repeated):
                if name not in listed:
                    listed[name] = earlier
                    break
                earlier, listed[name] = listed[name], earlier
            else:
                self.repeated.append({name: earlier})

    def add_deletes(self, entries: Iterable[ManifestEntry]) -> None:
        """Add delete files."""
        self.deletes.update((unique_file_name(entry.data_file), entry) for entry in entries)

    @property
    def listings(self) -> list[Listing]:
        """Return each listing of a data file, with the delete files that apply to it."""
        return [
            Listing(path, entry, deletes[path])
            for listed in (self.data, *self.repeated)
            for deletes in (applicable_deletes(listed, self.deletes),)
            for path, entry in listed.items()
        ]

    @cached_property
    def deletes_by_file(self) -> dict[str, frozenset[str]]:
        """The delete files that apply to each data file, by path."""
        return applicable_deletes(self.data, self.deletes)

    @cached_property
    def effective_deletes(self) -> frozenset[str]:
        """The delete files that apply to any of the data files; the others hide nothing."""
        return frozenset().union(*self.deletes_by_file.values())

    @property
    def row_count_range(self) -> tuple[int, int]:
        """The minimum and maximum of visible rows: a delete file may name a row twice."""
        max_rows = sum(entry.data_file.record_count for entry in self.data.values())
        hiding = [self.deletes[path].data_file for path in self.effective_deletes]
        if any(file.content != DataFileContent.POSITION_DELETES for file in hiding):
            return 0, max_rows
        return max(0, max_rows - sum(file.record_count for file in hiding)), max_rows


def applicable_deletes(data: LiveEntries, deletes: LiveEntries) -> dict[str, frozenset[str]]:
    """Return which delete files apply to which data files (Iceberg spec, scan planning).

    An entry without sequence number is not committed yet: no existing delete file applies to it.
    """
    if not deletes:
        return dict.fromkeys(data, frozenset())
    deletes_by_target: dict[tuple[Any, ...], list[ManifestEntry]] = {}
    for entry in deletes.values():
        deletes_by_target.setdefault(_delete_target(entry.data_file), []).append(entry)
    applicable: dict[str, frozenset[str]] = {}
    for path, entry in data.items():
        partition = (entry.data_file.spec_id, entry.data_file.partition)
        targets = (partition, ("file", path), _ALL_PARTITIONS)
        candidates = [delete for each in targets for delete in deletes_by_target.get(each, ())]
        applicable[path] = frozenset(
            unique_file_name(e.data_file) for e in candidates if _is_applicable(e, entry)
        )
    return applicable


def changed_entry(entry: ManifestEntry, **changes: Any) -> ManifestEntry:
    """Return a copy of the entry in which these fields differ."""
    fields = ("status", "snapshot_id", "sequence_number", "file_sequence_number", "data_file")
    unchanged = {name: getattr(entry, name) for name in fields}
    return ManifestEntry.from_args(**{**unchanged, **changes})


def is_live_entry(entry: ManifestEntry) -> bool:
    """Return whether the entry lists a live file, not a removal."""
    return bool(entry.status != ManifestEntryStatus.DELETED)


def is_global_delete(file: DataFile) -> bool:
    """Return whether the delete file applies to all partitions: its spec has no fields."""
    return file.content == DataFileContent.EQUALITY_DELETES and len(file.partition) == 0


def without_void_partition(
    entry: ManifestEntry, specs: Mapping[int, PartitionSpec]
) -> ManifestEntry:
    """Return an equality delete without its partition where all fields of its spec are void.

    Readers take such a spec, which format 1 leaves behind, for one without fields.
    """
    file = entry.data_file
    fields = specs[file.spec_id].fields
    is_void = all(isinstance(each.transform, VoidTransform) for each in fields)
    if not fields or not is_void or file.content != DataFileContent.EQUALITY_DELETES:
        return entry
    everywhere = DataFile(*file._data)
    everywhere[_FIELD_POSITIONS["partition"]] = Record()
    everywhere.spec_id = file.spec_id
    return changed_entry(entry, data_file=everywhere)


def targeted_data_file(file: DataFile) -> str | None:
    """Return the one data file that a position delete file names, in any partition."""
    vector_target = _data_file_field(file, "referenced_data_file")
    if vector_target is not None:
        return str(vector_target)
    lowest, highest = _path_bounds(file)
    return lowest.decode() if lowest is not None and lowest == highest else None


def _path_bounds(file: DataFile) -> tuple[bytes | None, bytes | None]:
    if file.content != DataFileContent.POSITION_DELETES:
        return None, None
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return lower.get(_FILE_PATH_FIELD_ID), upper.get(_FILE_PATH_FIELD_ID)


def _delete_target(file: DataFile) -> tuple[Any, ...]:
    if is_global_delete(file):
        return _ALL_PARTITIONS
    path = targeted_data_file(file)
    return (file.spec_id, file.partition) if path is None else ("file", path)


def _is_applicable(delete: ManifestEntry, data: ManifestEntry) -> bool:
    delete_sequence, data_sequence = delete.sequence_number or 0, data.sequence_number
    if data_sequence is None:
        return False
    if delete.data_file.content == DataFileContent.EQUALITY_DELETES:
        return data_sequence < delete_sequence
    return data_sequence <= delete_sequence and _may_reference_file(
        delete.data_file, data.data_file.file_path
    )


def _may_reference_file(delete: DataFile, path: str) -> bool:
    """Return whether a position delete file may name rows of the data file, by its bounds."""
    lowest, highest = _path_bounds(delete)
    if lowest is None or highest is None:
        return True
    name = path.encode()
    # Writers may truncate bounds; a truncated upper bound is rounded up.
    return name[: len(lowest)] >= lowest and name <= highest


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
