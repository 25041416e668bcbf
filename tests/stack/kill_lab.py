"""The lab of `tests/chaos` on a server, with saved states: the rows of the catalog's database.

No file of a table is ever changed, so that the rows of an earlier time are the lake of that time;
metadata files, which Iceberg drops when they are old, are put back.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.io import load_file_io

from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow
from tests.chaos.lab import BY, PROFILES, SCOPE, TARGET
from tests.chaos.oracle import MARK, SHADOWS, facts
from tests.stack.catalogs import Catalogs
from tests.stack.rest_lab import RepeatingLab, RestOracle
from tests.stack.vending import Door

#: By kind of catalog the one that has its states: the emulated ones are two ways to the same one,
#: on S3, with credentials that end at each table; runs write to branches there.
KINDS = {"postgres": "postgres", "rest": "rest", "lakekeeper": "s3", "polaris": "s3"}
#: The product that is published, and goes back, together with the target.
OTHER = "silver.u"
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


class ServerLab(RepeatingLab):
    """A project whose commands use the catalog of `through`; its tables are made by `direct`."""

    def __init__(
        self, root: Path, isolation: str, direct: Mapping[str, str], database: Database
    ) -> None:
        super().__init__(root)
        #: May be another way to the same catalog from the next `restore` on.
        self.through = direct
        self._isolation, self._direct, self._database = isolation, direct, database
        #: What is so after a verb, without any fault.
        self.ends: dict[str, dict[str, Any]] = {}
        #: The run of the other product, once `save_group` was called.
        self.other = ""
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

    def prepare(self) -> None:
        """Make the tables, and save each state of a run's life."""
        self.make()
        manifest = self.manifest("a.yaml", SCOPE[0], "2024-01-05")
        self.save("new")
        self.run = self.must("plan", manifest, *BY).data["run_id"]
        self.ends["plan"] = facts(self.oracle, TARGET, self.run)
        self.must("approve", self.run, *BY)
        self.save("approved")
        self.must("stage", self.run, *BY)
        self.save("staged")
        self.must("validate", self.run, *BY)
        self.ends["validate"] = facts(self.oracle, TARGET, self.run)
        self.must("accept", self.run, *BY)
        self.save("accepted")
        self.must("publish", self.run, *BY)
        self.save("published")

    def save_group(self) -> None:
        """Save that the run can be published with one of another product, and that it was."""
        if self.other:
            return
        self.restore("accepted")
        self.other = self.must("plan", self.add_product(OTHER), *BY).data["run_id"]
        for verb in ("approve", "stage", "validate", "accept"):
            self.must(verb, self.other, *BY)
        self.save("group accepted")
        self.must("publish", self.run, self.other, *BY)
        self.save("group published")


class ServerLabs:
    """A lab of each kind of catalog, prepared once for all ways to it."""

    def __init__(self, request: pytest.FixtureRequest, make_folder: Callable[[str], Path]) -> None:
        self._request, self._make_folder = request, make_folder
        self._opened: dict[str, tuple[Catalogs, ServerLab]] = {}
        self._ways: dict[str, Mapping[str, str]] = {}
        self._doors: list[Door] = []

    def of(self, kind: str) -> ServerLab:
        """Give the lab, whose next `restore` goes this way."""
        name = KINDS[kind]
        if name not in self._opened:
            folder = self._make_folder("lab")
            made = Catalogs(self._request, folder, f"t{uuid.uuid4().hex[:12]}")
            self._opened[name] = made, self._lab(folder, self._way(made, kind))
            self._opened[name][1].prepare()
        made, found = self._opened[name]
        found.through = self._way(made, kind)
        return found

    def close(self) -> None:
        """Stop the proxies; no request may have left the place of its key's table."""
        refused = [one for door in self._doors for one in door.refused()]
        for made, _ in self._opened.values():
            made.close()
        assert refused == []

    def _way(self, made: Catalogs, kind: str) -> Mapping[str, str]:
        if kind not in self._ways:
            self._ways[kind] = made.make(kind)
            self._doors += [made.door] if KINDS[kind] == "s3" else []
        return self._ways[kind]

    def _lab(self, folder: Path, properties: Mapping[str, str]) -> ServerLab:
        if properties["type"] == "sql":
            return ServerLab(folder, "clone", properties, Database(properties["uri"]))
        rest = self._request.getfixturevalue("rest")
        place = rest.folder / properties["uri"].rpartition("/")[2]
        direct = {"name": "lake", "type": "rest", "uri": f"{rest.uri}/{place.name}"}
        is_on_s3 = (place / "filer").exists()
        direct |= self._request.getfixturevalue("seaweed").s3() if is_on_s3 else {}
        database = Database(f"sqlite:///{place / 'rest.db'}?timeout=30")
        return ServerLab(folder, "branch" if is_on_s3 else "clone", direct, database)
