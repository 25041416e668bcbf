"""Opens the one Spark session of this process: local, on a cluster, or on a Spark Connect server.

`jvm.py` starts the JVM. With it, `commits/java_api.py` and `warm_jvm.py` the only module that uses
the Spark context or its gateway. A Spark Connect server is started by others: settings that it
takes only at its start are not sent to it.
"""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.guard.environment_gate import SECRETS
from lakehouse_backfill.adapters.spark.session import place
from lakehouse_backfill.adapters.spark.session.jvm import StartingJvm, begin_jvm, take_early
from lakehouse_backfill.adapters.spark.session.settings import (
    ICEBERG_EXTENSIONS,
    SparkSettings,
    is_secret,
    loud_executor_settings,
)
from lakehouse_backfill.adapters.spark.session.spark_errors import (
    last_lines,
    mask_settings,
    silence_query_loggers,
    spark_errors,
)
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.tables.clock_skew import ClockSkew
from lakehouse_backfill.errors import (
    BackfillError,
    Blocked,
    ConfigError,
    EnvironmentDown,
    hide_texts,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


#: How long a server may take for its first answer; PySpark itself retries for ten minutes.
_CONNECT_TIMEOUT_S = 20.0
#: Settings that a server takes only when it starts.
_STATIC_SETTINGS = ("spark.sql.extensions", "spark.sql.catalogImplementation")


def connect_to_server(settings: SparkSettings) -> SparkSession:
    """Open a session on the server; only settings that a running session may change are sent.

    Raises ConfigError when the profile names no server, or when the server does not apply a
    setting; EnvironmentDown when it does not answer, or when the client's packages are missing;
    WrongClock when its clock, which its commits carry, and this machine's are too far apart.
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
        _require_same_clock(session)
    except BackfillError:
        raise
    except Exception as error:
        cause = str(error) or f"nothing came in {_CONNECT_TIMEOUT_S:g} s"
        raise EnvironmentDown(
            f"Spark Connect at {address} does not answer: {cause}",
            fix="start the server, or correct spark.remote in the profile",
        ) from error
    return session


def check_session(session: SparkSession, catalog: str) -> str:
    """List the catalog in the session, return its version; raise Blocked without SQL extensions."""
    from lakehouse_backfill.domain.labels.names import quote_identifier

    with spark_errors("asking Spark for the catalog"):
        session.sql(f"SHOW NAMESPACES IN {quote_identifier(catalog)}").collect()
        extensions = str(session.conf.get("spark.sql.extensions", ""))
    if ICEBERG_EXTENSIONS not in extensions:
        raise Blocked(
            "the server was started without Iceberg's SQL extensions: no tags can be set there",
            fix=f"start it with --conf spark.sql.extensions={ICEBERG_EXTENSIONS}",
        )
    return f"Spark {session.version} answers, and reads catalog {catalog}"


def _require_same_clock(session: SparkSession) -> None:
    began_s = time.time()
    (row,) = session.sql("SELECT unix_micros(current_timestamp())").collect()
    ended_s = time.time()
    ClockSkew(
        here_s=(began_s + ended_s) / 2,
        there_s=row[0] / 1e6,
        within_s=(ended_s - began_s) / 2,
        whose="the Spark Connect server",
    ).require_small()


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


_LOCK = threading.Lock()
_OPEN_SESSIONS: dict[str, SparkSession] = {}
#: How long a JVM that does not answer may take to end.
_END_S = 0.5
_sessions_opened = 0


def open_session(
    profile: Profile,
    project: Path,
    attach: Callable[[SparkSettings], SparkSession] | None = None,
    *,
    hides_values: bool = False,
    expected_rows: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> SparkSession:
    """Return this process's Spark session, started on the first call, or made by `attach`.

    `hides_values` starts it for restricted columns; the caller calls `hide_values`, too.
    With few `expected_rows` it starts sooner, and is slower on many. `meanwhile` is called
    once the JVM of a new session has begun to start.
    Spark's output goes to a log file, so that only results reach the terminal. Raises JavaMissing
    without Java 17 or 21, EnvironmentDown when Spark does not start or answer, and ConfigError when
    the process already has a session on another catalog.
    """
    global _sessions_opened  # One session at a time; objects of an earlier session are invalid.
    settings = SparkSettings.for_session(
        profile, project, hides_values=hides_values, rows=expected_rows
    )
    SECRETS.declared |= frozenset(profile.secret_variables)
    SECRETS.settings |= {key: text for key, text in settings.options.items() if is_secret(key)}
    mask_settings(settings.options)
    with _LOCK:
        session = _OPEN_SESSIONS.get("session")
        if session is None:
            may_archive = settings.may_archive(hides_values=hides_values, rows=expected_rows)
            start = partial(_start, meanwhile=meanwhile, may_archive=may_archive)
            own = start if settings.remote is None else connect_to_server
            with place.own_scratch(settings) as placed:
                session = (attach or own)(placed)
            _OPEN_SESSIONS["session"] = session
            place.keep_names(settings)
            _sessions_opened += 1
        else:
            _refuse_other_catalog(session, settings)
            place.refuse_other(settings)
        return session


def is_session_open() -> bool:
    """Return whether this process has an open session."""
    return "session" in _OPEN_SESSIONS


def session_number() -> int:
    """Return the number of this process's current session; 0 while there is none."""
    return _sessions_opened if is_session_open() else 0


def close_session() -> None:
    """Stop this process's session, if there is one; the next `open_session` starts a new one.

    A warm session, whose JVM another process keeps, is only left.
    """
    with _LOCK:
        session = _OPEN_SESSIONS.pop("session", None)
    if session is not None and _is_attached():
        forget_jvm()
    elif session is not None:
        session.stop()
        _stop_java()
    place.drop_scratch()


def _is_attached() -> bool:
    """Return whether the JVM is one that another process has started."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return gateway is not None and gateway.proc is None


def forget_jvm() -> None:
    """Leave the JVM as it is; PySpark would go on with it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _stop_java() -> None:
    """Stop the Java process too: PySpark would keep it and start the next session in it."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None


def _start(
    settings: SparkSettings, meanwhile: Callable[[], None] | None, *, may_archive: bool
) -> SparkSession:
    place.require_master(settings)
    jvm = take_early(settings) or begin_jvm(settings, may_archive=may_archive)
    try:
        return _open_in(jvm, meanwhile)
    except Exception as error:
        with suppress(TimeoutExpired):
            jvm.process.wait(_END_S)
        if jvm.archive.blame(jvm.process.poll()):
            # The archive of classes that it has read is gone: the next JVM starts without.
            forget_jvm()
            return _start(settings, None, may_archive=False)
        if isinstance(error, BackfillError):
            raise
        raise _not_started(settings, str(error)) from error


def _not_started(settings: SparkSettings, error: str) -> EnvironmentDown:
    state = "nothing was computed; readers see what they saw before"
    if settings.is_local:
        said = f"Spark did not start: {error}\n{last_lines()}"
        return EnvironmentDown(said, state=state, fix="lakehouse-backfill doctor")
    # A stack of Java: its first line names the address, its innermost one does not.
    first = next((line[2:] for line in error.splitlines() if line.startswith(": ")), error)
    master = settings.options["spark.master"]
    return EnvironmentDown(
        f"Spark did not start on {master}: {first[:400]}",
        state=state,
        fix=f"see whether the cluster of {master} is up; correct the profile's spark settings",
    )


def _open_in(jvm: StartingJvm, meanwhile: Callable[[], None] | None) -> SparkSession:
    """Open the session in a JVM that has begun to start; call `meanwhile` before it is waited for.

    What may hold a secret is set over the gateway.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    silence_query_loggers()
    try:
        if meanwhile is not None:
            meanwhile()
        gateway = jvm.connect()
    except BaseException:
        jvm.end()
        raise
    atexit.register(lambda: jvm.archive.blame(jvm.process.poll()))
    own = SparkConf(loadDefaults=True, _jvm=gateway.jvm).setAll(list(jvm.private.items()))
    context = SparkContext(conf=own, gateway=gateway)
    context.setLogLevel(jvm.settings.options.get("spark.log.level", "ERROR"))
    end_jobs_on_interrupt(context)
    return SparkSession.builder.getOrCreate()


def end_jobs_on_interrupt(context: SparkContext) -> None:
    """Make Ctrl-C end Spark's jobs, and raise KeyboardInterrupt in the main thread.

    A thread of its own asks the JVM. PySpark's handler asks in the thread that is interrupted,
    which waits for another answer: py4j then reports a broken network, with its tracebacks.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def end_jobs() -> None:
        # The JVM may be gone, too.
        with suppress(Exception):
            context.cancelAllJobs()

    def interrupt(*_: object) -> None:
        threading.Thread(target=end_jobs, name="end-jobs", daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def hide_values() -> None:
    """Keep values out of errors, logs and the event log of this process's session from now on.

    Called before anything of a product with restricted columns is read. Errors of tasks, and plans,
    may quote a value: Spark writes both to its event log, its web pages and its logs. Event log and
    pages end, and the driver's loggers are switched off, but for Iceberg's errors: they name files.

    Raises Blocked where a Spark Connect server, or executors that are processes of their own, keep
    such logs: they are ended only when they start.
    """
    from pyspark import SparkContext

    hide_texts()
    context: Any = SparkContext._active_spark_context
    if context is None:
        _require_silent_server()
        return
    _require_silent_executors(context.getConf().get)
    scala = context._jsc.sc()
    if scala.eventLogger().isDefined():
        scala.listenerBus().removeListener(scala.eventLogger().get())
    if scala.ui().isDefined():
        scala.ui().get().stop()
    context.setLogLevel("OFF")
    log4j = context._jvm.org.apache.logging.log4j
    levels = {"org.apache.spark": log4j.Level.OFF, "org.apache.iceberg": log4j.Level.ERROR}
    for name, level in levels.items():
        log4j.core.config.Configurator.setLevel(name, level)


def _require_silent_executors(setting: Callable[[str, str], str | None]) -> None:
    if loud := loud_executor_settings(setting):
        raise Blocked(
            "Spark's executors are processes of their own, which write errors of tasks to their "
            "logs, and they may quote values of restricted columns",
            state="nothing was computed; readers see what they saw before",
            fix="declare the restricted columns of the input in its contract, so that executors "
            f"start without logs; or set in the profile's spark settings: {', '.join(loud)}",
        )


#: Settings of a server, which it takes only when it starts, and the value without values in logs.
_SILENT_SERVER = {
    "spark.eventLog.enabled": "false", "spark.ui.enabled": "false", "spark.log.level": "OFF",
}  # fmt: skip
#: What Spark does without them.
_SPARK_DEFAULTS = {
    "spark.eventLog.enabled": "false", "spark.ui.enabled": "true", "spark.log.level": "WARN",
}  # fmt: skip


def _require_silent_server() -> None:
    session = _OPEN_SESSIONS.get("session")
    if session is not None:
        with spark_errors("asking Spark Connect for its logs"):
            require_silent_server(session.conf.get)


def require_silent_server(setting: Callable[[str, str], str | None]) -> None:
    """Raise Blocked, with the options to start it with, unless a server keeps no values."""
    loud = [
        f"{name}={wanted}"
        for name, wanted in _SILENT_SERVER.items()
        # What it does not say, it does as Spark's defaults say.
        if str(setting(name, _SPARK_DEFAULTS[name])).upper() != wanted.upper()
    ]
    loud += [one for one in loud_executor_settings(setting) if one not in loud]
    if loud:
        raise Blocked(
            "the Spark Connect server writes errors of tasks, and plans, to its logs or pages, and "
            "they may quote values of restricted columns",
            state="nothing was computed; readers see what they saw before",
            fix=f"start the server with {' '.join(f'--conf {one}' for one in loud)}",
        )


def _refuse_other_catalog(session: SparkSession, settings: SparkSettings) -> None:
    prefix = f"spark.sql.catalog.{settings.catalog}"
    for key in (f"{prefix}.uri", f"{prefix}.warehouse"):
        required = settings.options.get(key)
        if required is not None and session.conf.get(key, None) != required:
            raise ConfigError(
                f"this process already has a Spark session on another catalog ({key} differs)",
                fix="use one project and one profile in a process",
            )


def analysed_plan(frame: DataFrame) -> Any | None:
    """Return Catalyst's analysed plan of a frame; None on Spark Connect."""
    return frame._jdf.queryExecution().analyzed() if hasattr(frame, "_jdf") else None


def executed_plan(frame: DataFrame) -> Any | None:
    """Return the physical plan of a frame, which executes nothing; None on Spark Connect."""
    return frame._jdf.queryExecution().executedPlan() if hasattr(frame, "_jdf") else None


def items(found: Any) -> Iterator[Any]:
    """Return the items of a sequence of Scala."""
    return (found.apply(number) for number in range(found.size()))


def analysed_plan_json(frame: DataFrame) -> str | None:
    """Return the analysed plan as JSON; None on Spark Connect, and where it is too deep."""
    from py4j.protocol import Py4JJavaError

    if (analysed := analysed_plan(frame)) is None:
        return None
    try:
        return str(analysed.toJSON())
    except Py4JJavaError as error:
        if "StackOverflowError" in str(error):
            return None
        raise
