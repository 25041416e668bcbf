"""A stand-in for the store: the bytes of a file are its name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256

from lakehouse_backfill.domain.diff import FileBytes
from lakehouse_backfill.errors import NotFound
from tests.support.fakes.lake import FakeLake


@dataclass
class FakeDataFiles:
    """`ports.fingerprints.DataFiles`; files of `gone` are not there, those of `swapped` others."""

    lake: FakeLake
    gone: set[str] = field(default_factory=set)
    swapped: set[str] = field(default_factory=set)
    #: How often each file's bytes were read.
    reads: list[str] = field(default_factory=list)

    def reading(self, table: str, snapshot_id: int) -> str:
        if table not in self.lake.tables:
            raise NotFound(f"{table} does not exist")
        self.lake.tables[table].content(snapshot_id)
        return self.lake.tables[table].properties.get("columns", "as ever")

    def digests(self, table: str, paths: Collection[str]) -> dict[str, FileBytes]:
        self.reads += sorted(paths)
        return {path: self._bytes(path) for path in paths if path not in self.gone}

    def _bytes(self, path: str) -> FileBytes:
        held = f"not {path}" if path in self.swapped else path
        return FileBytes(size_bytes=100, sha256=sha256(held.encode()).hexdigest())
