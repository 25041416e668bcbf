"""The lab of `tests/chaos` on a server, with saved states: the rows of the catalog's database.

No file of a table is ever changed, so that the rows of an earlier time are the lake of that time;
metadata files, which Iceberg drops when they are old, are put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.io import load_file_io

from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow
from tests.chaos.lab import PROFILES, Lab
from tests.chaos.oracle import MARK, SHADOWS
from tests.stack.rest_lab import RestOracle

_TABLES = ("iceberg_tables", "iceberg_namespace_properties")
Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Database:
    """Where a catalog keeps which metadata file is a table's state."""

    uri: str

    def rows(self) -> Rows:
        with self._connected() as connection:
            return {
                name: [dict(row) for row in connection.execute(_SELECT[name]).mappings()]
                for name in _TABLES
            }

    def put(self, rows: Rows) -> None:
        """Replace all rows, in one transaction beside the server's own connections."""
        with self._connected() as connection:
            for name in _TABLES:
                found = sqlalchemy.Table(name, sqlalchemy.MetaData(), autoload_with=connection)
                connection.execute(found.delete())
                connection.execute(found.insert(), rows[name])

    @contextmanager
    def _connected(self) -> Any:
        engine = sqlalchemy.create_engine(self.uri)
        with engine.begin() as connection:
            yield connection
        engine.dispose()


_SELECT = {name: sqlalchemy.text(f"SELECT * FROM {name} ORDER BY 1, 2, 3") for name in _TABLES}


@dataclass(frozen=True)
class ServerOracle(RestOracle):
    """Reads what the server keeps in its database, past the server and past its proxy."""

    rows_of: Database = Database("")

    def catalog(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for rows in self.rows_of.rows().values() for row in rows]

    def staged(self, target: str, run: str) -> tuple[list[str], list[tuple[str, int, int]]]:
        """Give the chunk of each attempt that the run's shadow consists of, and its rows."""
        name, head = self._shadow_of(target, run)
        found = self.table(name)
        chunks: dict[str, str] = {}
        while head is not None and (snapshot := found.snapshot_by_id(head)) is not None:
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            if summary.get(f"{MARK}run-id") == run and f"{MARK}attempt-id" in summary:
                chunks[summary[f"{MARK}attempt-id"]] = summary[f"{MARK}chunk-id"]
            head = snapshot.parent_snapshot_id
        return list(chunks.values()), self.rows(*self._shadow_of(target, run))

    def staged_files(self, target: str, run: str) -> list[str]:
        """Name the data files of the run's shadow that its target does not have."""
        name, head = self._shadow_of(target, run)
        files = [
            task.file.file_path for task in self.table(name).scan(snapshot_id=head).plan_files()
        ]
        kept = {task.file.file_path for task in self.table(target).scan().plan_files()}
        return sorted({*files} - kept)

    def exists(self, path: str) -> bool:
        return load_file_io(dict(self.store), path).new_input(path).exists()

    def read(self, path: str) -> bytes:
        with load_file_io(dict(self.store), path).new_input(path).open() as file:
            return file.read()

    def put_back(self, path: str, text: bytes) -> None:
        """Write a file that was there before, unless it still is."""
        if not self.exists(path):
            with load_file_io(dict(self.store), path).new_output(path).create() as file:
                file.write(text)

    def _shadow_of(self, target: str, run: str) -> tuple[str, int | None]:
        """Name the table that holds the run's shadow, with the snapshot that is its newest one."""
        text = run.replace("-", "_")
        clone = next((n for n in self.names() if n.startswith(SHADOWS) and text in n), None)
        if clone is not None:
            head = self.table(clone).current_snapshot()
            return clone, head.snapshot_id if head else None
        shadow = branch_shadow(target, run)
        heads = {
            epoch: ref.snapshot_id
            for name, ref in self.table(target).refs().items()
            if (epoch := shadow.epoch_of(name)) is not None
        }
        return target, heads[max(heads)] if heads else None


class ServerLab(Lab):
    """A project whose commands use the catalog of `through`; its tables are made by `direct`."""

    def __init__(
        self, root: Path, isolation: str, direct: Mapping[str, str], database: Database
    ) -> None:
        super().__init__(root)
        #: May be another way to the same catalog from the next `restore` on.
        self.through = direct
        self._isolation, self._direct, self._database = isolation, direct, database
        self._rows: dict[str, Rows] = {}
        self._metadata: dict[str, dict[str, bytes]] = {}
        store = {key: text for key, text in direct.items() if key.startswith("s3.")}
        self.oracle = ServerOracle(self.folder, store=store, rows_of=database)

    def profiles(self) -> str:
        declared: dict[str, Any] = yaml.safe_load(PROFILES)
        declared["profiles"]["lab"] |= {
            "catalog": dict(self.through), "isolation": self._isolation,
        }  # fmt: skip
        return yaml.safe_dump(declared)

    def catalog(self) -> Any:
        return load_catalog(**self._direct)

    def save(self, state: str) -> None:
        super().save(state)
        self._rows[state] = self._database.rows()
        places = [row["metadata_location"] for row in self._rows[state][_TABLES[0]]]
        self._metadata[state] = {path: self.oracle.read(path) for path in places}

    def restore(self, state: str) -> None:
        super().restore(state)
        (self.folder / "catalog" / "profiles.yaml").write_text(self.profiles(), encoding="utf-8")
        for path, text in self._metadata[state].items():
            self.oracle.put_back(path, text)
        self._database.put(self._rows[state])
