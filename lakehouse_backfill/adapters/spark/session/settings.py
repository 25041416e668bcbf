"""Session and catalog settings from one profile.

Derives Spark's catalog settings from PyIceberg's properties: one definition, two engines.

Pure: properties in, properties out. The promise is that both engines meet the same tables in the
same catalog; what has no counterpart on the other side is passed through under its own name.

Everything that a Spark session is started with, derived from one profile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from lakehouse_backfill.domain.contract import Profile
from lakehouse_backfill.errors import ConfigError

ICEBERG_VERSION = "1.12.0"
ICEBERG_COORDINATES = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG_VERSION}"
SQLITE_COORDINATES = "org.xerial:sqlite-jdbc:3.54.1.0"
POSTGRESQL_COORDINATES = "org.postgresql:postgresql:42.7.7"
AWS_COORDINATES = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}"

#: Properties that only PyIceberg reads, or that are translated below.
_NOT_FOR_SPARK = ("name", "type", "py-io-impl", "py-catalog-impl", "echo", "pool_pre_ping")
_LOCK_TIMEOUT_MS = 30_000


def expand_project_folder(catalog: Mapping[str, str], project: Path) -> dict[str, str]:
    """Replace `${project}` in every property by the project's absolute folder."""
    folder = str(project.resolve())
    return {key: value.replace("${project}", folder) for key, value in catalog.items()}


def spark_catalog_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Give the properties of Iceberg's `SparkCatalog` for PyIceberg's (already resolved).

    Raises ConfigError when the catalog's type or uri has no counterpart in Spark.
    """
    kind = catalog_type(properties)
    if kind not in ("sql", *_SHARED_CATALOG_TYPES):
        raise ConfigError(
            f"catalog type {kind!r} is not known to Spark",
            fix=f"use one of {', '.join(_SHARED_CATALOG_TYPES)}, sql in the profile's catalog",
        )
    rest = {
        key: value
        for key, value in properties.items()
        if key not in _NOT_FOR_SPARK and not key.startswith(("s3.", "client."))
    }
    # A cached table shows old data to a session for as long as it keeps reading (pitfall 45).
    own = _jdbc_catalog_properties(properties) if kind == "sql" else {"type": kind}
    return {**rest, **own, **_object_store_properties(properties), "cache-enabled": "false"}


def maven_coordinates(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Name the Maven artifacts, with exact versions, that the catalog and its store need."""
    uri = properties.get("uri", "")
    wanted = [ICEBERG_COORDINATES]
    if catalog_type(properties) == "sql":
        wanted.append(SQLITE_COORDINATES if uri.startswith("sqlite") else POSTGRESQL_COORDINATES)
    if _uses_s3(properties):
        wanted.append(AWS_COORDINATES)
    return tuple(wanted)


def catalog_type(properties: Mapping[str, str]) -> str:
    """Give the catalog's type, guessed from the uri as PyIceberg does when it is absent."""
    kind = properties.get("type")
    if kind:
        return kind.lower()
    scheme = properties.get("uri", "").split(":", 1)[0].split("+", 1)[0]
    guesses = {"http": "rest", "https": "rest", "thrift": "hive"}
    return guesses.get(scheme, "sql" if scheme in ("sqlite", "postgresql") else "rest")


def jdbc_settings(uri: str) -> dict[str, str]:
    """Translate an SQLAlchemy uri into JDBC's, with user and password as properties of their own.

    Raises ConfigError for a database that is neither SQLite nor PostgreSQL.
    """
    scheme = uri.split(":", 1)[0].split("+", 1)[0]
    if scheme == "sqlite":
        return {"uri": _sqlite_uri(uri)}
    if scheme in ("postgresql", "postgres"):
        return _postgresql_settings(uri)
    raise ConfigError(
        f"the SQL catalog's uri has scheme {scheme!r}, which Spark's JDBC catalog cannot open here",
        fix="use sqlite:////absolute/file.db or postgresql+psycopg2://user:password@host/database",
    )


def _sqlite_uri(uri: str) -> str:
    """Both engines wait for the other's lock; WAL lets readers pass a writer.

    The waits that the drivers come with (3 s and 5 s) end in "Unknown failure" and "database is
    locked" while the other engine commits.
    """
    path = uri.split(":///", 1)[-1].split("?", 1)[0]
    return f"jdbc:sqlite:{Path(path).absolute()}?busy_timeout={_LOCK_TIMEOUT_MS}&journal_mode=WAL"


def _postgresql_settings(uri: str) -> dict[str, str]:
    parts = urlsplit(uri)
    place = parts.hostname or "localhost"
    port = f":{parts.port}" if parts.port else ""
    query = f"?{parts.query}" if parts.query else ""
    found = {"uri": f"jdbc:postgresql://{place}{port}{parts.path}{query}"}
    secrets = dict(parse_qsl(parts.query))
    user, password = parts.username or secrets.get("user"), parts.password
    if user:
        found["jdbc.user"] = unquote(user)
    if password:
        found["jdbc.password"] = unquote(password)
    return found


def _jdbc_catalog_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """V1 of the schema is what PyIceberg writes, and it can hold views."""
    return {"type": "jdbc", "jdbc.schema-version": "V1", **jdbc_settings(properties["uri"])}


#: Catalogs whose properties have the same names on both sides.
_SHARED_CATALOG_TYPES = ("glue", "hive", "rest")


def _uses_s3(properties: Mapping[str, str]) -> bool:
    warehouse = properties.get("warehouse", "")
    return warehouse.startswith(("s3:", "s3a:")) or any(key.startswith("s3.") for key in properties)


def _object_store_properties(properties: Mapping[str, str]) -> dict[str, str]:
    if not _uses_s3(properties):
        return {}
    renamed = {"s3.region": "client.region"}
    python_only = ("s3.force-virtual-addressing", "s3.connect-timeout", "s3.request-timeout")
    found = {
        renamed.get(key, key): value
        for key, value in properties.items()
        if key.startswith(("s3.", "client.")) and key not in python_only
    }
    found["io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    if "s3.endpoint" in found:
        virtual = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
        found.setdefault("s3.path-style-access", "false" if virtual else "true")
    return found


ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS_VARIABLE = "LAKEHOUSE_BACKFILL_JARS"
_REPOSITORY_ROOT = Path(__file__).resolve().parents[4]

#: What a run's safety or the meaning of stored checksums rests on; a profile cannot change it.
_FIXED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.defaultCatalog": "spark_catalog",
}
_DEFAULTS = {
    "spark.app.name": "lakehouse-backfill",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    # Off: it walks the Python stack for every column expression.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: A small machine pays for every empty shuffle partition; a cluster's own default is better there.
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
#: Session-wide write-audit-publish settings would send every write somewhere else (pitfall 22).
_REFUSED = ("spark.wap.branch", "spark.wap.id")


@dataclass(frozen=True)
class SparkSettings:
    """The settings of one session: `catalog` is the name under which the lake's tables stand."""

    catalog: str
    options: Mapping[str, str]

    @property
    def remote(self) -> str | None:
        """The address of a Spark Connect server, or None for a session of this process."""
        return self.options.get("spark.remote")

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are this machine's one process."""
        return self.remote is None and self.options["spark.master"].startswith("local")

    @staticmethod
    def from_profile(profile: Profile, project: Path) -> SparkSettings:
        """Derive the settings; the profile's own win except where safety rests on ours.

        Raises ConfigError when the catalog has no counterpart in Spark, or a setting is refused.
        """
        refused = [key for key in _REFUSED if key in profile.spark]
        if refused:
            raise ConfigError(
                f"profile sets {', '.join(refused)}, which would redirect every write",
                fix="remove it from the profile's spark settings",
            )
        properties = expand_project_folder(profile.catalog, project)
        name = properties.get("name", "lake")
        own = expand_project_folder(profile.spark, project)
        options = {**_DEFAULTS, **own, **_FIXED, **_catalog_options(name, properties)}
        options["spark.sql.extensions"] = _extensions(own)
        settings = SparkSettings(catalog=name, options=options)
        if settings.remote is None:
            options = {**options, **_jar_settings(settings, properties, project)}
        if settings.is_local:
            options = {**_LOCAL_DEFAULTS, **options}
        return SparkSettings(catalog=name, options=options)


def _catalog_options(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}"
    derived = spark_catalog_properties(properties)
    options = {f"{prefix}.{key}": value for key, value in derived.items()}
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **options}


def _extensions(own: Mapping[str, str]) -> str:
    wanted = [part for part in own.get("spark.sql.extensions", "").split(",") if part]
    return ",".join(dict.fromkeys([*wanted, ICEBERG_EXTENSIONS]))


def _jar_settings(
    settings: SparkSettings, properties: Mapping[str, str], project: Path
) -> dict[str, str]:
    """Use the jars of a folder when there is one, else let Spark fetch exact coordinates."""
    if {"spark.jars", "spark.jars.packages"} & set(settings.options):
        return {}
    jars = find_local_jars(project)
    if not jars:
        return {"spark.jars.packages": ",".join(maven_coordinates(properties))}
    if not settings.is_local:
        return {"spark.jars": ",".join(map(str, jars))}
    # On the class path a local session neither copies the jars nor opens a second class loader.
    own = settings.options.get("spark.driver.extraClassPath")
    parts = [*([own] if own else []), *map(str, jars)]
    return {"spark.driver.extraClassPath": os.pathsep.join(parts)}


def find_local_jars(project: Path, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Find the jars of `LAKEHOUSE_BACKFILL_JARS`, of the project's or the clone's `.tools/jars`."""
    env = os.environ if environ is None else environ
    named = env.get(JARS_VARIABLE)
    folders = (
        [Path(named)]
        if named
        else [project / ".tools" / "jars", _REPOSITORY_ROOT / ".tools" / "jars"]
    )
    for folder in folders:
        jars = tuple(sorted(folder.resolve().glob("*.jar")))
        if jars:
            return jars
    if named:
        raise ConfigError(f"{JARS_VARIABLE} names {named}, which holds no jars", fix="correct it")
    return ()
