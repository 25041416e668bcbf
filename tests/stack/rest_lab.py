"""The lab of `tests/chaos` on a server: whole commands in processes of their own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import StaticTable

from tests.chaos.lab import BY, CONTRACT, SCOPE, TARGET, Ended, Lab, expected_rows
from tests.chaos.lab import PROFILES as LAB_PROFILES
from tests.chaos.oracle import CONTROL, Oracle, facts

PROFILES = """\
api_version: lakehouse-backfill/v1
default: lab
profiles:
  lab:
    environment: dev
    lease_seconds: 300
    isolation: {isolation}
    catalog: {catalog}
"""
#: What no output and no stored value may hold.
TOKEN = "bearer-hunter2-e7c1"
BACK = ("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)
#: A command that met a lost answer, or a server that was away, is given again so often.
TRIES = 12


@dataclass(frozen=True)
class RestOracle(Oracle):
    """Reads what Iceberg's own server keeps in its database, past the server.

    `store`: how the files of an S3 store are reached; each is copied before it is read.
    """

    database: Path = Path()
    store: Mapping[str, str] = field(default_factory=dict)

    def load(self, metadata_file: str) -> StaticTable:
        return StaticTable.from_metadata(metadata_file, dict(self.store))

    def paths(self, name: str, snapshot_id: int | None = None) -> dict[str, list[str]]:
        found = super().paths(name, snapshot_id)
        return {label: list(map(self._local, files)) for label, files in found.items()}

    def _local(self, path: str) -> str:
        if not self.store:
            return path
        copy = self.folder.parent / "copies" / path.rpartition("/")[2]
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            with load_file_io(dict(self.store), path).new_input(path).open() as file:
                copy.write_bytes(file.read())
        return str(copy)

    def catalog(self) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True) as opened:
            tables = opened.execute("SELECT * FROM iceberg_tables ORDER BY 1, 2, 3").fetchall()
            spaces = opened.execute("SELECT * FROM iceberg_namespace_properties").fetchall()
        opened.close()
        return [*tables, *sorted(spaces, key=str)]


class RepeatingLab(Lab):
    """A project on a server that fails: commands are given until they succeed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        #: How each command ended, as often as it was given.
        self.codes: list[int] = []

    def repeat(self, *arguments: str) -> Ended:
        """Give the command until it succeeds, as its error says."""
        for _ in range(TRIES):
            ended = self.do(*arguments)
            self.codes.append(ended.code)
            if ended.code == 0:
                return ended
            assert ended.code in (4, 5, 6), (arguments, ended)
            # Whatever landed: readers see the old rows, or the new ones.
            seen = self.oracle.rows(TARGET)
            assert seen in (expected_rows(), expected_rows(SCOPE)), (arguments, ended, seen)
        raise AssertionError((arguments, ended))

    def accept(self) -> None:
        """Plan, stage and accept the run."""
        manifest = self.manifest("a.yaml", SCOPE[0], "2024-01-05")
        # A plan of the same manifest again is the same run.
        self.run = self.repeat("plan", manifest, *BY).data["run_id"]
        self.repeat("approve", self.run, *BY)
        self.accept_approved()

    def accept_approved(self) -> None:
        """Stage and accept the run."""
        for verb in ("stage", "validate", "accept"):
            self.repeat(verb, self.run, *BY)

    def add_product(self, name: str) -> str:
        """Make a product like the target, with its rows; give a manifest of a run of it."""
        contract = self.folder / "catalog" / "contracts" / f"{name}.yaml"
        contract.write_text(CONTRACT.replace(TARGET, name), encoding="utf-8")
        with self.opened() as catalog:
            target = catalog.load_table(TARGET)
            made = catalog.create_table(name, target.schema(), partition_spec=target.spec())
            made.append(target.scan().to_arrow())
        manifest = self.manifest(f"{name}.yaml", SCOPE[0], "2024-01-05")
        file = self.folder / manifest
        text = file.read_text("utf-8").replace(f"product: {TARGET}", f"product: {name}")
        file.write_text(text, encoding="utf-8")
        return manifest


class RestLab(RepeatingLab):
    """A project whose lake is on a REST catalog; its tables are made past the proxy."""

    def __init__(
        self, root: Path, uri: str, direct: Mapping[str, str], database: Path, isolation: str
    ) -> None:
        super().__init__(root)
        #: What of the profile's catalog says who asks.
        self.login: Mapping[str, str] = {"token": TOKEN}
        self._uri, self._direct, self._isolation = uri, direct, isolation
        store = {key: text for key, text in direct.items() if key.startswith("s3.")}
        self.oracle = RestOracle(self.folder, database=database, store=store)

    def profiles(self) -> str:
        catalog = {"name": "lake", "type": "rest", "uri": self._uri, **self.login}
        return PROFILES.format(isolation=self._isolation, catalog=json.dumps(catalog))

    def log_in(self, **login: str) -> None:
        """Let the commands from now on say so who asks."""
        self.login = login
        file = self.folder / "catalog" / "profiles.yaml"
        file.write_text(self.profiles(), encoding="utf-8")

    def catalog(self) -> Any:
        return load_catalog("lake", type="rest", **self._direct)

    def said(self) -> list[Path]:
        """What each command wrote."""
        return sorted((self.folder.parent / "said").iterdir())


class StoreLab(RepeatingLab):
    """A project on SQLite whose files are in an S3 store; its tables are made by `direct` keys.

    `through`: what of these keys the project's commands have in another way.
    """

    def __init__(
        self, root: Path, warehouse: str, direct: Mapping[str, str], through: Mapping[str, str]
    ) -> None:
        super().__init__(root)
        database = self.folder / "lake" / "catalog.db"
        self._direct = {**direct, "uri": f"sqlite:///{database}", "warehouse": warehouse}
        self._through = through
        self.oracle = RestOracle(self.folder, database=database, store=direct)

    def profiles(self) -> str:
        declared: dict[str, Any] = yaml.safe_load(LAB_PROFILES)
        declared["profiles"]["lab"]["catalog"] |= {**self._direct, **self._through}
        return yaml.safe_dump(declared)

    def catalog(self) -> Any:
        return SqlCatalog("lake", **self._direct)


def require_no_secret(lab: RestLab, secrets: Iterable[str] = (TOKEN,)) -> None:
    """Look for secrets in all that commands said, in control tables, and in the tables' files."""
    said = "".join(file.read_text("utf-8") for file in lab.said())
    names = lab.catalog().list_tables(CONTROL)
    held = "".join(
        str(lab.catalog().load_table(name).scan().to_arrow().to_pylist()) for name in names
    )
    assert len(names) > 3
    kept = [*lab.oracle.database.parent.rglob("*"), *lab.folder.rglob("*")]
    files = [(file.name, file.read_bytes()) for file in kept if file.is_file()]
    for secret in secrets:
        assert secret not in said
        assert secret not in held
        assert {name for name, text in files if secret.encode() in text} <= {"profiles.yaml"}


def require_published(lab: Lab) -> None:
    """Look at what readers see: each row once, one version, each chunk once."""
    found = facts(lab.oracle, TARGET, lab.run)
    assert found["runs"] == {"RUN": "published"}
    assert found["versions"] == [[0, "baseline"], [1, "publish"]]
    assert (len(found["ledger"]), found["tokens are used once"]) == (len(SCOPE), True)
    assert lab.oracle.rows(TARGET) == expected_rows(SCOPE)


def require_rolled_back(lab: Lab) -> None:
    assert lab.oracle.rows(TARGET) == expected_rows()
    found = facts(lab.oracle, TARGET, lab.run)
    assert (found["runs"], found["tokens are used once"]) == ({"RUN": "rolled_back"}, True)
    assert found["versions"] == [[0, "baseline"], [1, "publish"], [0, "rollback"]]
    assert len(found["publications"]) == 2
