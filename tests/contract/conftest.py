"""Lakes that several suites use: a catalog for the cases of the differ, a lake with one run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse_backfill import fault_points
from tests.chaos.lab import Lab
from tests.contract.differ_cases import Built, Case, Maker
from tests.support.lakes.tables import Kit
from tests.support.lakes.verified import published
from tests.turn_plugin import mark_folder

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the long tests each turn runs a third."""
    mark_folder(items, Path(__file__).parent, only="long")


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    fault_points.install_hook(None)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


@pytest.fixture
def days(kit: Kit) -> Kit:
    """A table by day with three days of one row each, in one manifest."""
    kit.create_days()
    return kit


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> SqlCatalog:
    folder = tmp_path_factory.mktemp("catalog")
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


@pytest.fixture
def make(catalog: SqlCatalog) -> Maker:
    """A namespace of its own."""
    return Maker(catalog, f"n{next(_numbers)}")


@pytest.fixture(scope="module")
def kept(catalog: SqlCatalog) -> Callable[[Case], Built]:
    """Give a case's tables, which are made once for all tests: a diff changes nothing."""
    made: dict[str, Built] = {}

    def build(case: Case) -> Built:
        if case.name not in made:
            made[case.name] = case.build(Maker(catalog, f"kept{len(made)}"))
        return made[case.name]

    return build


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return published(tmp_path_factory.mktemp("published"))


@pytest.fixture
def lab(saved: Lab) -> Lab:
    """A lake on which one run was published."""
    saved.restore("published")
    return saved
