"""A folder of plain Parquet files to migrate, and a judge of the table that it becomes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from lakehouse_backfill import fault_points
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.migrations import MigrateResult
from tests.support.forks import FORKS
from tests.support.sources.case import new_project

CONTRACT = """\
api_version: lakehouse-backfill/v1
product: silver.trips
table: silver.trips
description: One row for each trip.
owner: ana
publication: follow
key: [id]
partitioning: {partitioning}
columns:
  - {{name: id, type: long, required: true}}
  - {{name: day, type: date}}
  - {{name: city, type: string}}
  - {{name: fare, type: "decimal(12, 2)"}}
  - {{name: km, type: double}}
consumers: []
"""
DECLARATION = """\
api_version: lakehouse-backfill/v1
migration: trips
product: silver.trips
reason: The warehouse moves to Iceberg.
parquet: {{location: old/trips}}
{more}"""
NEWEST = pa.schema(
    [
        ("id", pa.int64()),
        ("city", pa.string()),
        ("fare", pa.decimal128(12, 2)),
        ("km", pa.float64()),
    ]
)


class MigrationCase:
    """A project, the old folder within it, and the rows that the table must have."""

    table = "silver.trips"

    def __init__(
        self, folder: Path, more: str = "", partitioning: str = "[{column: day}]",
        environment: str = "dev",
    ) -> None:  # fmt: skip
        self.project = new_project(folder)
        profiles = self.project / "catalog/profiles.yaml"
        profiles.write_text(
            profiles.read_text().replace("environment: dev", f"environment: {environment}")
        )
        self.old = folder / "old/trips"
        self.old.mkdir(parents=True)
        (folder / "catalog/contracts").mkdir()
        (folder / "catalog/migrations").mkdir()
        (folder / "catalog/contracts/silver.trips.yaml").write_text(
            CONTRACT.format(partitioning=partitioning)
        )
        self.declare(more)
        #: What the table must have once the old place is gone.
        self.expected_rows: list[tuple[Any, ...]] = []
        self.expected_hashes: dict[str, str] = {}

    def declare(self, more: str) -> None:
        """Write the declaration; `more` are further fields."""
        text = DECLARATION.format(more=more)
        (self.project / "catalog/migrations/trips.yaml").write_text(text)

    def write(self, name: str, rows: list[dict[str, Any]], schema: pa.Schema = NEWEST) -> Path:
        """Write a file of the old place."""
        path = self.old / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        return path

    def migrate(self, by: str = "ana") -> MigrateResult:
        """Migrate in this process."""
        return Project.open(self.project).migrate("trips", by)

    def undo(self) -> None:
        """Take the migration back."""
        Project.open(self.project).undo_migration("trips", "ana")

    def catalog(self) -> Any:
        """Return PyIceberg's own catalog of the lake."""
        return Project.open(self.project).wiring.catalog

    def rows(self, columns: str = "id, day, city, fare, km") -> list[tuple[Any, ...]]:
        """Return the rows of the table as PyIceberg reads it, sorted by DuckDB."""
        import duckdb  # not in the processes that are killed

        found = self.catalog().load_table(self.table).scan().to_arrow()
        with duckdb.connect() as connection:
            connection.register("found", found)
            return connection.execute(f"SELECT {columns} FROM found ORDER BY ALL").fetchall()

    def expected(self, columns: str = "id, day, city, fare, km") -> list[tuple[Any, ...]]:
        """Return the rows of the old place as DuckDB reads it."""
        import duckdb

        with duckdb.connect() as connection:
            text = (
                f"SELECT {columns} FROM read_parquet(?, hive_partitioning=true, "
                "union_by_name=true) ORDER BY ALL"
            )
            return connection.execute(text, [f"{self.old}/**/*.parquet"]).fetchall()

    def hashes(self) -> dict[str, str]:
        """Return the content of every file of the old place."""
        return {
            str(path.relative_to(self.old)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.old.rglob("*"))
            if path.is_file()
        }

    def kill_at(
        self, moment: str, environment: dict[str, str] | None = None, *, wait_s: int = 60,
        act: str = "migrate",
    ) -> None:  # fmt: skip
        """Migrate, or undo it, in a process of its own that dies at a moment, `POINT COUNT`."""
        child: multiprocessing.process.BaseProcess = FORKS.Process(
            target=_migrate_until, args=(str(self.project), moment, environment or {}, act)
        )
        child.start()
        child.join(wait_s)
        assert child.exitcode == -signal.SIGKILL, moment


def _migrate_until(folder: str, moment: str, environment: dict[str, str], act: str) -> None:
    # The process is forked from one that may be older than a variable of the test.
    os.environ.update(environment)
    seen: Counter[str] = Counter()

    def kill(point: str) -> None:
        seen[point] += 1
        if f"{point} {seen[point]}" == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.install_hook(kill)
    getattr(Project.open(Path(folder)), act)("trips", "ana")


def trip(number: int, **others: Any) -> dict[str, Any]:
    """Return one trip, a function of its number."""
    return {
        "id": number, "city": f"city {number % 3}", "fare": number, "km": number / 4, **others,
    }  # fmt: skip
