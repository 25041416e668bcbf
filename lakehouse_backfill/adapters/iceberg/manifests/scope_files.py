"""The data files, delete files and deletion vectors of a scope, and which deletes apply to which.

A data file has the same content in two states only when the same delete files apply to it: rows
hidden by merge-on-read are not visible in a list of data files (pitfall 40).

PyIceberg 0.12 reads entries without the fields that identify deletion vectors. One Puffin file
holds many vectors, each at its offset, and each hides rows of one data file (Iceberg spec,
deletion vectors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2s
from typing import Any, NamedTuple

from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from lakehouse_backfill.adapters.iceberg.manifests.partition_labels import PartitionLabels
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_LABEL,
)
from lakehouse_backfill.domain.tables.files import LiveFile

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
