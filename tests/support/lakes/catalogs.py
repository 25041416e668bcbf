"""Which catalog a test's folder means: SQLite, or the one that a file in the folder names.

The tests with real servers (`tests/stack`) put that file there, and run these same suites on it. It
is a file, so that processes that a test starts find it too.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.domain.contract import Profile

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
