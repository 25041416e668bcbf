"""Reaches a Spark Connect server: a Spark that others started, with settings of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quote_identifier
from lakehouse_backfill.adapters.spark.session.settings import ICEBERG_EXTENSIONS, SparkSettings
from lakehouse_backfill.errors import BackfillError, Blocked, ConfigError, EnvironmentDown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: So long may a server take to answer at first; PySpark itself would try for ten minutes.
_CONNECT_TIMEOUT_S = 20.0
#: What a server is started with, and refuses later.
_STATIC_SETTINGS = ("spark.sql.extensions", "spark.sql.catalogImplementation")


def connect_to_server(settings: SparkSettings) -> SparkSession:
    """Open a session on the server: only what a running session may change is sent to it.

    Raises ConfigError when the profile names no server, or the server keeps a setting of its own;
    EnvironmentDown when it does not answer, or the client's packages are missing.
    """
    address = settings.remote or ""
    _require_address(address)
    _require_client()
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote(address)
    wanted = _runtime_settings(settings)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        _require_reachable(address)
        session: SparkSession = builder.getOrCreate()
        _require_settings_applied(address, session, wanted)
    except BackfillError:
        raise
    except Exception as error:
        raise EnvironmentDown(
            f"Spark Connect at {address} does not answer: {_connect_error_text(error)}",
            fix="start the server, or correct spark.remote in the profile",
        ) from error
    return session


def check_server(session: SparkSession, catalog: str) -> str:
    """Say what answers, once it has listed the catalog; raises Blocked without SQL extensions."""
    with spark_errors("asking Spark Connect for the catalog"):
        session.sql(f"SHOW NAMESPACES IN {quote_identifier(catalog)}").collect()
        extensions = str(session.conf.get("spark.sql.extensions", ""))
    if ICEBERG_EXTENSIONS not in extensions:
        raise Blocked(
            "the server was started without Iceberg's SQL extensions: no tags can be set there",
            fix=f"start it with --conf spark.sql.extensions={ICEBERG_EXTENSIONS}",
        )
    return f"Spark {session.version} answers, and reads catalog {catalog}"


def _runtime_settings(settings: SparkSettings) -> dict[str, str]:
    return {
        key: value
        for key, value in settings.options.items()
        if key.startswith("spark.sql.") and key not in _STATIC_SETTINGS
    }


def _require_address(address: str) -> None:
    if not address.startswith("sc://"):
        # PySpark would take the name of a master, and start a server of its own, without our jars.
        raise ConfigError(
            f"spark.remote is {address!r}, which names no Spark Connect server",
            fix="write sc://HOST:PORT; for a Spark of this process set spark.master instead",
        )


def _require_client() -> None:
    """Raise EnvironmentDown where PySpark lacks what its extra `connect` names."""
    try:
        import_module("pyspark.sql.connect.session")
    except ImportError as error:
        raise EnvironmentDown(
            f"the client of Spark Connect is not whole: {error}",
            fix="pip install 'lakehouse-backfill[connect]'",
        ) from error


def _require_reachable(address: str) -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel: Any = DefaultChannelBuilder(address).toChannel()
    try:
        import_module("grpc").channel_ready_future(channel).result(timeout=_CONNECT_TIMEOUT_S)
    finally:
        channel.close()


def _require_settings_applied(address: str, session: SparkSession, wanted: dict[str, str]) -> None:
    """Compare with what was asked for: PySpark passes over settings that a server refuses."""
    others = [key for key, value in wanted.items() if session.conf.get(key, None) != value]
    if others:
        raise ConfigError(
            f"Spark Connect at {address} keeps its own {', '.join(others)}",
            fix="start the server with these settings, or remove them from the profile",
        )


def _connect_error_text(error: Exception) -> str:
    return str(error) or f"nothing came in {_CONNECT_TIMEOUT_S:g} s"
