"""One Spark Connect server and one lake for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.spark.session.session import close_session, open_session
from lakehouse_backfill.domain.profile import Profile
from tests.stack.connect.server import SparkConnect
from tests.support.spark.declared import CATALOG
from tests.support.spark.restating import RestateLab

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def remote(place: Path) -> Iterator[str]:
    """The address of a server."""
    folder = place / "connect"
    folder.mkdir()
    made = SparkConnect(folder)
    yield made.uri
    made.stop()


@pytest.fixture(scope="session")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake's folder has a space in its name on purpose."""
    folder = tmp_path_factory.mktemp("connect") / "my lake"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def profile(remote: str) -> Profile:
    return Profile(catalog=CATALOG, spark={"spark.remote": remote})


@pytest.fixture(scope="session")
def spark(profile: Profile, lake_folder: Path) -> Iterator[SparkSession]:
    """The program's own session: a process has one, on one catalog."""
    yield open_session(profile, lake_folder)
    close_session()


@pytest.fixture(scope="session")
def catalog(profile: Profile, lake_folder: Path) -> Catalog:
    return open_catalog(profile, lake_folder, must_exist=False)


@pytest.fixture
def lab(remote: str, lake_folder: Path, spark: SparkSession) -> Iterator[RestateLab]:
    made = RestateLab(lake_folder, {"spark.remote": remote})
    yield made
    made.forget()
