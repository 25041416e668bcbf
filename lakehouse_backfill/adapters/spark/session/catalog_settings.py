"""Derives Spark's catalog settings from PyIceberg's properties: one definition, two engines.

Pure: properties in, properties out. The promise is that both engines meet the same tables in the
same catalog; what has no counterpart on the other side is passed through under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

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
