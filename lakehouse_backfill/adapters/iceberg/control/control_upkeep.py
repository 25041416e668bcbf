"""Keeping the control tables small: properties of closed runs, and files that nothing reaches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.catalog import translate_errors
from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_schemas import CONTROL_TABLES, PIPELINE_RUN
from lakehouse_backfill.adapters.iceberg.control.fences import fenced_runs, lift_fences
from lakehouse_backfill.domain.retention import OrphanFiles
from lakehouse_backfill.fault_points import commit_window

_RUN_COLUMNS = ("run_id", "data_product", "target_table", "shadow_table", "requested_by", "reason")


class IcebergControlUpkeep:
    """`ports.retention.ControlUpkeep` on PyIceberg."""

    def __init__(self, catalog: Catalog, namespace: str, tables: ControlTables) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._tables = tables

    def runs(self) -> dict[str, dict[str, str]]:
        """Give of each run, without its plan: product, target, shadow, owner, reason."""
        rows = self._tables.log(PIPELINE_RUN).head().rows(columns=_RUN_COLUMNS)
        return {
            row["run_id"]: {
                "product": row["data_product"],
                "target": row["target_table"],
                "shadow": row["shadow_table"],
                "owner": row["requested_by"],
                "reason": row["reason"],
            }
            for row in rows
        }

    def fenced(self) -> tuple[str, ...]:
        """Name the runs that have a fence."""
        return fenced_runs(self._tables)

    def lift(self, run_ids: tuple[str, ...]) -> None:
        """Take the fences of runs away that are closed for good; one commit per table."""
        lift_fences(self._tables, run_ids)

    def litter(self, before: datetime) -> OrphanFiles:
        """Count the files that no snapshot of a control table reaches, written before then."""
        return self._sweep(before, delete=False)

    def sweep(self, before: datetime) -> OrphanFiles:
        """Delete them. Only inside the control tables' own folders: no other table lists them."""
        return self._sweep(before, delete=True)

    def _sweep(self, before: datetime, *, delete: bool) -> OrphanFiles:
        files = size = 0
        with translate_errors():
            for control in CONTROL_TABLES:
                try:
                    table = self._catalog.load_table((self._namespace, control.name))
                except (NoSuchTableError, NoSuchNamespaceError):
                    continue
                for path, length in _orphan_files(table, before):
                    if delete:
                        with commit_window("ControlFiles.delete"):
                            table.io.delete(path)
                    files, size = files + 1, size + length
        return OrphanFiles(files=files, size_bytes=size)


def _orphan_files(table: Table, before: datetime) -> list[tuple[str, int]]:
    """List old files first, then what the table reaches: what is written since is in neither."""
    place = table.location().rstrip("/")
    found = list(_list_files(table.io, place, before))
    if not found:
        return []
    reached = _reachable_paths(table.refresh())
    return [(f"{place}/{name}", size) for name, size in found if f"{place}/{name}" not in reached]


def _list_files(io: FileIO, place: str, before: datetime) -> Iterator[tuple[str, int]]:
    """List the files under a folder with their sizes, by names relative to it."""
    if not isinstance(io, PyArrowFileIO):
        return  # another library reads the store: it cannot be listed here
    scheme, netloc, path = io.parse_location(place)
    system: FileSystem = io.fs_by_scheme(scheme, netloc)
    for folder in ("metadata", "data"):
        root = f"{path}/{folder}"
        selector = FileSelector(root, recursive=True, allow_not_found=True)
        for info in system.get_file_info(selector):
            if info.is_file and info.mtime is not None and info.mtime < before:
                yield f"{folder}/{info.path.partition(f'{root}/')[2]}", info.size


def _reachable_paths(table: Table) -> set[str]:
    """Name everything that the metadata leads to: older metadata files, manifests, data files."""
    metadata = table.metadata
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            found.update(entry.data_file.file_path for entry in entries)
    return found
