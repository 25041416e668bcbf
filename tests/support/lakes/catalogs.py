"""Which catalog a test's folder means: SQLite, or the one that a file in the folder names.

The tests with real servers (`tests/stack`) put that file there, and run these same suites on it. It
is a file, so that processes that a test starts find it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.domain.profile import Profile

NAMES_CATALOG = "catalog.json"
EMBEDDED = {
    "name": "lake",
    "uri": "sqlite:///${project}/lake/catalog.db",
    "warehouse": "file://${project}/lake/warehouse",
}


def profile_of(folder: Path) -> Profile:
    """Give the profile of the folder's catalog."""
    file = folder / NAMES_CATALOG
    named = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else EMBEDDED
    return Profile(catalog=named)


def catalog_of(folder: Path) -> Catalog:
    """Open the folder's catalog; each call gives another client of the same one."""
    return open_catalog(profile_of(folder), folder)


Commit = Callable[[], Any]


class TroubledCatalog(Protocol):
    """Each of `troubles(table, commit)` runs in place of one of the next commits."""

    troubles: Iterator[Callable[[str, Commit], Any]]

    def __getattr__(self, name: str) -> Any: ...


def troubled(folder: Path, only: str = "") -> TroubledCatalog:
    """Open the folder's catalog so that commits, of one table only, can meet with trouble."""
    catalog: Any = catalog_of(folder)
    through = catalog.commit_table
    catalog.troubles = iter(())

    def commit_table(table: Any, requirements: Any, updates: Any) -> Any:
        def commit() -> Any:
            return through(table, requirements, updates)

        name = table.name()[-1]
        trouble = next(catalog.troubles, None) if only in ("", name) else None
        return trouble(name, commit) if trouble else commit()

    catalog.commit_table = commit_table
    return catalog  # type: ignore[no-any-return]
