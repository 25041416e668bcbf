"""What lies in the store of a table, as its metadata lists it and as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.asking import fetch_all
from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import find_snapshot
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.stored import MetadataFile
from lakehouse_backfill.domain.table import LiveFile
from lakehouse_backfill.errors import NotFound

#: Stores answer slowly and to many at once.
_CONCURRENT_REQUESTS = 8


class IcebergStoredFiles:
    """`ports.stored.Stored` on PyIceberg."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def files(self, table: str, snapshot_id: int, scope: Scope) -> tuple[LiveFile, ...]:
        """List the live data files of the scope, by path, as often as the manifests do."""
        loaded, snapshot = self._snapshot(table, snapshot_id)
        with translate_errors():
            reader = ScopedReader(loaded, scope, ManifestCache())
            found = [
                LiveFile(
                    path=path,
                    spec_id=entry.data_file.spec_id,
                    partition=reader.labels.of(entry.data_file),
                    rows=entry.data_file.record_count,
                    size_bytes=entry.data_file.file_size_in_bytes,
                    deletes=tuple(sorted(deletes)),
                )
                for path, entry, deletes in reader.in_scope(snapshot).listings
            ]
            return tuple(sorted(found, key=lambda each: (each.path, each.partition or "")))

    def metadata(self, table: str, snapshot_id: int, scope: Scope) -> tuple[MetadataFile, ...]:
        """Hash the snapshot's manifest list and the manifests that may list files of the scope."""
        loaded, snapshot = self._snapshot(table, snapshot_id)
        found: dict[str, MetadataFile] = {}
        listed = _hash_metadata_file(loaded.io, snapshot.manifest_list, None)
        if listed is None:
            return ()
        found[listed.path] = listed
        with translate_errors():
            reader = ScopedReader(loaded, scope, ManifestCache())
            for manifest in reader.manifests(snapshot):
                if reader.may_hold(manifest):
                    one = _hash_metadata_file(
                        loaded.io, manifest.manifest_path, manifest.manifest_length
                    )
                    found |= {one.path: one} if one else {}
        return tuple(found[path] for path in sorted(found))

    def sizes(self, table: str, paths: Collection[str]) -> dict[str, int]:
        """Ask the store for the files' sizes; those that are gone are left out."""
        io = load_table(self._catalog, table).io
        return fetch_all(
            lambda path: len(io.new_input(path)), sorted(set(paths)), _CONCURRENT_REQUESTS
        )

    def _snapshot(self, table: str, snapshot_id: int) -> tuple[Table, Snapshot]:
        loaded = load_table(self._catalog, table)
        return loaded, find_snapshot(loaded.metadata, snapshot_id, table)


def _hash_metadata_file(io: FileIO, path: str, listed: int | None) -> MetadataFile | None:
    try:
        with translate_errors(), io.new_input(path).open() as stream:
            data = stream.read()
    except NotFound:
        return None
    return MetadataFile(
        path=path,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        listed_bytes=listed,
    )
