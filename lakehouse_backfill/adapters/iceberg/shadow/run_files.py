"""Files that a run staged into its shadow: found after the drop, and deleted once none is reached.

A clone shares files and manifests with its target. What the run itself wrote has two marks: a
snapshot of the run added it, and it lies in a folder of the shadow. Another table reaches a file
when a manifest of any of its snapshots lists it as live, with or without a tag or branch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.catalog import (
    fetch_all,
    list_table_names,
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.manifests.partition_labels import PartitionLabels
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import is_live_entry
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ScopedReader
from lakehouse_backfill.adapters.pyiceberg_manifests import read_manifest_entries
from lakehouse_backfill.core.planning.target.write_path import DATA_PATH_PROPERTY
from lakehouse_backfill.domain.labels.names import namespace_text
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.retention import (
    TRIAL_TABLE,
    StagedFiles,
    StagedShadow,
    is_kept_result,
)
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow
from lakehouse_backfill.errors import Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.control import RunFiles


@dataclass(frozen=True)
class IcebergRunFiles(RunFiles):
    """`ports.control.RunFiles` on PyIceberg."""

    _catalog: Catalog
    _namespace: str

    def describe(self, shadow: str) -> dict[str, Any] | None:
        """Return location, metadata file and size of a shadow; None when there is none.

        None for a branch: its files are its table's, whose own expiry removes what nothing needs.
        """
        if parse_branch_shadow(shadow):
            return None
        table = load_table_or_none(self._catalog, shadow)
        if table is None:
            return None
        return {
            "location": table.location(),
            "metadata_file": table.metadata_location,
            "size_bytes": meta.chunk_bytes_written(table.metadata),
        }

    def find(
        self,
        staged: StagedShadow,
        scope: Scope | None,
        tables: Collection[str],
        dropped: Collection[str],
        *,
        is_begun: bool,
    ) -> StagedFiles | None:
        """Return the files that only the shadow's own metadata reaches, in order of deletion.

        Raises NotFound, Conflict, Unsupported and CatalogDown on any doubt.
        """
        with translate_errors():
            io = self._file_io(staged)
            try:
                metadata = FromInputFile.table_metadata(io.new_input(staged.metadata_file))
            except FileNotFoundError:
                if not is_begun:
                    raise
                return None
            _require_own(staged, metadata)
            own = _OwnFiles(staged, metadata, io)
            own.collect(is_begun=is_begun)
            others = list(self._other_tables(staged, tables, dropped))
            search = _Search(own, {*tables}, scope)
            held = {name: search.listed(name, table) for name, table in others}
            return own.in_groups(held)

    def delete(self, staged: StagedShadow, groups: tuple[tuple[str, ...], ...]) -> None:
        """Delete the files, group after group; several at a time, missing ones are left out."""
        io = self._file_io(staged)

        def delete_one(path: str) -> str:
            with commit_window("RunFiles.delete"):
                io.delete(path)
            return path

        for group in groups:
            fetch_all(delete_one, group)

    def _file_io(self, staged: StagedShadow) -> FileIO:
        target = load_table_or_none(self._catalog, staged.target)
        if target is not None:
            return target.io
        return load_file_io(dict(self._catalog.properties), staged.metadata_file)

    def _other_tables(
        self, staged: StagedShadow, tables: Collection[str], dropped: Collection[str]
    ) -> Iterator[tuple[str, Table]]:
        """Yield the target, those of `tables` that are no shadows, and all shadows that are left.

        Raises NotFound when one that is no shadow is gone.
        """
        shadows = {*list_table_names(self._catalog, self._namespace)} - {*dropped}
        if staged.shadow in shadows:
            raise Conflict(
                f"{staged.shadow} is in the catalog by now",
                fix="lakehouse-backfill maintain again, once nobody uses it",
            )
        # A trial's table lists files of its target and its own. It may be half deleted by now.
        # A kept result or state lists its own only, and may be half deleted as well.
        shadows = {
            name for name in shadows if not (TRIAL_TABLE.fullmatch(name) or is_kept_result(name))
        }
        named = {staged.target, *tables}
        others = {name for name in named if namespace_text(name) != self._namespace}
        for name in sorted(others | shadows):
            table = load_table(self._catalog, name)
            _require_apart(staged, name, table)
            yield name, table


def _require_own(staged: StagedShadow, metadata: TableMetadata) -> None:
    """Raise unless the metadata is that of the run's shadow, and the shadow was dropped."""
    properties = metadata.properties
    is_own = (
        properties.get(meta.RUN_ID_PROPERTY) == staged.run_id
        and meta.BASE_SNAPSHOT_PROPERTY in properties
        and metadata.location == staged.location
        and _place(staged.metadata_file).startswith(_folder(metadata.location))
    )
    if not is_own:
        raise Conflict(
            f"{staged.metadata_file} does not describe the shadow of {staged.run_id}",
            fix="lakehouse-backfill audit verify",
        )
    if meta.may_drop_delete_files(properties):
        raise Unsupported(
            f"{staged.shadow} stays in the catalog, where a drop deletes files",
            fix="when no other table takes its files: drop it yourself",
        )


def _require_apart(staged: StagedShadow, name: str, table: Table) -> None:
    """Raise Conflict when another table's folder is the shadow's, lies in it or around it."""
    own, other = _folder(staged.location), _folder(table.location())
    if own.startswith(other) or other.startswith(own):
        raise Conflict(
            f"{name} lies at {other}, and {staged.shadow} at {own}: one in the other",
            fix="give the namespace of shadows a location of its own",
        )


def _folder(location: str) -> str:
    return f"{_place(location).rstrip('/')}/"


def _place(path: str) -> str:
    """Return one name for a path: Hadoop writes `file:/x` for `file:///x`, and s3a for s3."""
    return re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:/+", "/", path))


@dataclass
class _OwnFiles:
    """What the snapshots of a shadow added below its own folders: sizes by path."""

    staged: StagedShadow
    metadata: TableMetadata
    io: FileIO
    data: dict[str, int] = field(default_factory=dict)
    manifests: dict[str, int] = field(default_factory=dict)
    lists: list[str] = field(default_factory=list)
    entries: list[ManifestEntry] = field(default_factory=list)

    def collect(self, *, is_begun: bool) -> None:
        """Add the shadow's own files, without its base and what it shares with its target."""
        base_id = self.metadata.properties[meta.BASE_SNAPSHOT_PROPERTY]
        # Once the deletion has begun, a metadata file that is gone has nothing left to delete.
        deleted = (FileNotFoundError,) if is_begun else ()
        for snapshot in self.metadata.snapshots:
            if str(snapshot.snapshot_id) == base_id:
                continue
            if self._is_own(snapshot.manifest_list):
                self.lists.append(snapshot.manifest_list)
            manifests: list[ManifestFile] = []
            with suppress(*deleted):
                manifests = snapshot.manifests(self.io)
            for manifest in manifests:
                is_added = manifest.added_snapshot_id == snapshot.snapshot_id
                if not is_added or not self._is_own(manifest.manifest_path):
                    continue
                self.manifests[manifest.manifest_path] = manifest.manifest_length
                if self._is_chunk_commit(snapshot):
                    with suppress(*deleted):
                        self._add_data(read_manifest_entries(self.io, manifest))

    def _is_own(self, path: str) -> bool:
        return _place(path).startswith(_folder(self.metadata.location))

    def _is_chunk_commit(self, snapshot: Snapshot) -> bool:
        summary = meta.snapshot_summary(snapshot)
        is_by_run = summary.get(meta.RUN_ID_PROPERTY) == self.staged.run_id
        return is_by_run and meta.CHUNK_ID_PROPERTY in summary

    def _add_data(self, entries: list[ManifestEntry]) -> None:
        """Add the files that a manifest's own snapshot added to a folder of the shadow."""
        folders = [_folder(self.metadata.location)]
        data_path = self.metadata.properties.get(DATA_PATH_PROPERTY, "").rstrip("/")
        if data_path.rpartition("/")[2] == self.staged.run_id:
            folders.append(_folder(data_path))
        for entry in entries:
            file = entry.data_file
            is_added = entry.status == ManifestEntryStatus.ADDED
            if is_added and _place(file.file_path).startswith(tuple(folders)):
                self.data[file.file_path] = file.file_size_in_bytes
                self.entries.append(entry)

    def lie_within(self, scope: Scope) -> bool:
        """Return whether all files lie in the scope, so that other partitions cannot list them."""
        try:
            labels = PartitionLabels(self.metadata, scope.field)
            spans = [labels.labels_spanned(entry.data_file) for entry in self.entries]
        except Unsupported:
            return False
        return all(spans) and set().union(*spans) <= {*scope.partitions}

    def in_groups(self, held: dict[str, set[str]]) -> StagedFiles:
        """Order what nobody holds: a file goes before the one that leads to it, the newest last."""
        kept = set().union(*held.values())
        newest = self.staged.metadata_file
        log = [entry.metadata_file for entry in self.metadata.metadata_log]
        older = [p for p in log if self._is_own(p) and _place(p) != _place(newest)]
        groups = tuple(
            tuple(path for path in dict.fromkeys(paths) if path not in kept)
            for paths in (self.data, self.manifests, self.lists, older, (newest,))
        )
        sizes = {**self.data, **self.manifests}
        unknown = [path for group in groups for path in group if path not in sizes]
        sizes |= fetch_all(lambda path: len(self.io.new_input(path)), unknown)
        return StagedFiles(
            groups=groups,
            files=sum(map(len, groups)),
            size_bytes=sum(sizes.get(path, 0) for group in groups for path in group),
            held={name: len(paths) for name, paths in held.items() if paths},
        )


class _Search:
    """Looks for files of a shadow in other tables.

    Only manifests are read that may list one. Those that the target had before the shadow was
    cloned are older than its files, by their sequence numbers; others are known by their
    partitions. Of shadows of other products only what they wrote themselves is read.
    """

    def __init__(self, own: _OwnFiles, tables: set[str], scope: Scope | None) -> None:
        metadata = own.metadata
        self._tables = tables
        self._wanted = {_place(path): path for path in (*own.data, *own.manifests, *own.lists)}
        self._target = own.staged.target
        self._scope = scope if scope is not None and own.lie_within(scope) else None
        self._target_uuid = metadata.properties.get(meta.TARGET_UUID_PROPERTY)
        base = metadata.properties[meta.BASE_SNAPSHOT_PROPERTY]
        # Format 1 has no sequence numbers: all are 0, and none is older.
        self._base_sequence = next(
            (s.sequence_number or 0 for s in metadata.snapshots if str(s.snapshot_id) == base), 0
        )

    def listed(self, name: str, table: Table) -> set[str]:
        """Return the files that any snapshot of the table reaches."""
        is_skipped, may_hold = self._age_filter(name, table), self._partition_filter(table)
        lists = {s.manifest_list: s for s in table.metadata.snapshots}
        manifests: dict[str, ManifestFile] = {}
        for path, snapshot in lists.items():
            if not is_skipped(path, snapshot.sequence_number):
                manifests |= {one.manifest_path: one for one in snapshot.manifests(table.io)}
        paths = {*lists, *manifests}
        for path, manifest in manifests.items():
            if is_skipped(path, manifest.sequence_number) or not may_hold(manifest):
                continue
            entries = filter(is_live_entry, read_manifest_entries(table.io, manifest))
            paths |= {entry.data_file.file_path for entry in entries}
        return {self._wanted[place] for place in map(_place, paths) if place in self._wanted}

    def _age_filter(self, name: str, table: Table) -> Callable[[str, int | None], bool]:
        """Return which manifests and manifest lists, by path and number, cannot list a file."""
        is_target, uuid = name == self._target, str(table.metadata.table_uuid)
        if is_target and uuid != self._target_uuid:
            raise Conflict(
                f"{name} is another table than the one that the run restated",
                fix="look for the old table: its snapshots may list files of the run",
            )
        is_related = table.properties.get(meta.TARGET_UUID_PROPERTY, uuid) == self._target_uuid
        # What a shadow wrote itself is looked at whatever its number is.
        own_folder = None if is_target else _folder(table.location())

        def is_skipped(path: str, sequence_number: int | None) -> bool:
            if own_folder is not None and _place(path).startswith(own_folder):
                return False
            if is_related:
                return 0 < self._base_sequence >= (sequence_number or 0)
            # A shadow of another product inherits files of that product's table only.
            return not is_target and name not in self._tables

        return is_skipped

    def _partition_filter(self, table: Table) -> Callable[[ManifestFile], bool]:
        if self._scope is not None:
            # A table without such a column: nothing is known by its partitions.
            with suppress(Unsupported):
                return ScopedReader(table, self._scope).may_list_live_files
        return meta.has_live_files
