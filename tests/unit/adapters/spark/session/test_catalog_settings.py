"""One catalog definition in PyIceberg's names gives Spark's settings."""

from __future__ import annotations

import os
from pathlib import Path
from zipfile import ZipFile

import pytest

from lakehouse_backfill.adapters.iceberg.catalog import with_pyiceberg_settings
from lakehouse_backfill.adapters.spark.session import settings
from lakehouse_backfill.adapters.spark.session.read_guard import NO_EXTERNAL_XML
from lakehouse_backfill.adapters.spark.session.settings import (
    ICEBERG_EXTENSIONS,
    JARS_VARIABLE,
    SparkSettings,
)
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.onboarding import run_doctor
from lakehouse_backfill.results.proof import DoctorCheck
from lakehouse_backfill.wiring.adapters import Adapters
from lakehouse_backfill.wiring.engine import start_spark

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
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
            "rest.client.connection-timeout-ms": "10000",
            "rest.client.socket-timeout-ms": "60000",
        },
        id="rest on s3",
    ),
    pytest.param(
        {
            "uri": "https://host", "header.x-iceberg-access-delegation": "remote-signing",
            "rest.client.socket-timeout-ms": "900000",
        },
        {
            "type": "rest",
            "uri": "https://host",
            "header.x-iceberg-access-delegation": "remote-signing",
            "rest.client.connection-timeout-ms": "10000",
            "rest.client.socket-timeout-ms": "900000",
        },
        id="rest that signs for its clients",
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


@pytest.mark.parametrize(
    "uri", ["sqlite:////srv/c.db", "postgresql+psycopg2://ana:secret@host/lake"], ids=["a", "b"]
)
def test_a_uri_that_only_the_environment_has_reaches_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uri: str
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
    profile = Profile(catalog={"name": "lake", "type": "sql", "warehouse": "file:///srv/lake"})
    found = SparkSettings.from_profile(with_pyiceberg_settings(profile), tmp_path).options
    wanted = settings.jdbc_settings(uri)
    assert {name: found[f"spark.sql.catalog.lake.{name}"] for name in wanted} == wanted


def test_a_sql_catalog_without_any_uri_is_refused_with_the_variable_to_set(tmp_path: Path) -> None:
    profile = Profile(catalog={"name": "lake", "type": "sql"})
    with pytest.raises(ConfigError, match="no uri") as refused:
        SparkSettings.from_profile(profile, tmp_path)
    assert "PYICEBERG_CATALOG__NAME__URI" in refused.value.fix


POSTGRESQL = {"name": "lake", "type": "sql", "uri": "postgresql+psycopg2://host/lake"}


def own_jars(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> tuple[Path, ...]:
    """Put jars where the set-up of a project puts them."""
    monkeypatch.delenv(JARS_VARIABLE)
    place = folder / ".tools" / "jars"
    place.mkdir(parents=True)
    for name in names:
        (place / name).touch()
    return tuple(sorted(place.iterdir()))


def test_a_driver_that_the_jars_here_lack_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("iceberg-spark-runtime-4.1_2.13-1.12.0.jar", "sqlite-jdbc-3.54.1.0.jar")
    jars = own_jars(tmp_path, monkeypatch, *names)
    found = SparkSettings.from_profile(Profile(catalog=POSTGRESQL), tmp_path).options
    assert found["spark.jars.packages"] == settings.POSTGRESQL_COORDINATES
    assert found["spark.jars"] == ",".join(map(str, jars))
    assert "spark.driver.extraClassPath" not in found
    embedded = settings_of(tmp_path).options
    assert "spark.jars.packages" not in embedded
    assert embedded["spark.driver.extraClassPath"] == os.pathsep.join(map(str, jars))


def test_a_driver_is_found_by_its_class_in_a_jar_of_any_name(tmp_path: Path) -> None:
    jar = tmp_path / "all.jar"
    with ZipFile(jar, "w") as archive:
        archive.writestr("org/postgresql/Driver.class", b"")
    assert settings.missing_artifacts([jar], POSTGRESQL) == (settings.ICEBERG_COORDINATES,)


@pytest.mark.parametrize(
    ("catalog", "is_ok", "detail"),
    [
        ({"type": "sql", "uri": "sqlite:////c.db"}, True, "none here; Spark fetches"),
        (POSTGRESQL, True, settings.POSTGRESQL_COORDINATES),
    ],
    ids=["SQLite", "PostgreSQL"],
)
def test_doctor_names_the_jars_that_spark_will_fetch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    catalog: dict[str, str],
    detail: str,
    *,
    is_ok: bool,
) -> None:
    monkeypatch.delenv(JARS_VARIABLE)
    monkeypatch.setattr(settings, "_REPOSITORY_ROOT", tmp_path)
    check = doctor_row(tmp_path, catalog, "jars")
    assert check.ok is is_ok
    assert detail in check.detail


def test_doctor_says_which_driver_a_named_folder_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "named"
    folder.mkdir()
    (folder / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(folder))
    check = doctor_row(tmp_path, POSTGRESQL, "jars")
    assert (check.ok, settings.POSTGRESQL_COORDINATES in check.detail) == (False, True)
    assert check.fix == f"put it there, or unset {JARS_VARIABLE}: then Spark fetches it"


def doctor_row(folder: Path, catalog: dict[str, str], name: str) -> DoctorCheck:
    """Give what `doctor` says of one thing; the catalog itself does not answer here."""
    profile = Profile(catalog={"name": "lake", **catalog})
    rows = run_doctor(Adapters(folder, profile, NullProgress())).checks
    return next(row for row in rows if row.name == name)


@pytest.mark.req("O6")
@pytest.mark.parametrize(
    ("spark", "words"),
    [
        ({"spark.remote": "sc://h:1/;token=secret"}, "connecting to Spark at sc://h:1"),
        (
            {"spark.jars.packages": "a:b:1,c:d:2"},
            "starting Spark: a JVM; it downloads what it lacks of 2 packages of jars",
        ),
        ({"spark.jars": "a.jar"}, "starting Spark: a JVM with Iceberg's jars"),
    ],
)
def test_the_start_of_spark_says_what_makes_it_long(
    spark: dict[str, str], words: str, tmp_path: Path
) -> None:
    profile = Profile(catalog={"name": "lake", "uri": "sqlite:////c.db"}, spark=spark)
    assert settings.describe_start(profile, tmp_path) == words


@pytest.mark.req("O6")
def test_the_reason_is_said_before_anything_of_spark_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Told(NullProgress):
        def start(self, label: str, total: int, unit: str) -> None:
            said.append(label)

        def finish(self) -> None:
            said.append("finished")

    def refuse(*asked: object, **how: object) -> None:
        said.append("opened")
        raise ConfigError("no Spark here")

    monkeypatch.setattr("lakehouse_backfill.adapters.spark.session.session.open_session", refuse)
    profile = Profile(catalog={"name": "lake"}, spark={"spark.jars": "a.jar"})
    with pytest.raises(ConfigError, match="no Spark here"):
        start_spark(profile, tmp_path, Told())
    assert said == ["starting Spark: a JVM with Iceberg's jars", "opened", "finished"]


@pytest.mark.req("E7")
@pytest.mark.parametrize("master", ["local", "local[4]"])
def test_a_local_session_for_restricted_columns_leaves_no_dump_and_no_readable_scratch(
    master: str, tmp_path: Path
) -> None:
    profile = Profile(catalog=POSTGRESQL, spark={"spark.master": master})
    plain = SparkSettings.from_profile(profile, tmp_path)
    assert settings.loud_executor_settings(plain.options.get) == ()
    assert dict(plain.without_values().options) == {
        **plain.options,
        "spark.io.encryption.enabled": "true",
        "spark.driver.extraJavaOptions": f"{NO_EXTERNAL_XML} -XX:+SuppressFatalErrorMessage "
        "-XX:-CreateCoredumpOnCrash -XX:-HeapDumpOnOutOfMemoryError",
    }


@pytest.mark.req("E7")
@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,512]"])
def test_executors_of_their_own_start_without_logs_whatever_the_profile_says(
    master: str, tmp_path: Path
) -> None:
    own = {
        "spark.master": master, "spark.log.level": "DEBUG",
        "spark.executor.extraJavaOptions": "-Dlog4j2.configurationFile=mine -Xss4m",
    }  # fmt: skip
    plain = SparkSettings.from_profile(Profile(catalog=POSTGRESQL, spark=own), tmp_path)
    assert len(settings.loud_executor_settings(plain.options.get)) == 3
    silent = plain.without_values().options
    assert settings.loud_executor_settings(silent.get) == ()
    assert silent["spark.executor.extraJavaOptions"].startswith(
        f"-Dlog4j2.configurationFile=mine -Xss4m {NO_EXTERNAL_XML} "
        "-Dlog4j2.configurationFile=classpath:"
    )
    assert silent["spark.log.level"] == "OFF"


@pytest.mark.parametrize("master", ["local[4]", "spark://host:7077"])
def test_a_local_session_for_few_rows_has_one_compiler_unless_the_profile_says_otherwise(
    master: str, tmp_path: Path
) -> None:
    key, own = "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=4"
    profile = Profile(catalog=POSTGRESQL, spark={"spark.master": master, key: own})
    plain = SparkSettings.from_profile(profile, tmp_path)
    few = plain.for_rows(2_000_000)
    assert plain.for_rows(2_000_001) == plain
    if master.startswith("spark:"):
        assert few == plain.for_rows(1) == plain
        return
    ours = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xmn400m"
    # Of two options, Java takes the last.
    assert dict(few.options) == {**plain.options, key: f"{ours} {plain.options[key]}"}
    assert own in plain.options[key]


@pytest.mark.parametrize(
    "own", [{"spark.driver.extraJavaOptions": "-XX:+UseZGC"}, {"spark.driver.memory": "512m"},
            {"spark.driver.extraJavaOptions": "-Xmn1g"}],
)  # fmt: skip
def test_the_heap_of_a_profile_is_left_as_it_is(own: dict[str, str], tmp_path: Path) -> None:
    profile = Profile(catalog=POSTGRESQL, spark={"spark.master": "local[2]", **own})
    few = SparkSettings.from_profile(profile, tmp_path).for_rows(1).options
    assert "SerialGC" not in few["spark.driver.extraJavaOptions"]
    assert "-Xmn400m" not in few["spark.driver.extraJavaOptions"]


def test_tiny_queries_are_interpreted_unless_the_profile_says_otherwise(tmp_path: Path) -> None:
    own = {"spark.sql.codegen.wholeStage": "true", "spark.sql.shuffle.partitions": "3"}
    profile = Profile(catalog=POSTGRESQL, spark={"spark.master": "local[2]", **own})
    plain = SparkSettings.from_profile(profile, tmp_path)
    assert "spark.sql.codegen.factoryMode" not in plain.for_rows(20_001).options
    tiny = plain.for_rows(20_000).options
    assert tiny["spark.sql.codegen.factoryMode"] == "NO_CODEGEN"
    assert tiny["spark.sql.adaptive.enabled"] == "false"
    assert {key: tiny[key] for key in own} == own
