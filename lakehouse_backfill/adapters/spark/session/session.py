"""Opens the one Spark session of this process: local, on a cluster, or on a Spark Connect server.

With `commits/java_api.py` the only module that uses the Spark context or its gateway. A Spark
Connect server is started by others: settings that it takes only at its start are not sent to it.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.session import spark_log
from lakehouse_backfill.adapters.spark.session.java import JavaRuntime, require_java
from lakehouse_backfill.adapters.spark.session.settings import (
    ICEBERG_EXTENSIONS,
    SparkSettings,
    may_hold_secret,
)
from lakehouse_backfill.adapters.spark.session.spark_errors import hide_texts, spark_errors
from lakehouse_backfill.domain.contract import Profile
from lakehouse_backfill.errors import BackfillError, Blocked, ConfigError, EnvironmentDown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: How long a server may take for its first answer; PySpark itself retries for ten minutes.
_CONNECT_TIMEOUT_S = 20.0
#: Settings that a server takes only when it starts.
_STATIC_SETTINGS = ("spark.sql.extensions", "spark.sql.catalogImplementation")


def connect_to_server(settings: SparkSettings) -> SparkSession:
    """Open a session on the server; only settings that a running session may change are sent.

    Raises ConfigError when the profile names no server, or when the server does not apply a
    setting; EnvironmentDown when it does not answer, or when the client's packages are missing.
    """
    address = settings.remote or ""
    _require_address(address)
    _require_client()
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote(address)
    runtime_settings = {
        key: value
        for key, value in settings.options.items()
        if key.startswith("spark.sql.") and key not in _STATIC_SETTINGS
    }
    for key, value in runtime_settings.items():
        builder = builder.config(key, value)
    try:
        _require_reachable(address)
        session: SparkSession = builder.getOrCreate()
        _require_settings_applied(address, session, runtime_settings)
    except BackfillError:
        raise
    except Exception as error:
        cause = str(error) or f"nothing came in {_CONNECT_TIMEOUT_S:g} s"
        raise EnvironmentDown(
            f"Spark Connect at {address} does not answer: {cause}",
            fix="start the server, or correct spark.remote in the profile",
        ) from error
    return session


def check_server(session: SparkSession, catalog: str) -> str:
    """List the catalog on the server, return its version; raise Blocked without SQL extensions."""
    from lakehouse_backfill.adapters.spark.dataframes import quote_identifier

    with spark_errors("asking Spark Connect for the catalog"):
        session.sql(f"SHOW NAMESPACES IN {quote_identifier(catalog)}").collect()
        extensions = str(session.conf.get("spark.sql.extensions", ""))
    if ICEBERG_EXTENSIONS not in extensions:
        raise Blocked(
            "the server was started without Iceberg's SQL extensions: no tags can be set there",
            fix=f"start it with --conf spark.sql.extensions={ICEBERG_EXTENSIONS}",
        )
    return f"Spark {session.version} answers, and reads catalog {catalog}"


def _require_address(address: str) -> None:
    if not address.startswith("sc://"):
        # PySpark would accept the name of a master and start a server of its own, without our jars.
        raise ConfigError(
            f"spark.remote is {address!r}, which names no Spark Connect server",
            fix="write sc://HOST:PORT; for a Spark of this process set spark.master instead",
        )


def _require_client() -> None:
    """Raise EnvironmentDown when packages of PySpark's extra `connect` are missing."""
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
    """Raise ConfigError for a setting that was not applied: PySpark ignores refused settings."""
    differing = [key for key, value in wanted.items() if session.conf.get(key, None) != value]
    if differing:
        raise ConfigError(
            f"Spark Connect at {address} keeps its own {', '.join(differing)}",
            fix="start the server with these settings, or remove them from the profile",
        )


_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
#: Variables that another Spark on the machine may set; each makes ours start the wrong program.
_STALE = (
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_DRIVER_PYTHON_OPTS",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_API_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_DIST_CLASSPATH",
    "SPARK_ENV_LOADED",
    "SPARK_REMOTE",
    "SPARK_TESTING",
)
_LOCK = threading.Lock()
_OPEN_SESSIONS: dict[str, SparkSession] = {}
_sessions_opened = 0


def open_session(profile: Profile, project: Path) -> SparkSession:
    """Return this process's Spark session, started on the first call.

    Spark's output goes to a log file, so that only results reach the terminal. Raises JavaMissing
    without Java 17 or 21, EnvironmentDown when Spark does not start or answer, and ConfigError when
    the process already has a session on another catalog.
    """
    global _sessions_opened  # One session at a time; objects of an earlier session are invalid.
    settings = SparkSettings.from_profile(profile, project)
    with _LOCK:
        session = _OPEN_SESSIONS.get("session")
        if session is None:
            _silence_query_loggers()
            for name in _STALE:
                os.environ.pop(name, None)
            session = _start(settings) if settings.remote is None else connect_to_server(settings)
            _OPEN_SESSIONS["session"] = session
            _sessions_opened += 1
        else:
            _refuse_other_catalog(session, settings)
        return session


def is_session_open() -> bool:
    """Return whether this process has an open session."""
    return "session" in _OPEN_SESSIONS


def session_number() -> int:
    """Return the number of this process's current session; 0 while there is none."""
    return _sessions_opened if is_session_open() else 0


def close_session() -> None:
    """Stop this process's session, if there is one; the next `open_session` starts a new one."""
    with _LOCK:
        session = _OPEN_SESSIONS.pop("session", None)
    if session is not None:
        session.stop()
        _stop_java()


def _stop_java() -> None:
    """Stop the Java process too: PySpark would keep it and start the next session in it."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None


def _start(settings: SparkSettings) -> SparkSession:
    java = require_java()
    _set_environment(settings, java)
    log = spark_log.open_log()
    try:
        return _launch(_with_logging(settings, java), log)
    except BackfillError:
        raise
    except Exception as error:
        raise EnvironmentDown(
            f"Spark did not start: {error}\n{spark_log.last_lines()}",
            fix="lakehouse-backfill doctor",
        ) from error


def _launch(options: dict[str, str], log: IO[bytes]) -> SparkSession:
    """Start the JVM, then the session; what may hold a secret is set over the gateway.

    The command line of a process, and the JVM's performance data, are readable by other users.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    public = {key: text for key, text in options.items() if not may_hold_secret(key)}
    private = [(key, text) for key, text in options.items() if key not in public]
    conf = SparkConf(loadDefaults=False).setAll(list(public.items()))
    # Java and its Python workers inherit these files: their warnings never reach the terminal.
    gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    own = SparkConf(loadDefaults=True, _jvm=gateway.jvm).setAll(private)
    context = SparkContext(conf=own, gateway=gateway)
    context.setLogLevel("ERROR")
    return SparkSession.builder.getOrCreate()


def hide_values() -> None:
    """Keep values out of errors and logs of this process, which works on restricted columns.

    The texts of Spark's errors may quote a value, and Spark's own log repeats them for each task.
    Iceberg's errors stay in the log: they name files.
    """
    from pyspark import SparkContext

    hide_texts()
    context = SparkContext._active_spark_context
    jvm = None if context is None else context._jvm
    if jvm is not None:
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel("org.apache.spark", log4j.Level.OFF)


def _silence_query_loggers() -> None:
    """Silence the loggers that print every query error to stderr; PySpark also raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel("CRITICAL")


def _refuse_other_catalog(session: SparkSession, settings: SparkSettings) -> None:
    prefix = f"spark.sql.catalog.{settings.catalog}"
    for key in (f"{prefix}.uri", f"{prefix}.warehouse"):
        required = settings.options.get(key)
        if required is not None and session.conf.get(key, None) != required:
            raise ConfigError(
                f"this process already has a Spark session on another catalog ({key} differs)",
                fix="use one project and one profile in a process",
            )


def _set_environment(settings: SparkSettings, java: JavaRuntime) -> None:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentDown("pyspark is not installed", fix="pip install 'pyspark>=4.1,<4.2'")
    os.environ["SPARK_HOME"] = str(Path(spec.origin).parent)
    os.environ["JAVA_HOME"] = str(java.home)
    if settings.is_local:
        # The machine's name may not resolve; a cluster's defaults do not apply to this session.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.pop("SPARK_CONF_DIR", None)
    else:
        os.environ["PYSPARK_PYTHON"] = settings.options.get("spark.pyspark.python", "python3")


def _with_logging(settings: SparkSettings, java: JavaRuntime) -> dict[str, str]:
    key = "spark.driver.extraJavaOptions"
    quiet = f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"
    parts = (quiet, *java.options, settings.options.get(key, ""))
    return {**settings.options, key: " ".join(filter(None, parts))}


def analysed_plan_json(frame: DataFrame) -> str | None:
    """Return Catalyst's analysed plan of a frame as JSON.

    None on Spark Connect, and for a plan that is too deep for Spark to write it out.
    """
    from py4j.protocol import Py4JJavaError

    if not hasattr(frame, "_jdf"):
        return None
    analysed = frame._jdf.queryExecution().analyzed()
    try:
        return str(analysed.toJSON())
    except Py4JJavaError as error:
        if "StackOverflowError" in str(error):
            return None
        raise
