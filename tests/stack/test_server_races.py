"""The rules of `tests/chaos/test_publish_races.py`, on catalogs of servers, in one round each."""

from __future__ import annotations

import pytest

from tests.chaos.test_publish_races import *  # noqa: F403 (the same tests, not a copy of them)
from tests.chaos.test_publish_races import BEGUN, DECIDED, LOOKED, pairs  # noqa: F401 (a fixture)
from tests.stack.kill_lab import ServerLab, ServerLabs

#: Emulated ones share a catalog and its states: each has the races that meet at one of the places.
_EMULATED = {LOOKED: "lakekeeper", DECIDED: "polaris"}


@pytest.fixture(scope="module", params=["postgres", "rest", "emulated"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def labs(kind: str, server_labs: ServerLabs) -> list[ServerLab]:
    return [server_labs.of("lakekeeper" if kind == "emulated" else kind)]


@pytest.fixture
def lab(
    request: pytest.FixtureRequest, kind: str, labs: list[ServerLab], server_labs: ServerLabs
) -> ServerLab:
    if kind == "emulated":
        point = request.node.callspec.params.get("point", DECIDED)
        return server_labs.of(_EMULATED[point])
    return labs[0]


@pytest.fixture(scope="module")
def rounds() -> dict[str, int]:
    """One round each: SQLite has many."""
    return {LOOKED: 1, DECIDED: 1, BEGUN: 1}
