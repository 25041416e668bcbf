"""Real servers for the whole session, and the catalogs on them that tests use."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.catalogs import Catalogs
from tests.stack.kill_lab import ServerLabs
from tests.stack.servers import Kafka, Postgres, Rest, Seaweed
from tests.support.lakes.catalogs import NAMES_CATALOG
from tests.turn_plugin import mark_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tests with servers each turn runs a sixth."""
    mark_folder(items, Path(__file__).parent, 6)


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A folder that another user can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="lhb-stack-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(place: Path) -> Iterator[Postgres]:
    folder = place / "postgres"
    folder.mkdir()
    made = Postgres(folder)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    # In memory where tests' folders are: each of its commits to SQLite waits for the disk.
    made = Rest(tmp_path_factory.mktemp("rest"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def kafka(place: Path) -> Iterator[Kafka]:
    folder = place / "kafka"
    folder.mkdir()
    made = Kafka(folder)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def seaweed(place: Path) -> Iterator[Seaweed]:
    folder = place / "seaweed"
    folder.mkdir()
    made = Seaweed(folder)
    yield made
    made.stop()


@pytest.fixture
def catalogs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalogs]:
    """Makes catalogs for one test; a server starts when the first test asks for it."""
    made = Catalogs(request, tmp_path, f"t{uuid.uuid4().hex[:12]}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def server_labs(
    postgres: Postgres, rest: Rest, seaweed: Seaweed,
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerLabs]:  # fmt: skip
    """Labs in which whole commands are killed and race, shared by all tests about that.

    It names the servers, so that they stop after it.
    """
    made = ServerLabs(request, tmp_path_factory.mktemp)
    yield made
    made.close()


@pytest.fixture
def named(tmp_path: Path, catalogs: Catalogs):
    """Let the test's folder mean the catalog of this kind."""

    def name(kind: str) -> dict[str, str]:
        properties = catalogs.make(kind)
        (tmp_path / NAMES_CATALOG).write_text(json.dumps(properties), encoding="utf-8")
        return properties

    return name
