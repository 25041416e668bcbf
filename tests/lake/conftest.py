"""One Spark session and one embedded lake for all tests of this folder; a namespace per test.

The lake's folder has a space in its name on purpose.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.domain.profile import Profile
from tests.support.spark.declared import QUICK_JAVA
from tests.support.spark.lake import COPY_JOB, Lake, PlanMaker
from tests.support.spark.modes import Make, Modes
from tests.turn_plugin import mark_folder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

__all__ = ["Lake", "PlanMaker"]

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tests with Spark each turn runs a sixth."""
    mark_folder(items, Path(__file__).parent, 6)


@pytest.fixture(scope="session")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embedded") / "my lake"


@pytest.fixture(scope="session")
def profile(lake_folder: Path) -> Profile:
    lake_folder.mkdir()
    return Profile(
        catalog={
            "name": "lake",
            "type": "sql",
            "uri": "sqlite:///${project}/catalog.db?timeout=30",
            "warehouse": "file://${project}/warehouse",
        },
        spark={
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            # Small queries cost more to compile and to plan anew than to run. The demo, the
            # restatement that chaos tests repeat, and Spark Connect keep the defaults.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
        },
    )


@pytest.fixture(scope="session")
def spark(profile: Profile, lake_folder: Path) -> Iterator[SparkSession]:
    from lakehouse_backfill.adapters.spark.session.session import close_session, open_session

    yield open_session(profile, lake_folder)
    close_session()


@pytest.fixture(scope="session")
def catalog(profile: Profile, lake_folder: Path) -> Catalog:
    from pyiceberg.catalog import load_catalog

    properties = {
        key: value.replace("${project}", str(lake_folder)) for key, value in profile.catalog.items()
    }
    return load_catalog(properties.pop("name"), **properties)


@pytest.fixture
def isolation() -> str:
    """Where runs write; a test may have both kinds as its parameter."""
    return "clone"


@pytest.fixture
def lake(
    spark: SparkSession,
    catalog: Catalog,
    profile: Profile,
    lake_folder: Path,
    tmp_path: Path,
    isolation: str,
) -> Lake:
    namespace = f"t{next(_numbers)}"
    spark.sql(f"CREATE NAMESPACE lake.{namespace}")
    profile = profile.model_copy(update={"isolation": isolation})
    return Lake(spark, catalog, profile, lake_folder, tmp_path, namespace)


@pytest.fixture
def daily(lake: Lake) -> Callable[..., PlanMaker]:
    """Give a maker of plans; tables src, out and shadow exist, src and out hold ten days."""

    def make(job: str = COPY_JOB, **options: Any) -> PlanMaker:
        lake.job(job)
        for short, factor in (("src", 1), ("out", 100), ("shadow", 100)):
            lake.create_daily(short, factor)
        return PlanMaker(lake, **options)

    return make


@pytest.fixture
def make(lake: Lake) -> Make:
    """Give a maker of projects over a product with tenants and versions."""
    return partial(Modes, lake)
