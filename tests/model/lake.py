"""One small lake as it is on disk: read without the product's code, and restored in no time."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
)

from tests.chaos.lab import Lab
from tests.model.world import DAYS, Row, World

CONTROL = "lakehouse_backfill"
_EPOCH = date(1970, 1, 1)
#: Data files whose rows are kept for the next look.
_MOST_FILES = 1_000


@dataclass(frozen=True)
class Entry:
    """A live file of a snapshot."""

    path: str
    day: str
    sequence_number: int
    size: int
    is_delete: bool


@dataclass
class Look:
    """Reads catalog, metadata, manifests and data files; what never changes is read once."""

    folder: Path
    _tables: dict[str, str] = field(default_factory=dict)
    _metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lists: dict[str, tuple[list[Entry], list[str]]] = field(default_factory=dict)
    _manifests: dict[str, list[Entry]] = field(default_factory=dict)
    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _io: PyArrowFileIO = field(default_factory=PyArrowFileIO)

    def catalog(self) -> dict[str, str]:
        """The metadata file of each table: equal answers mean that nothing was committed."""
        with sqlite3.connect(f"file:{self.folder}/lake/catalog.db?mode=ro", uri=True) as opened:
            found = opened.execute(
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables"
            ).fetchall()
        opened.close()
        return {f"{space}.{name}": location for space, name, location in found}

    def refresh(self) -> None:
        """Look at the catalog again."""
        self._tables = self.catalog()

    def forget(self) -> None:
        """Let go of what was read in sequences before, once it is much."""
        if len(self._rows) > _MOST_FILES:
            for known in (self._metadata, self._lists, self._manifests, self._rows):
                known.clear()

    def metadata(self, name: str) -> dict[str, Any] | None:
        location = self._tables.get(name)
        if location is None:
            return None
        if location not in self._metadata:
            self._metadata[location] = json.loads(_local(location).read_text(encoding="utf-8"))
        return self._metadata[location]

    def snapshot(self, name: str, snapshot_id: int | None = None) -> dict[str, Any] | None:
        """A snapshot of the table, or its head."""
        metadata = self.metadata(name) or {}
        wanted = metadata.get("current-snapshot-id") if snapshot_id is None else snapshot_id
        found = (s for s in metadata.get("snapshots", ()) if s["snapshot-id"] == wanted)
        return next(found, None)

    def entries(self, snapshot: dict[str, Any] | None) -> list[Entry]:
        """The live files of a snapshot."""
        return [] if snapshot is None else self._list(snapshot["manifest-list"])[0]

    def missing(self, name: str, snapshot_id: int) -> list[str]:
        """Files that a snapshot needs and that are not there, or are of another size."""
        snapshot = self.snapshot(name, snapshot_id)
        if snapshot is None:
            return [f"snapshot {snapshot_id} of {name}"]
        if not _local(snapshot["manifest-list"]).is_file():
            return [snapshot["manifest-list"]]
        entries, manifests = self._list(snapshot["manifest-list"])
        lost = [path for path in manifests if not _local(path).is_file()]
        return lost + [entry.path for entry in entries if not _is_whole(entry)]

    def data(self, name: str, snapshot_id: int | None = None) -> dict[str, dict[str, list[Row]]]:
        """The rows of each data file of a snapshot by day and path, deletes applied."""
        entries = self.entries(self.snapshot(name, snapshot_id))
        gone = self._deleted([entry for entry in entries if entry.is_delete])
        found: dict[str, dict[str, list[Row]]] = {}
        for entry in entries:
            if entry.is_delete:
                continue
            rows = [
                (row["k"], row["v"])
                for place, row in enumerate(self.rows(entry.path))
                if gone.get((entry.path, place), -1) < entry.sequence_number
            ]
            found.setdefault(entry.day, {})[entry.path] = sorted(rows)
        return found

    def log(self, table: str) -> list[dict[str, Any]]:
        """The rows of a control table in their order."""
        name = f"{CONTROL}.{table}"
        entries = self.entries(self.snapshot(name))
        return sorted(
            (row for entry in entries for row in self.rows(entry.path)),
            key=lambda row: int(row["log_seq"]),
        )

    def rows(self, path: str) -> list[dict[str, Any]]:
        if path not in self._rows:
            self._rows[path] = pq.ParquetFile(_local(path)).read().to_pylist()
        return self._rows[path]

    def _deleted(self, files: list[Entry]) -> dict[tuple[str, int], int]:
        """The newest sequence number of the deletes of each position.

        A delete hides rows of data files that are not younger than itself.
        """
        found: dict[tuple[str, int], int] = {}
        for entry in files:
            for row in self.rows(entry.path):
                place = (row["file_path"], row["pos"])
                found[place] = max(found.get(place, -1), entry.sequence_number)
        return found

    def _list(self, path: str) -> tuple[list[Entry], list[str]]:
        if path not in self._lists:
            manifests = list(read_manifest_list(self._io.new_input(path)))
            entries = [entry for manifest in manifests for entry in self._live(manifest)]
            self._lists[path] = entries, [manifest.manifest_path for manifest in manifests]
        return self._lists[path]

    def _live(self, manifest: ManifestFile) -> list[Entry]:
        path = manifest.manifest_path
        if path not in self._manifests:
            self._manifests[path] = [
                Entry(
                    path=entry.data_file.file_path,
                    day=_day(entry.data_file.partition),
                    sequence_number=entry.sequence_number or 0,
                    size=entry.data_file.file_size_in_bytes,
                    is_delete=entry.data_file.content != DataFileContent.DATA
                    or manifest.content == ManifestContent.DELETES,
                )
                for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=False)
                if entry.status != ManifestEntryStatus.DELETED
            ]
        return self._manifests[path]


class Ground:
    """A project with its tables, brought back to its beginning for each sequence."""

    def __init__(self, root: Path) -> None:
        self._lab = Lab(root)
        self._lab.make()
        for first in range(len(DAYS)):
            for last in range(first, len(DAYS)):
                scope = DAYS[first : last + 1]
                self._lab.manifest(f"{name_of(scope)}.yaml", scope[0], _next(scope[-1]))
        self._states = root / "states"
        self._saved: dict[str, Any] = {}
        self.save("new", (World(), {}, set()))

    @property
    def folder(self) -> Path:
        return self._lab.folder

    def save(self, name: str, what: Any) -> None:
        """Keep the folder as it is, and something beside it, under a name."""
        shutil.rmtree(self._states / name, ignore_errors=True)
        shutil.copytree(self.folder, self._states / name)
        self._saved[name] = what

    def restore(self, name: str) -> Any:
        """Begin again from a saved state, at the same place: metadata holds absolute paths."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._states / name, self.folder)
        return self._saved[name]


def name_of(scope: tuple[str, ...]) -> str:
    """The name of the run manifest for these days."""
    return f"r{scope[0][-2:]}-{scope[-1][-2:]}"


def _next(day: str) -> str:
    return str(date.fromisoformat(day) + timedelta(days=1))


def _day(partition: Any) -> str:
    values = list(partition)
    if not values or values[0] is None:
        return "none"
    value = values[0]
    return str(value) if isinstance(value, date) else str(_EPOCH + timedelta(days=value))


def _is_whole(entry: Entry) -> bool:
    try:
        return _local(entry.path).stat().st_size == entry.size
    except FileNotFoundError:
        return False


def _local(location: str) -> Path:
    return Path(location.removeprefix("file://"))
