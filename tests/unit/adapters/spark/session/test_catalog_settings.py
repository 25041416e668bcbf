"""One catalog definition in PyIceberg's names gives Spark's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.iceberg.catalog import with_pyiceberg_settings
from lakehouse_backfill.adapters.spark.session import settings
from lakehouse_backfill.adapters.spark.session.settings import (
    ICEBERG_EXTENSIONS,
    JARS_VARIABLE,
    SparkSettings,
)
from lakehouse_backfill.domain.contract import Profile
from lakehouse_backfill.errors import ConfigError

WAIT = "?busy_timeout=30000&journal_mode=WAL"
CASES = [
    pytest.param(
        {"type": "sql", "uri": "sqlite:////a b/c.db?timeout=30", "warehouse": "file:///w"},
        {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:/a b/c.db{WAIT}",
            "jdbc.schema-version": "V1",
            "warehouse": "file:///w",
        },
        id="sqlite",
    ),
    pytest.param(
        {"uri": "postgresql+psycopg2://ann:p%40ss@db.local:5433/lake?sslmode=require"},
        {
            "type": "jdbc",
            "uri": "jdbc:postgresql://db.local:5433/lake?sslmode=require",
            "jdbc.user": "ann",
            "jdbc.password": "p@ss",
            "jdbc.schema-version": "V1",
        },
        id="postgresql with a secret",
    ),
    pytest.param(
        {
            "type": "rest",
            "uri": "http://host/api",
            "credential": "id:secret",
            "warehouse": "s3://lake",
            "s3.endpoint": "http://store",
            "s3.access-key-id": "k",
            "s3.secret-access-key": "s",
            "s3.region": "eu-1",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        },
        {
            "type": "rest",
            "uri": "http://host/api",
            "credential": "id:secret",
            "warehouse": "s3://lake",
            "s3.endpoint": "http://store",
            "s3.access-key-id": "k",
            "s3.secret-access-key": "s",
            "s3.path-style-access": "true",
            "client.region": "eu-1",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        },
        id="rest on s3",
    ),
    pytest.param(
        {"type": "hive", "uri": "thrift://host:9083", "warehouse": "s3://lake",
         "s3.endpoint": "https://store", "s3.force-virtual-addressing": "true"},
        {
            "type": "hive",
            "uri": "thrift://host:9083",
            "warehouse": "s3://lake",
            "s3.endpoint": "https://store",
            "s3.path-style-access": "false",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        },
        id="hive, virtual hosts",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), CASES)
def test_spark_meets_the_same_catalog(given: dict[str, str], expected: dict[str, str]) -> None:
    assert settings.spark_catalog_properties(given) == {**expected, "cache-enabled": "false"}


@pytest.mark.parametrize(
    ("given", "word"),
    [({"type": "dynamodb"}, "dynamodb"), ({"type": "sql", "uri": "mysql://host/db"}, "mysql")],
)
def test_a_catalog_that_spark_cannot_open_is_refused(given: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        settings.spark_catalog_properties(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "sql", "uri": "sqlite:///x"}, ("iceberg-spark-runtime", "sqlite-jdbc")),
        ({"type": "sql", "uri": "postgresql://x"}, ("iceberg-spark-runtime", "postgresql")),
        ({"type": "rest", "warehouse": "s3://x"}, ("iceberg-spark-runtime", "iceberg-aws-bundle")),
        ({"type": "rest", "warehouse": "x"}, ("iceberg-spark-runtime",)),
    ],
)
def test_the_jars_follow_from_the_catalog(given: dict[str, str], expected: tuple[str, ...]) -> None:
    found = settings.maven_coordinates(given)
    assert len(found) == len(expected)
    assert all(word in one for word, one in zip(expected, found, strict=True))
    assert all(one.count(":") == 2 for one in found)


def settings_of(tmp_path: Path, **spark: str) -> SparkSettings:
    catalog = {"name": "lake", "type": "sql", "uri": "sqlite:///${project}/c.db"}
    return SparkSettings.from_profile(Profile(catalog=catalog, spark=spark), tmp_path)


@pytest.fixture(autouse=True)
def _no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "one.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(folder))


def test_the_project_folder_stands_in_for_its_placeholder(tmp_path: Path) -> None:
    uri = settings_of(tmp_path).options["spark.sql.catalog.lake.uri"]
    assert uri == f"jdbc:sqlite:{tmp_path}/c.db{WAIT}"


def test_a_profile_wins_except_for_what_safety_rests_on(tmp_path: Path) -> None:
    found = settings_of(
        tmp_path,
        **{
            "spark.driver.memory": "9g",
            "spark.sql.session.timeZone": "America/New_York",
            "spark.sql.ansi.enabled": "false",
            "spark.sql.catalog.lake.cache-enabled": "true",
            "spark.sql.extensions": "a.B",
        },
    ).options
    assert {
        "spark.driver.memory": "9g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.extensions": f"a.B,{ICEBERG_EXTENSIONS}",
    }.items() <= found.items()


@pytest.mark.parametrize("name", ["spark.wap.branch", "spark.wap.id"])
def test_session_wide_write_redirection_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        settings_of(tmp_path, **{name: "x"})


def test_a_local_session_takes_jars_from_its_class_path(tmp_path: Path) -> None:
    local, cluster = settings_of(tmp_path), settings_of(tmp_path, **{"spark.master": "yarn"})
    jar = str(tmp_path / "jars" / "one.jar")
    assert (local.is_local, local.options["spark.driver.extraClassPath"]) == (True, jar)
    assert (cluster.is_local, cluster.options["spark.jars"]) == (False, jar)


def test_a_named_folder_without_jars_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="holds no jars"):
        settings_of(tmp_path)


def test_spark_connect_needs_no_jars_here(tmp_path: Path) -> None:
    found = settings_of(tmp_path, **{"spark.remote": "sc://host:15002"})
    assert found.remote == "sc://host:15002"
    assert not {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"} & set(
        found.options
    )


def test_what_pyiceberg_reads_from_its_environment_reaches_spark_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY", "of the environment")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", "s3://other")
    monkeypatch.setenv("PYICEBERG_CATALOG__OTHER__S3__REGION", "mars")
    profile = Profile(catalog={"name": "lake", "uri": "http://c", "warehouse": "s3://lake"})
    found = SparkSettings.from_profile(with_pyiceberg_settings(profile), tmp_path).options
    prefix = "spark.sql.catalog.lake"
    assert found[f"{prefix}.s3.secret-access-key"] == "of the environment"
    assert found[f"{prefix}.warehouse"] == "s3://lake"
    assert f"{prefix}.client.region" not in found
