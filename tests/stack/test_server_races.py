"""The rules of `tests/chaos/test_publish_races.py`, on catalogs of servers, in one round each."""

from __future__ import annotations

import pytest

from tests.chaos.test_publish_races import *  # noqa: F403 (the same tests, not a copy of them)
from tests.chaos.test_publish_races import BEGUN, DECIDED, LOOKED, pairs  # noqa: F401 (a fixture)
from tests.stack.kill_lab import ServerLab, ServerLabs


@pytest.fixture(scope="module", params=["postgres", "rest"])
def labs(request: pytest.FixtureRequest, server_labs: ServerLabs) -> list[ServerLab]:
    return [server_labs.of(request.param)]


@pytest.fixture
def lab(labs: list[ServerLab]) -> ServerLab:
    return labs[0]


@pytest.fixture(scope="module")
def rounds() -> dict[str, int]:
    """One round each: SQLite has many."""
    return {LOOKED: 1, DECIDED: 1, BEGUN: 1}
