"""The kinds of catalog that tests run on, each as the properties of a profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stack import catalog_rules
from tests.stack.proxy import Fault, Proxy
from tests.stack.servers import BUCKET, TABLE_BUCKET, Postgres, Rest, Seaweed
from tests.stack.vending import Door

#: What a server announces that executes a change once for each key.
KEYS = {"idempotency-key-lifetime": "PT30M"}


class Catalogs:
    """Makes new, empty catalogs for one test; `proxy` is what the last one is behind, if any."""

    proxy: Proxy
    door: Door

    def __init__(self, request: pytest.FixtureRequest, folder: Path, name: str) -> None:
        self._request = request
        self._folder = folder
        self._name = name
        self._undo: list[Callable[[], None]] = []

    def make(self, kind: str) -> dict[str, str]:
        """Give the properties of a catalog of this kind."""
        made: dict[str, str] = getattr(self, f"_{kind}")()
        return {"name": "lake", **made}

    def close(self) -> None:
        for undo in self._undo:
            undo()

    def _postgres(self) -> dict[str, str]:
        server: Postgres = self._request.getfixturevalue("postgres")
        uri = server.database()
        self._undo.append(lambda: server.drop(uri))
        return {"type": "sql", "uri": uri, "warehouse": f"file://{self._folder}/lake/warehouse"}

    def _rest(self) -> dict[str, str]:
        server: Rest = self._request.getfixturevalue("rest")
        return {"type": "rest", "uri": f"{server.uri}/{self._name}"}

    def _refusing(self) -> dict[str, str]:
        """As Polaris answers, where it also knows no `register`."""
        no_register = Fault("POST", "/register$", "before", 404, 10**6)
        return self.behind([no_register, *catalog_rules.polaris()])

    def _lakekeeper(self) -> dict[str, str]:
        """What Lakekeeper refuses, on S3, with credentials that end at each table."""
        return self.vended(catalog_rules.lakekeeper(), **KEYS)

    def _polaris(self) -> dict[str, str]:
        """What Polaris refuses, often busy, on S3, with credentials that end at each table."""
        return self.vended(catalog_rules.polaris())

    def _polaris_files(self) -> dict[str, str]:
        """As Polaris where it hands out no credentials, on local files."""
        return self.behind(catalog_rules.polaris())

    def vended(
        self, faults: list[Fault], lasts_s: float = 3600.0, **announces: str
    ) -> dict[str, str]:
        """Give the REST catalog behind a proxy, on the S3 store, with credentials for each table.

        `door` is what stands before the store.
        """
        server: Rest = self._request.getfixturevalue("rest")
        store: Seaweed = self._request.getfixturevalue("seaweed")
        place = server.folder / self._name
        place.mkdir(exist_ok=True)
        (place / "filer").write_text(store.filer, encoding="utf-8")
        self.door = Door(store, lasts_s)
        self._undo.append(self.door.__enter__().__exit__)
        properties = self.behind(faults, **announces)
        self.proxy.vends = self.door.vend
        return properties

    def behind(self, faults: list[Fault], **announces: str) -> dict[str, str]:
        """Give the properties of the REST catalog behind a proxy with these faults."""
        properties = self._rest()
        self.proxy = Proxy(properties["uri"], faults, announces=announces)
        self._undo.append(self.proxy.__enter__().__exit__)
        return {**properties, "uri": self.proxy.uri}

    def _s3(self) -> dict[str, str]:
        server: Seaweed = self._request.getfixturevalue("seaweed")
        (self._folder / "lake").mkdir()
        return {
            "type": "sql",
            "uri": f"sqlite:///{self._folder}/lake/catalog.db",
            "warehouse": f"s3://{BUCKET}/{self._name}/warehouse",
            **server.s3(),
        }

    def _seaweed(self) -> dict[str, str]:
        """One catalog for all tests: each drops what it made."""
        server: Seaweed = self._request.getfixturevalue("seaweed")
        keys = server.s3()
        credential = f"{keys['s3.access-key-id']}:{keys['s3.secret-access-key']}"
        properties = {
            "type": "rest", "uri": server.iceberg, "warehouse": f"s3://{TABLE_BUCKET}",
            "credential": credential, **keys,
        }  # fmt: skip
        self._undo.append(lambda: _drop_all(properties))
        return properties


def _drop_all(properties: dict[str, str]) -> None:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", **properties)
    for namespace in catalog.list_namespaces():
        for table in catalog.list_tables(namespace):
            catalog.drop_table(table)
