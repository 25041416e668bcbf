"""Listing the files of two snapshots of one lake: what both have in common is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table

from lakehouse_backfill.local.scan import Side, load, plan, projection, translated

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lakehouse_backfill.model.scope import RowRange

_Wanted = tuple[str, int | None]


def both(
    catalog: Catalog, old: _Wanted, new: _Wanted, ranges: Sequence[RowRange] = ()
) -> tuple[Side, Side]:
    """List the files of two snapshots as `plan` does; a manifest that both list is read once.

    Ranges leave out manifests by their summaries, and delete files must be matched with data
    files: both are left to PyIceberg.
    """
    if ranges:
        return plan(catalog, *old, ranges), plan(catalog, *new, ranges)
    known: dict[str, list[DataFile]] = {}
    return _one(catalog, *old, known), _one(catalog, *new, known)


def _one(
    catalog: Catalog, name: str, snapshot_id: int | None, known: dict[str, list[DataFile]]
) -> Side:
    if snapshot_id is None:
        return Side(name)
    table = load(catalog, name, snapshot_id)
    with translated(name, snapshot_id):
        files = _data_files(table, snapshot_id, known)
    if files is None:
        return plan(catalog, name, snapshot_id)
    tasks = tuple(FileScanTask(file) for file in files)
    return Side(name, table, snapshot_id, projection(table, snapshot_id), tasks, table.specs())


def _data_files(
    table: Table, snapshot_id: int, known: dict[str, list[DataFile]]
) -> list[DataFile] | None:
    """Give the live files, or None when delete files hide rows of them."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    if any(manifest.content != ManifestContent.DATA for manifest in manifests):
        return None
    found: list[DataFile] = []
    for manifest in manifests:
        path = manifest.manifest_path
        if path not in known:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            known[path] = [entry.data_file for entry in entries]
        found += known[path]
    return found
