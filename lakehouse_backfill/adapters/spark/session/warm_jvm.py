"""The JVM of a warm session: a host keeps it, and a command attaches to it.

A command gets a new Spark session in it and new Python workers. What an earlier command left is
removed before: its jobs, cached rows, global views and workers. So only what Spark itself has
loaded is shared. The JVM ends with its host, as its input does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lakehouse_backfill.adapters.spark.session import session as own_session
from lakehouse_backfill.adapters.spark.session import spark_errors
from lakehouse_backfill.adapters.spark.session.jvm import connect_gateway, set_python
from lakehouse_backfill.adapters.spark.session.settings import TINY_QUERIES, SparkSettings
from lakehouse_backfill.adapters.spark.session.warm_session import (
    Connection,
    SessionFolder,
    WarmSession,
    session_facts,
    spark_settings,
)
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import BackfillError, Conflict, EnvironmentDown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long the JVM may take to answer a command that attaches.
_ANSWER_S = 10.0
#: Pause of a host between two looks at its session.
_TICK_S = 0.5
#: Makes the Python workers of each command others than those of the command before.
COMMAND_VARIABLE = "LAKEHOUSE_BACKFILL_COMMAND"


def attach(warm: WarmSession, settings: SparkSettings) -> SparkSession:
    """Open a new Spark session in the JVM of the warm session.

    Raises EnvironmentDown, with nothing left behind, when the JVM does not answer or holds what an
    earlier command has added for good.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    set_python(settings)
    try:
        gateway = connect_gateway(warm.connection.port, warm.connection.token, _ANSWER_S)
        base = _require_usable(gateway, warm.connection.files)
        _remove_leftovers(gateway, base)
        java_api = gateway.jvm.org.apache.spark.api.java.JavaSparkContext
        context = SparkContext(
            conf=SparkConf(_jconf=base.sparkContext().getConf()),
            gateway=gateway,
            jsc=java_api.fromSparkContext(base.sparkContext()),
        )
        context.environment[COMMAND_VARIABLE] = uuid4().hex
        session = SparkSession(context, base.newSession())
        set_queries(session, settings)
    except Exception as error:
        own_session.forget_jvm()
        problem = error.problem if isinstance(error, BackfillError) else str(error)
        raise EnvironmentDown(
            f"its JVM cannot be used: {problem}", fix="lakehouse-backfill session stop"
        ) from error
    spark_errors.follow_log(Path(warm.connection.log))
    own_session.end_jobs_on_interrupt(context)
    return session


def set_queries(session: SparkSession, settings: SparkSettings) -> None:
    """Have the queries of one command run as its settings say; the JVM's are of its start."""
    for name in TINY_QUERIES.keys() & settings.options.keys():
        session.conf.set(name, settings.options[name])


def _jvm_address() -> tuple[int, str]:
    """Return the port of this process's JVM on the loopback interface, and the token for it."""
    from pyspark import SparkContext

    parameters: Any = SparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return parameters.port, parameters.auth_token


def is_jvm_alive() -> bool:
    """Return whether the JVM that this process started lives."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return gateway is not None and gateway.proc.poll() is None


def _require_usable(gateway: Any, begun_with: Iterable[str]) -> Any:
    """Return the session of the JVM from which new ones are made.

    Raises EnvironmentDown when it has stopped, or lists other files than those it has begun with.
    """
    found = getattr(gateway.jvm, "org.apache.spark.sql.classic.SparkSession").getDefaultSession()
    if found.isEmpty() or found.get().sparkContext().isStopped():
        raise EnvironmentDown("its Spark has stopped")
    if set(_listed_files(found.get().sparkContext())) - set(begun_with):
        raise EnvironmentDown("a job has added files to it, which every later one would see")
    return found.get()


def _listed_files(context: Any) -> list[str]:
    """Return the addresses of the files that every task sees, by a context of the JVM.

    Of two files, addresses always differ: Spark's file server refuses a second file of one name.
    """
    listed = context.listFiles()
    return [str(listed.apply(place)) for place in range(listed.size())]


def _remove_leftovers(gateway: Any, base: Any) -> None:
    """End the jobs of a command that was killed, and take away what jobs may have left."""
    base.sparkContext().cancelAllJobs()
    base.sharedState().cacheManager().clearCache()
    base.sharedState().globalTempViewManager().clear()
    java_api = getattr(gateway.jvm, "org.apache.spark.api.java.JavaSparkContext")
    for kept in java_api.fromSparkContext(base.sparkContext()).getPersistentRDDs().values():
        kept.unpersist(False)  # noqa: FBT003 (Java has no names of arguments)
    children = gateway.jvm.java.lang.ProcessHandle.current().children().iterator()
    while children.hasNext():
        # The parent of Python workers; the workers end with it.
        children.next().destroy()


@dataclass(frozen=True)
class Host:
    """What a host keeps: a session of a project and profile, which ends when idle for `idle_s`."""

    process: str
    profile: Profile
    project: Path
    folder: SessionFolder
    idle_s: float
    hides_values: bool


def keep_session(host: Host, is_wanted: Callable[[], bool], on_ready: Callable[[], None]) -> None:
    """Keep a warm session until nobody wants it, nobody used it for a time, or SIGTERM comes.

    Raises Conflict when the project has one; what `open_session` raises.
    """
    profile, folder, hides = host.profile, host.folder, host.hides_values
    folder.make()
    lock = folder.hold_host_lock()
    if lock is None:
        raise Conflict(
            "the project has a warm session already", fix="lakehouse-backfill session status"
        )
    # Of a host that was killed: commands would take its process and port for this host's.
    folder.remove()
    facts = session_facts(spark_settings(profile, host.project, hides_values=hides), os.environ)
    stopping = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    session = own_session.open_session(profile, host.project, hides_values=hides)
    try:
        files = _listed_files(session.sparkContext._jsc.sc())
        if hides:
            own_session.hide_values()
        _warm_up(session, str(profile.catalog["name"]))
        port, token = _jvm_address()
        sealed = Connection.seal(facts, token)
        log = str(spark_errors.current_log() or "")
        folder.write(
            Connection(
                host.process, os.getpid(), port, token, log, time.time(), host.idle_s, sealed, files
            )
        )
        on_ready()
        _wait(folder, session, host.idle_s, lambda: is_wanted() and not stopping)
    finally:
        folder.remove()
        own_session.close_session()
        os.close(lock)


def _wait(
    folder: SessionFolder, session: SparkSession, idle_s: float, is_wanted: Callable[[], bool]
) -> None:
    """Return once the session is to end, and no command uses it."""
    used_at, is_busy, last = time.monotonic(), False, folder.last_command()
    while is_jvm_alive():
        time.sleep(_TICK_S)
        if folder.last_command() != last:
            used_at, last = time.monotonic(), folder.last_command()
        if not is_wanted():
            folder.remove()
        if folder.is_used():
            used_at, is_busy = time.monotonic(), True
            continue
        # No command begins to use it meanwhile.
        lock = folder.hold_use_lock()
        if lock is None:
            continue
        if is_busy:
            # What a command that was killed had begun must not go on without it.
            session.sparkContext.cancelAllJobs()
            is_busy = False
        if not is_wanted() or time.monotonic() - used_at >= idle_s:
            return  # The lock is held until the process ends.
        os.close(lock)


def _warm_up(session: SparkSession, catalog: str) -> None:
    """Make the JVM load what every command needs: the catalog, a query, Python workers."""
    from lakehouse_backfill.domain.labels.names import quote_identifier

    with suppress(Exception):
        session.sql(f"SHOW NAMESPACES IN {quote_identifier(catalog)}").collect()
        frame = session.range(100).selectExpr("id", "id % 7 AS k", "hash(id) AS h")
        frame.groupBy("k").count().orderBy("k").collect()
        frame.mapInArrow(lambda batches: batches, frame.schema).count()


def leave_terminal() -> None:
    """Leave the terminal of the command that started the host."""
    with Path(os.devnull).open("rb+") as nothing:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            os.dup2(nothing.fileno(), stream.fileno())
