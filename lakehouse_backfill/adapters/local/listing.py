"""Listing the files of two snapshots of one lake: what both have in common is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table

from lakehouse_backfill.adapters.local.scan import (
    SnapshotScan,
    plan_scan,
    snapshot_schema,
    table_as_of,
    translate_scan_errors,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.snapshots import Snapshot

    from lakehouse_backfill.domain.scope import RowRange

_SnapshotKey = tuple[str, int | None]
#: Files of manifests that are kept for the next question about them.
_MAX_CACHED_FILES = 20_000


class SnapshotLister:
    """Lists files of snapshots, and keeps what small manifests say: nothing ever changes them."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._files: dict[str, list[DataFile]] = {}
        self._manifests: dict[str, tuple[str, ...] | None] = {}

    def both(
        self, old: _SnapshotKey, new: _SnapshotKey, ranges: Sequence[RowRange] = ()
    ) -> tuple[SnapshotScan, SnapshotScan]:
        """List the files of two snapshots as `plan` does; a table and a manifest are read once.

        Ranges leave out manifests by their summaries, and delete files must be matched with data
        files: both are left to PyIceberg.
        """
        if ranges:
            return plan_scan(self._catalog, *old, ranges), plan_scan(self._catalog, *new, ranges)
        try:
            tables: dict[str, Table] = {}
            return self._one(tables, *old), self._one(tables, *new)
        finally:
            if sum(map(len, self._files.values())) > _MAX_CACHED_FILES:
                self._files.clear()
                self._manifests.clear()

    def _one(self, tables: dict[str, Table], name: str, snapshot_id: int | None) -> SnapshotScan:
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
        return SnapshotScan(
            name, table, snapshot_id, snapshot_schema(table, snapshot_id), tasks, table.specs()
        )

    def _data_files(self, table: Table, snapshot_id: int) -> list[DataFile] | None:
        """Give the live files, or None when delete files hide rows of them."""
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            return []
        if snapshot.manifest_list not in self._manifests:
            self._read(table, snapshot)
        known = self._manifests[snapshot.manifest_list]
        return None if known is None else [file for path in known for file in self._files[path]]

    def _read(self, table: Table, snapshot: Snapshot) -> None:
        manifests = snapshot.manifests(table.io)
        if any(manifest.content != ManifestContent.DATA for manifest in manifests):
            self._manifests[snapshot.manifest_list] = None
            return
        for manifest in manifests:
            if manifest.manifest_path not in self._files:
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                self._files[manifest.manifest_path] = [entry.data_file for entry in entries]
        paths = tuple(manifest.manifest_path for manifest in manifests)
        self._manifests[snapshot.manifest_list] = paths
