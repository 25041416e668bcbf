"""An in-memory stand-in of `lakehouse_backfill/ports/tables.py` over the in-memory lake."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.table import LiveFile, MetadataFile
from lakehouse_backfill.errors import NotFound
from tests.support.fakes.lake import FakeLake


class FakeStored:
    """`ports.stored.Stored`; `sizes_now` says what the store holds by now, None: it is gone."""

    def __init__(self, lake: FakeLake) -> None:
        self.lake = lake
        self.sizes_now: dict[str, int | None] = {}

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

    def _require(self, table: str) -> None:
        if table not in self.lake.tables:
            raise NotFound(f"{table} does not exist")
