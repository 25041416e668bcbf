"""The files of the in-memory lake as a store holds them: the bytes of a file are its name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256

from lakehouse_backfill.domain.comparison.checksums import FileBytes
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.files import LiveFile, MetadataFile
from lakehouse_backfill.errors import NotFound
from tests.support.fakes.lake import FakeLake


@dataclass
class FakeStoredFiles:
    """`ports.tables.StoredFiles`; files of `gone` are not there, those of `swapped` others.

    `sizes_now`: sizes in the store, None: the file is gone.
    """

    lake: FakeLake
    gone: set[str] = field(default_factory=set)
    swapped: set[str] = field(default_factory=set)
    #: How often each file's bytes were read.
    reads: list[str] = field(default_factory=list)
    sizes_now: dict[str, int | None] = field(default_factory=dict)

    def files(self, table: str, snapshot_id: int, scope: Scope) -> tuple[LiveFile, ...]:
        self._require(table)
        found = self.lake.files(table, snapshot_id, scope.field)
        inside = [file for file in found if file.partition in scope.partitions]
        return tuple(sorted(inside, key=lambda file: file.path))

    def metadata(self, table: str, snapshot_id: int, scope: Scope) -> tuple[MetadataFile, ...]:
        self._require(table)
        text = repr(sorted(self.lake.tables[table].content(snapshot_id).items()))
        mark = sha256(text.encode()).hexdigest()
        return (MetadataFile(path=f"{table}/{snapshot_id}.avro", size_bytes=9, sha256=mark),)

    def sizes(self, table: str, paths: Collection[str]) -> dict[str, int]:
        self._require(table)
        found = {path: self.sizes_now.get(path, 100) for path in paths}
        return {path: size for path, size in found.items() if size is not None}

    def reading(self, table: str, snapshot_id: int) -> str:
        self._require(table)
        self.lake.tables[table].content(snapshot_id)
        return self.lake.tables[table].properties.get("columns", "as ever")

    def digests(self, table: str, paths: Collection[str]) -> dict[str, FileBytes]:
        self.reads += sorted(paths)
        return {path: self._bytes(path) for path in paths if path not in self.gone}

    def _bytes(self, path: str) -> FileBytes:
        held = f"not {path}" if path in self.swapped else path
        return FileBytes(size_bytes=100, sha256=sha256(held.encode()).hexdigest())

    def _require(self, table: str) -> None:
        if table not in self.lake.tables:
            raise NotFound(f"{table} does not exist")
