"""The lab of `tests/chaos` on a server, with saved states: the rows of the catalog's database.

No file of a table is ever changed, so that the rows of an earlier time are the lake of that time.
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

from tests.chaos.lab import PROFILES, Lab
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

    def restore(self, state: str) -> None:
        super().restore(state)
        (self.folder / "catalog" / "profiles.yaml").write_text(self.profiles(), encoding="utf-8")
        self._database.put(self._rows[state])
