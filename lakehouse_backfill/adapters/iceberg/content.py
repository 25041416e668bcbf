"""What a state of a table holds of a scope: data files, and the delete files that hide their rows.

A data file is the same content in two states only when the same delete files apply to it: rows
hidden by merge-on-read show in no list of data files (pitfall 40).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestEntryStatus

from lakehouse_backfill.adapters.iceberg.deletion_vectors import name_of, referenced_file

#: Live files by name: a data file's path.
Live = dict[str, ManifestEntry]
#: The reserved id of the column `file_path` of position delete files.
_PATH_ID = 2147483546
_EVERYWHERE = ("everywhere",)


@dataclass(frozen=True)
class Content:
    """Live data files of a scope, and the live delete files that may hide rows of them."""

    data: Live = field(default_factory=dict)
    deletes: Live = field(default_factory=dict)
    #: Further listings of the files in `data`: readers see their rows once for each.
    again: list[Live] = field(default_factory=list)

    def add_data(self, entries: Iterable[ManifestEntry]) -> None:
        """Add listings of data files; `data` holds the last one of each file."""
        for entry in entries:
            name, earlier = name_of(entry.data_file), entry
            for listed in (self.data, *self.again):
                if name not in listed:
                    listed[name] = earlier
                    break
                earlier, listed[name] = listed[name], earlier
            else:
                self.again.append({name: earlier})

    @property
    def listings(self) -> list[tuple[str, ManifestEntry, frozenset[str]]]:
        """Give each listing of a data file, with the delete files that apply to it."""
        hidden = [self.hidden_by, *(applying(listed, self.deletes) for listed in self.again)]
        return [
            (path, entry, names[path])
            for listed, names in zip((self.data, *self.again), hidden, strict=True)
            for path, entry in listed.items()
        ]

    @cached_property
    def hidden_by(self) -> dict[str, frozenset[str]]:
        """Name, for each data file, the delete files that apply to it."""
        return applying(self.data, self.deletes)

    @cached_property
    def hiding(self) -> frozenset[str]:
        """Name the delete files that apply to any of the data files; the others hide nothing."""
        return frozenset().union(*self.hidden_by.values())

    def without(self, paths: frozenset[str]) -> Content:
        """Give the same without some data files."""
        data = {path: entry for path, entry in self.data.items() if path not in paths}
        return Content(data, self.deletes)

    @property
    def rows(self) -> tuple[int, int]:
        """The fewest and the most rows that readers see: a delete file may name a row twice."""
        most = sum(entry.data_file.record_count for entry in self.data.values())
        hiding = [self.deletes[path].data_file for path in self.hiding]
        if any(file.content != DataFileContent.POSITION_DELETES for file in hiding):
            return 0, most
        return max(0, most - sum(file.record_count for file in hiding)), most


@dataclass(frozen=True)
class Swapped:
    """What a swap takes out and puts in; `ambiguous`: files that come back, and what may hide them.

    Engines differ on a file that comes back beside live delete files: some look at sequence
    numbers, some do not.
    """

    removed: Live
    added: Live
    ambiguous: dict[str, frozenset[str]]


def swapped_in(now: Content, wanted: Live) -> Swapped:
    """Work out the swap of a scope's files for `wanted`.

    Delete files that apply to none of the files that stay go with the others; those that also apply
    elsewhere stay. What is adopted is newer than all of them.
    """
    removed = {path: now.data[path] for path in now.data.keys() - wanted.keys()}
    added = {path: wanted[path] for path in wanted.keys() - now.data.keys()}
    after = Content({**now.without(frozenset(removed)).data, **added}, now.deletes)
    stale = {
        path: entry
        for path, entry in now.deletes.items()
        if path not in after.hiding and not is_everywhere(entry.data_file)
    }
    left = {path: entry for path, entry in now.deletes.items() if path not in stale}
    again = {path: entry for path, entry in added.items() if entry.sequence_number is not None}
    named = {path: names for path, names in naming(again, left).items() if names}
    return Swapped({**removed, **stale}, added, named)


def naming(data: Live, deletes: Live) -> dict[str, frozenset[str]]:
    """Tell which delete files may name rows of which data files, whatever their sequence."""
    oldest = {
        path: ManifestEntry.from_args(
            status=entry.status,
            snapshot_id=entry.snapshot_id,
            sequence_number=-1,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )
        for path, entry in data.items()
    }
    return applying(oldest, deletes)


def applying(data: Live, deletes: Live) -> dict[str, frozenset[str]]:
    """Tell which delete files apply to which data files (Iceberg spec, scan planning).

    An entry without sequence number is about to be committed: nothing that is there applies to it.
    """
    by_place: dict[tuple[Any, ...], list[ManifestEntry]] = {}
    for entry in deletes.values():
        by_place.setdefault(_place(entry.data_file), []).append(entry)
    found: dict[str, frozenset[str]] = {}
    for path, entry in data.items():
        place = (entry.data_file.spec_id, entry.data_file.partition)
        places = (place, ("file", path), _EVERYWHERE)
        near = [delete for each in places for delete in by_place.get(each, ())]
        found[path] = frozenset(name_of(e.data_file) for e in near if _applies(e, entry))
    return found


def is_live_entry(entry: ManifestEntry) -> bool:
    """Tell whether the entry lists a file, and does not record that it was removed."""
    return bool(entry.status != ManifestEntryStatus.DELETED)


def is_everywhere(file: DataFile) -> bool:
    """Tell whether the delete file applies to all partitions: its own spec has none."""
    return file.content == DataFileContent.EQUALITY_DELETES and len(file.partition) == 0


def only_file(file: DataFile) -> str | None:
    """Give the one data file that a position delete file names, in whatever partition it lies."""
    named = referenced_file(file)
    if named is not None:
        return named
    lowest, highest = _names(file)
    return lowest.decode() if lowest is not None and lowest == highest else None


def _names(file: DataFile) -> tuple[bytes | None, bytes | None]:
    if file.content != DataFileContent.POSITION_DELETES:
        return None, None
    return (file.lower_bounds or {}).get(_PATH_ID), (file.upper_bounds or {}).get(_PATH_ID)


def _place(file: DataFile) -> tuple[Any, ...]:
    if is_everywhere(file):
        return _EVERYWHERE
    path = only_file(file)
    return (file.spec_id, file.partition) if path is None else ("file", path)


def _applies(delete: ManifestEntry, data: ManifestEntry) -> bool:
    theirs, ours = delete.sequence_number or 0, data.sequence_number
    if ours is None:
        return False
    if delete.data_file.content == DataFileContent.EQUALITY_DELETES:
        return ours < theirs
    return ours <= theirs and _may_name(delete.data_file, data.data_file.file_path)


def _may_name(delete: DataFile, path: str) -> bool:
    """Tell by its bounds whether a position delete file may name rows of the data file."""
    lowest, highest = _names(delete)
    if lowest is None or highest is None:
        return True
    name = path.encode()
    # Writers may cut bounds; an upper one that was cut is rounded up.
    return name[: len(lowest)] >= lowest and name <= highest
