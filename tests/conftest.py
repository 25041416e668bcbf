"""What every test folder shares. Fixtures of one kind of test live in that folder's conftest."""

from __future__ import annotations

import sys
from threading import Event

import pytest

from lakehouse_backfill import errors
from tests.support.quick_transactions import remember_metadata

pytest_plugins = ["pytester", "tests.gate_plugin", "tests.req_plugin"]


def pytest_collection_finish() -> None:
    """Make PyIceberg's transactions quick, where they are loaded. Users' programs keep them."""
    loaded = sys.modules.get("pyiceberg.table")
    if loaded is not None:
        remember_metadata(loaded.Transaction)


@pytest.fixture(autouse=True)
def _process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide texts of errors from a test on only: the package does it for a whole process."""
    monkeypatch.setattr(errors, "_hides_texts", Event())
