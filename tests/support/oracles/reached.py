"""Which files the metadata of tables leads to, walked with PyIceberg's own reader of Avro."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.manifest import ManifestEntryStatus


def local(path: str) -> str:
    """The place of a file on this machine."""
    return unquote(urlsplit(path).path)


def reached(catalog: Any) -> set[str]:
    """All files that any snapshot of any table of the catalog leads to, and its metadata."""
    found: set[str] = set()
    for space in catalog.list_namespaces():
        for name in catalog.list_tables(space):
            table = catalog.load_table(name)
            found.add(table.metadata_location)
            for snapshot in table.metadata.snapshots:
                found.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    found.add(manifest.manifest_path)
                    found |= {
                        entry.data_file.file_path
                        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                        if entry.status != ManifestEntryStatus.DELETED
                    }
    return {local(path) for path in found}


def on_disk(folder: Path) -> set[str]:
    """All files below a folder."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}
