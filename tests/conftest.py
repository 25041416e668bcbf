"""What every test folder shares. Fixtures of one kind of test live in that folder's conftest."""

from __future__ import annotations

import atexit
import gc
import sys
from threading import Event

import pytest
from hypothesis import settings

from lakehouse_backfill import errors, fault_points
from tests.support.quick_commands import build_once
from tests.support.quick_pyiceberg import make_quick

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

pytest_plugins = ["pytester", "tests.gate_plugin", "tests.req_plugin", "tests.turn_plugin"]


def pytest_collection_finish() -> None:
    """Make PyIceberg and typer quick, where they are loaded. Users' programs keep them."""
    build_once()
    if "pyiceberg.table" in sys.modules:
        make_quick()
    # What is loaded by now stays. To look through it again and again was a twentieth of the
    # processor time of tests on a lake.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.unfreeze)


@pytest.fixture(autouse=True)
def _process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test as a process of its own: texts are shown, and nothing was committed yet."""
    monkeypatch.setattr(errors, "_hides_texts", Event())
    fault_points.forget_commits()
