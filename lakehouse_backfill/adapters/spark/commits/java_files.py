"""Finding files in a table's snapshots as objects of Iceberg's own library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lakehouse_backfill.adapters.spark.commits.java_api import (
    JavaApi,
    closing_iterable,
    java_errors,
)
from lakehouse_backfill.domain.scope import RowRange
from lakehouse_backfill.errors import NotFound


class JavaFileLookup:
    """Looks files up by path, delete files by path and offset."""

    def __init__(self, api: JavaApi) -> None:
        self._api = api

    def data(
        self, table: Any, snapshot_id: int, paths: Iterable[str], ranges: Sequence[RowRange]
    ) -> dict[str, Any]:
        """Give those of the data files that the snapshot lists, with all their statistics.

        Manifests are pruned by the rows first; a file without rows shows only without pruning.
        """
        wanted = set(paths)
        found: dict[str, Any] = {}
        for rows in (ranges, ()):
            if wanted - found.keys():
                found.update(self._scan(table, snapshot_id, wanted, rows))
        return found

    def deletes(self, table: Any, snapshot_id: int, names: Iterable[str]) -> dict[str, Any]:
        """Give those of the delete files that the snapshot lists."""
        wanted = set(names)
        found: dict[str, Any] = {}
        if not wanted:
            return found
        with java_errors(f"reading the delete files of {table.name()}"):
            manifests = table.snapshot(snapshot_id).deleteManifests(table.io())
            for manifest in manifests:
                reader = self._api.iceberg.ManifestFiles.readDeleteManifest(
                    manifest, table.io(), table.specs()
                )
                with closing_iterable(reader) as files:
                    found.update({n: f for f in files if (n := delete_file_name(f)) in wanted})
        return found

    def _scan(
        self, table: Any, snapshot_id: int, wanted: set[str], ranges: Sequence[RowRange]
    ) -> dict[str, Any]:
        with java_errors(f"reading the files of {table.name()}"):
            scan = table.newScan().useSnapshot(snapshot_id).includeColumnStats()
            tasks = scan.filter(self._api.rows(ranges)).planFiles()
            with closing_iterable(tasks) as each:
                files = (task.file() for task in each)
                return {path: file for file in files if (path := str(file.location())) in wanted}


def delete_file_name(file: Any) -> str:
    """Name a delete file: many deletion vectors lie in one Puffin file, each at its offset."""
    offset = file.contentOffset()
    return str(file.location()) if offset is None else f"{file.location()}#{offset}"


def require_all_listed(found: dict[str, Any], wanted: Iterable[str], table: str) -> None:
    """Raise NotFound for files that nobody lists."""
    missing = [path for path in wanted if path not in found]
    if missing:
        raise NotFound(
            f"{len(missing)} files to swap on {table} are listed nowhere, the first is "
            f"{missing[0]}",
            fix="repeat the same command: it looks at the table first",
        )
