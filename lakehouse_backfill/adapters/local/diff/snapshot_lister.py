"""Lists the files of two snapshots of one lake; metadata that they share is read once."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import VoidTransform

from lakehouse_backfill.adapters.local.scan import (
    SnapshotScan,
    load_as_of,
    plan_scan,
    table_as_of,
    translate_scan_errors,
)
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def _list_with_deletes(catalog: Catalog, name: str, snapshot_id: int | None) -> SnapshotScan:
    """List all files of a snapshot, each with the delete files that may hide rows of it."""
    if snapshot_id is None:
        return SnapshotScan(name)
    table = load_as_of(catalog, name, snapshot_id)
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    data: list[DataFile] = []
    deletes: dict[Hashable, set[DataFile]] = {}
    with translate_scan_errors(name, snapshot_id):
        for manifest in snapshot.manifests(table.io) if snapshot else ():
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                file = entry.data_file
                if manifest.content == ManifestContent.DATA:
                    data.append(file)
                else:
                    deletes.setdefault(_place_of_file(table, file), set()).add(file)
    everywhere = deletes.get(None, set())
    tasks = tuple(
        FileScanTask(file, deletes.get(_place_of_file(table, file), set()) | everywhere)
        for file in data
    )
    return SnapshotScan(name, table, snapshot_id, table.schema(), tasks, table.specs())


def _place_of_file(table: Table, file: DataFile) -> Hashable:
    """Return the spec and partition of a file; None without a partition: deletes apply anywhere."""
    fields = table.specs()[file.spec_id].fields
    is_partitioned = any(not isinstance(each.transform, VoidTransform) for each in fields)
    return (file.spec_id, file.partition) if is_partitioned else None


_SnapshotKey = tuple[str, int | None]
#: Data files of manifests that are cached for later calls.
_MAX_CACHED_FILES = 20_000
#: The time for which a listing of ranges is known, in seconds: credentials of its table expire.
_LISTING_LASTS_S = 30.0


class SnapshotLister:
    """Lists files of snapshots and caches the contents of small manifests, which are immutable."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._files: dict[str, list[DataFile]] = {}
        #: What was asked for, when, and what was found.
        self._newest: tuple[Any, float, tuple[SnapshotScan, SnapshotScan]] | None = None

    def list_both(
        self,
        old: _SnapshotKey,
        new: _SnapshotKey,
        ranges: Sequence[RowRange] = (),
        *,
        any_deletes: bool = False,
    ) -> tuple[SnapshotScan, SnapshotScan]:
        """List the files of two snapshots as `plan_scan` does; read shared metadata once.

        Two cases go to `plan_scan`: ranges, which skip manifests by their summaries, and delete
        files, which must be matched with data files. With `any_deletes` equality deletes are
        listed too, each with all files of its partition; PyIceberg cannot read these files.
        """
        try:
            return self._list_readable(old, new, ranges)
        except Unsupported:
            if not any_deletes:
                raise
        return _list_with_deletes(self._catalog, *old), _list_with_deletes(self._catalog, *new)

    def _list_readable(
        self, old: _SnapshotKey, new: _SnapshotKey, ranges: Sequence[RowRange]
    ) -> tuple[SnapshotScan, SnapshotScan]:
        if ranges:
            return self._list_ranges((old, new, tuple(ranges)))
        try:
            tables: dict[str, Table] = {}
            return self._list_snapshot(tables, *old), self._list_snapshot(tables, *new)
        finally:
            if sum(map(len, self._files.values())) > _MAX_CACHED_FILES:
                self._files.clear()

    def _list_ranges(
        self, asked: tuple[_SnapshotKey, _SnapshotKey, tuple[RowRange, ...]]
    ) -> tuple[SnapshotScan, SnapshotScan]:
        """List the files of ranges; a moment later, for whoever compares them, they are known."""
        known, now = self._newest, time.monotonic()
        if known and known[0] == asked and now - known[1] < _LISTING_LASTS_S:
            return known[2]
        old, new, ranges = asked
        found = plan_scan(self._catalog, *old, ranges), plan_scan(self._catalog, *new, ranges)
        is_small = sum(len(side.tasks) for side in found) <= _MAX_CACHED_FILES
        self._newest = (asked, now, found) if is_small else None
        return found

    def _list_snapshot(
        self, tables: dict[str, Table], name: str, snapshot_id: int | None
    ) -> SnapshotScan:
        if snapshot_id is None:
            return SnapshotScan(name)
        with translate_scan_errors(name, snapshot_id):
            if name not in tables:
                tables[name] = self._catalog.load_table(name)
            table = table_as_of(tables[name], name, snapshot_id)
            files = self._data_files(table, snapshot_id)
        if files is None:
            return plan_scan(self._catalog, name, snapshot_id)
        tasks = tuple(FileScanTask(file) for file in files)
        return SnapshotScan(name, table, snapshot_id, table.schema(), tasks, table.specs())

    def _data_files(self, table: Table, snapshot_id: int) -> list[DataFile] | None:
        """Return the live files, or None when delete files hide rows of them."""
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        manifests = snapshot.manifests(table.io) if snapshot else []
        if any(manifest.content != ManifestContent.DATA for manifest in manifests):
            return None
        files: list[DataFile] = []
        for manifest in manifests:
            path = manifest.manifest_path
            if path not in self._files:
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                self._files[path] = [entry.data_file for entry in entries]
            files += self._files[path]
        return files
