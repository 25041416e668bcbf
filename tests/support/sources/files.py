"""Sources of files: records in CSV, JSON or Parquet, one file for each delivery."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from lakehouse_backfill.adapters.iceberg.control.imports import IcebergImportLedger
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.domain.sources.landings import FileDelivery
from lakehouse_backfill.project import Project
from tests.support.sources.case import Row, new_project

DECLARATION = """\
api_version: lakehouse-backfill/v1
source: trips
kind: files
table: bronze.trips
columns:
  - {{name: id, type: long, required: true}}
  - {{name: city, type: string}}
  - {{name: fare, type: "decimal(10, 2)"}}
files:
  location: inbox
  pattern: "*.{format}"
  format: {format}
  files_per_commit: 2
{more}"""
ARCHIVE = "  archive: {accepted: archive/accepted, rejected: archive/rejected}\n"


class FileCase:
    """A folder of files; what is in it is known."""

    name, table = "trips", "bronze.trips"

    def __init__(self, folder: Path, format_: str = "csv", more: str = ARCHIVE) -> None:
        self.project = new_project(folder)
        self.format = format_
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self._records: list[Row] = []
        self._number = 0
        self.bad: list[str] = []
        self.is_archived = "archive:" in more
        self.declare(more)

    def declare(self, more: str) -> None:
        """Write the declaration; `more` are further fields of `files`."""
        text = DECLARATION.format(format=self.format, more=more)
        (self.project / "catalog/sources/trips.yaml").write_text(text)

    def deliver(self, records: Sequence[Row]) -> None:
        """Put a file with the records into the folder."""
        self._number += 1
        self.write(f"f{self._number:03d}", records)
        self._records += records

    def write(self, stem: str, records: Sequence[Row]) -> Path:
        """Write a file whose rows are not counted as expected."""
        path = self.inbox / f"{stem}.{self.format}"
        if self.format == "parquet":
            schema = pa.schema(
                {"id": pa.int64(), "city": pa.string(), "fare": pa.decimal128(10, 2)}
            )
            parquet.write_table(pa.Table.from_pylist(list(records), schema=schema), path)
        elif self.format == "json":
            lines = (json.dumps({**row, "fare": str(row["fare"])}) for row in records)
            path.write_text("".join(f"{line}\n" for line in lines))
        else:
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ("id", "city", "fare"))
                writer.writeheader()
                writer.writerows(records)
        return path

    def spoil(self, stem: str) -> None:
        """Put a file into the folder that no parser reads."""
        (self.inbox / f"{stem}.{self.format}").write_text("id,city,fare\nx,Rome,secret\n")
        self.bad.append(f"{stem}.{self.format}")

    def ledger(self) -> tuple[FileDelivery, ...]:
        """Return all rows of the ledger."""
        wiring = Project.open(self.project).wiring
        tables = ControlTables(wiring.catalog, wiring.profile.control_namespace)
        return IcebergImportLedger(tables).deliveries(self.name)

    def require_settled(self) -> None:
        """Check that each file has one row of the ledger, and lies in one archive."""
        good = [f"f{number:03d}.{self.format}" for number in range(1, self._number + 1)]
        rows = [(one.path, one.status) for one in self.ledger()]
        wanted = [(path, "imported") for path in good] + [(path, "rejected") for path in self.bad]
        assert sorted(rows) == sorted(wanted)
        if self.is_archived:
            assert list(self.inbox.iterdir()) == []
            for folder, paths in (("accepted", good), ("rejected", self.bad)):
                there = (self.project / "archive" / folder).rglob("*.*")
                assert sorted(path.name for path in there) == sorted(paths)

    def expected(self) -> list[Row]:
        """Return the rows of all good files."""
        return self._records


def trips(first: int, count: int) -> list[Row]:
    """Return trips with the ids from `first` on."""
    return [
        {"id": number, "city": f"city {number % 3}", "fare": Decimal(number * 25) / 100}
        for number in range(first, first + count)
    ]
