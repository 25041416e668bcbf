"""One lake by day as its ports show it: the in-memory one and PyIceberg's, for the same tests."""

from __future__ import annotations

import itertools
from typing import Any, Protocol

from lakehouse_backfill.adapters.iceberg.files import IcebergStoredFiles
from lakehouse_backfill.adapters.iceberg.shadow.run_files import IcebergRunFiles
from lakehouse_backfill.adapters.local.row_reader import LocalRowReader
from lakehouse_backfill.adapters.pyiceberg_rows import row_range_filter
from lakehouse_backfill.domain.partitions import Scope, ScopeField, partition_row_range
from lakehouse_backfill.domain.tables.commits import AdoptRequest
from lakehouse_backfill.ports.compute import RowReader
from lakehouse_backfill.ports.control import RunFiles
from lakehouse_backfill.ports.tables import Pins, Publisher, Shadows, StoredFiles, Tables
from tests.support.fakes.catch_up import FakeRowReader
from tests.support.fakes.files import FakeStoredFiles
from tests.support.fakes.lake import DAY, FakeLake
from tests.support.fakes.retention import FakeRunFiles
from tests.support.lakes.tables import Kit, field_of, row

DAYS = ("2013-02-01", "2013-02-02", "2013-02-03")
_numbers = itertools.count(1)


class DayLake(Protocol):
    """The ports of a lake, and a live writer beside them."""

    target: str
    field: ScopeField
    tables: Tables
    pins: Pins
    shadows: Shadows
    publisher: Publisher
    stored_files: StoredFiles
    run_files: RunFiles
    row_reader: RowReader

    def write(self, label: str, *values: str) -> int:
        """Replace the rows of one day as a live writer does."""

    def write_chunk(self, shadow: str, chunk: str, label: str, *values: str) -> None:
        """Replace the rows of one day of a shadow, marked as a chunk."""


class FakeDays:
    """The in-memory lake."""

    def __init__(self) -> None:
        self.fake = FakeLake()
        self.field = DAY
        self.tables = self.pins = self.shadows = self.publisher = self.fake
        self.row_reader = FakeRowReader(self.fake)
        self.stored_files, self.run_files = FakeStoredFiles(self.fake), FakeRunFiles(self.fake)
        self.target = f"silver.t{next(_numbers)}"
        self.fake.add(self.target)

    def write(self, label: str, *values: str) -> int:
        return self.fake.write(self.target, label, *values)

    def write_chunk(self, shadow: str, chunk: str, label: str, *values: str) -> None:
        table = self.fake.tables[shadow]
        table.commit({**table.content(table.head), label: frozenset(values)}, chunk=chunk)


class IcebergDays:
    """A table by day in a catalog that the tests of a module share."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.field = field_of("d")
        self.tables, self.pins = kit.tables, kit.pins
        self.shadows, self.publisher = kit.shadows, kit.publisher
        self.stored_files = IcebergStoredFiles(kit.catalog)
        self.run_files = IcebergRunFiles(kit.catalog, "shadow")
        self.row_reader = LocalRowReader(kit.catalog)
        self.target = f"silver.t{next(_numbers)}"
        kit.create(("d", "identity"), name=self.target)

    def write(self, label: str, *values: str) -> int:
        self._replace(self.target, label, values, {})
        return self._kit.head(self.target) or 0

    def write_chunk(self, shadow: str, chunk: str, label: str, *values: str) -> None:
        run_id = self._kit.live.load_table(shadow).properties["lakehouse-backfill.run-id"]
        marks = {"lakehouse-backfill.chunk-id": chunk, "lakehouse-backfill.run-id": run_id}
        self._replace(shadow, label, values, marks)

    def _replace(self, name: str, label: str, values: Any, marks: dict[str, str]) -> None:
        table = self._kit.live.load_table(name)
        where = row_range_filter((partition_row_range(self.field, label),))
        if not values:
            table.delete(where, snapshot_properties=marks)
            return
        rows = [row(number, label, value) for number, value in enumerate(values)]
        table.overwrite(self._kit.arrow(name, rows), where, snapshot_properties=marks)


def staged(lake: DayLake, run: str = "r1", **days: tuple[str, ...]) -> AdoptRequest:
    """Open a shadow at the head and replace the named days (`d1` is the first)."""
    base = lake.tables.describe(lake.target)
    assert base is not None
    shadow = f"shadow.{run}_{lake.target.rpartition('.')[2]}"
    lake.shadows.open(lake.target, base.snapshot_id, shadow, {"lakehouse-backfill.run-id": run})
    labels = {DAYS[int(name[1:]) - 1]: values for name, values in days.items()}
    for number, (label, values) in enumerate(labels.items()):
        lake.write_chunk(shadow, f"c{number}", label, *values)
    info = lake.tables.describe(shadow)
    assert info is not None
    return AdoptRequest(
        target=lake.target, base_snapshot_id=base.snapshot_id, shadow=shadow,
        shadow_snapshot_id=info.snapshot_id,
        chunk_ids=tuple(dict.fromkeys(chunk.chunk_id for chunk in lake.shadows.chunks(shadow))),
        scope=Scope(field=lake.field, partitions=tuple(labels)), token=f"token-{run}",
        tags={"before": f"lhb-before-{run}", "after": f"lhb-after-{run}"},
        properties={"lakehouse-backfill.run-id": run},
    )  # fmt: skip


def head(lake: DayLake) -> Any:
    found = lake.tables.describe(lake.target)
    return found and found.snapshot_id


def scope(lake: DayLake, *days: str) -> Scope:
    return Scope(field=lake.field, partitions=days)


def content(lake: DayLake, table: str, snapshot_id: int | None) -> dict[str, frozenset[str]]:
    """Return the files of each day."""
    found: dict[str, set[str]] = {}
    for file in lake.tables.files(table, snapshot_id, lake.field):
        found.setdefault(file.partition, set()).add(file.path)
    return {label: frozenset(paths) for label, paths in found.items()}
