"""Reading a control table: what its manifests list is looked up once in a process.

Manifests never change, and a control table has many small ones, which most reads have in common:
to plan a scan took PyIceberg longer than to read the rows. The rows themselves are read each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import FileScanTask, Table

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


def read_rows(table: Table, rows: BooleanExpression, columns: tuple[str, ...]) -> pa.Table:
    """Read the rows that the filter lets through; files without any are left out by their bounds.

    As PyIceberg's own scan does, and by it where a table has delete files or partitions.
    """
    scan = table.scan(rows, selected_fields=columns)
    files = _matching_files(table, rows)
    if files is None:
        return scan.to_arrow()
    from pyiceberg.io.pyarrow import ArrowScan

    reader = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
    return reader.to_table([FileScanTask(file) for file in files])


def _matching_files(table: Table, rows: BooleanExpression) -> list[DataFile] | None:
    """List the live files that may hold rows; None where this cannot be said here."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    manifests = _MANIFEST_LISTS.get(
        snapshot.manifest_list, lambda: tuple(snapshot.manifests(table.io))
    )
    may_hold = _InclusiveMetricsEvaluator(table.schema(), rows).eval
    found: list[DataFile] = []
    for manifest in manifests:
        is_partitioned = not table.specs()[manifest.partition_spec_id].is_unpartitioned()
        if is_partitioned or manifest.content != ManifestContent.DATA:
            return None
        found += [file for file in _live_data_files(table.io, manifest) if may_hold(file)]
    return found


def _live_data_files(io: FileIO, manifest: ManifestFile) -> tuple[DataFile, ...]:
    def live() -> tuple[DataFile, ...]:
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        return tuple(entry.data_file for entry in entries)

    return _MANIFESTS.get(f"{manifest.manifest_path} {manifest.manifest_length}", live)


class _ReadCache(Generic[T]):
    """What was read of files that never change; the oldest is forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[str, T] = {}
        self._lock = threading.Lock()

    def get(self, name: str, read_it: Callable[[], T]) -> T:
        """Give what is known of a file, else read it; two threads may both read it."""
        found = self._found.get(name)
        if found is None:
            found = read_it()
            with self._lock:
                while len(self._found) >= self._most:
                    del self._found[next(iter(self._found))]
                self._found[name] = found
        return found


#: Those of all control tables at their heads, and some that are gone by now.
_MANIFEST_LISTS: _ReadCache[tuple[ManifestFile, ...]] = _ReadCache(64)
_MANIFESTS: _ReadCache[tuple[DataFile, ...]] = _ReadCache(1024)
