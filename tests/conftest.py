"""What every test folder shares. Fixtures of one kind of test live in that folder's conftest."""

from __future__ import annotations

import sys

from tests.support.quick_transactions import remember_metadata

pytest_plugins = ["pytester", "tests.gate_plugin", "tests.req_plugin"]


def pytest_collection_finish() -> None:
    """Make PyIceberg's transactions quick, where they are loaded. Users' programs keep them."""
    loaded = sys.modules.get("pyiceberg.table")
    if loaded is not None:
        remember_metadata(loaded.Transaction)
