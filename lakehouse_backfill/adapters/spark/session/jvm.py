"""Starts the JVM of a Spark driver, and connects to it or to one of another process.

A start has two parts, since it takes seconds: `begin_jvm` starts the process and returns, `connect`
waits for its answer. What is done between them costs no time of its own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lakehouse_backfill.adapters.spark.session.class_archive import (
    ArchiveUse,
    ClassArchives,
    archive_key,
)
from lakehouse_backfill.adapters.spark.session.java import JavaRuntime, require_java
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings, may_hold_secret
from lakehouse_backfill.adapters.spark.session.spark_errors import open_log
from lakehouse_backfill.errors import EnvironmentDown

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
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
_PAUSE_S = 0.02
#: Of the small JVM that writes the command line of the driver's.
_LAUNCHER_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass
class StartingJvm:
    """A JVM that has begun to start for `settings`."""

    settings: SparkSettings
    process: subprocess.Popen[bytes]
    archive: ArchiveUse
    _answer: Path

    @property
    def private(self) -> dict[str, str]:
        """Return the options that are set over the gateway, as others can read a command line."""
        return {key: text for key, text in self.settings.options.items() if may_hold_secret(key)}

    def serves(self, settings: SparkSettings) -> bool:
        """Return whether a session with these settings would have the same command line."""
        return _public(self.settings.options) == _public(settings.options)

    def connect(self) -> Any:
        """Return the gateway once the JVM answers; Ctrl-C ends the wait for it, and the JVM too.

        Raises ChildProcessError when its process ends instead.
        """
        try:
            gateway = connect_gateway(*self._wait())
        except BaseException:
            self.end()
            raise
        gateway.proc = self.process
        _connected.append(self.archive)
        shutil.rmtree(self._answer.parent, ignore_errors=True)
        return gateway

    def _wait(self) -> tuple[int, str]:
        """Return the port and the token of the JVM, as it writes them when it answers."""
        while not self._answer.is_file():
            if self.process.poll() is not None:
                raise ChildProcessError(f"Java ended with exit code {self.process.returncode}")
            time.sleep(_PAUSE_S)
        content = self._answer.read_bytes()
        # Big-endian: the port, the length of the token, the token.
        port, length = struct.unpack(">ii", content[:8])
        return port, content[8 : 8 + length].decode()

    def end(self) -> None:
        """End the process, which has done nothing yet; wait for nothing."""
        with suppress(ProcessLookupError, PermissionError):
            # Of a session of its own: the shell that starts Java, and Java, which would still write
            # an archive if it were only asked to end.
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.stdin is not None:
            self.process.stdin.close()
        shutil.rmtree(self._answer.parent, ignore_errors=True)


_connected: list[ArchiveUse] = []


def keep_classes() -> None:
    """Let later JVMs read the archive of classes that this process's JVM writes when it ends."""
    for archive in _connected:
        archive.keep()


#: A JVM that no session uses yet.
_early: list[StartingJvm] = []


def begin_early(settings: SparkSettings, *, may_archive: bool) -> None:
    """Start a JVM for the session that this process opens later; it ends with it, if it does not.

    A session whose command line would differ gets a JVM of its own.
    """
    if not _early:
        _early.append(begin_jvm(settings, may_archive=may_archive))
        atexit.register(_end_early)


def take_early(settings: SparkSettings) -> StartingJvm | None:
    """Return the JVM that was started early, if it fits these settings; else end it."""
    if _early and _early[0].process.poll() is None and _early[0].serves(settings):
        return replace(_early.pop(), settings=settings)
    _end_early()
    return None


def _end_early() -> None:
    while _early:
        _early.pop().end()


def begin_jvm(settings: SparkSettings, *, may_archive: bool = False) -> StartingJvm:
    """Start the process of a JVM, and do not wait for it; what may hold a secret is left out.

    With `may_archive` it may write an archive of its classes when it ends. Raises JavaMissing
    without Java 17 or 21, EnvironmentDown without PySpark.
    """
    for name in _STALE:
        os.environ.pop(name, None)
    java = require_java()
    set_python(settings)
    os.environ["JAVA_HOME"] = str(java.home)
    archive = _archive(settings, java, may_archive=may_archive)
    home = Path(os.environ["SPARK_HOME"])
    command = [str(home / "bin" / "spark-submit")]
    for key, text in _public(_with_java_options(settings, java, archive)).items():
        command += ["--conf", f"{key}={text}"]
    folder = Path(tempfile.mkdtemp(prefix="lakehouse-backfill-jvm-"))
    env = {
        **os.environ,
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "answer"),
        "SPARK_LAUNCHER_OPTS": f"{_LAUNCHER_JAVA} {os.environ.get('SPARK_LAUNCHER_OPTS', '')}",
    }
    # Java and its Python workers inherit these files: their warnings never reach the terminal. In a
    # session of its own, nothing that is typed in the terminal reaches them. A JVM ends when its
    # input does, which is also when this process ends.
    with open_log() as log:
        process = subprocess.Popen(  # noqa: S603 - Spark's own script
            [*command, "pyspark-shell"], env=env, stdin=subprocess.PIPE, stdout=log, stderr=log,
            start_new_session=True, pass_fds=[] if archive.lock is None else [archive.lock],
        )  # fmt: skip
    archive.release()
    return StartingJvm(settings, process, archive, folder / "answer")


def _public(options: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in options.items() if not may_hold_secret(key)}


def _archive(settings: SparkSettings, java: JavaRuntime, *, may_archive: bool) -> ArchiveUse:
    """Return how the JVM uses an archive of classes: not at all where anything is in the way."""
    archives = ClassArchives.of_user(os.environ)
    if archives is None:
        return ArchiveUse()
    own = settings.options.get("spark.driver.extraClassPath", "").split(os.pathsep)
    class_path = [*(Path(one) for one in own if one), Path(os.environ["SPARK_HOME"], "jars")]
    try:
        key = archive_key(java.home, class_path)
    except OSError:
        return ArchiveUse()
    return archives.use(key, may_write=may_archive, options=settings.options.get(_JAVA_OPTIONS, ""))


def _with_java_options(
    settings: SparkSettings, java: JavaRuntime, archive: ArchiveUse
) -> dict[str, str]:
    quiet = f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"
    parts = (quiet, *java.options, *archive.options, settings.options.get(_JAVA_OPTIONS, ""))
    return {**settings.options, _JAVA_OPTIONS: " ".join(filter(None, parts))}


def connect_gateway(port: int, token: str, patience_s: float | None = None) -> Any:
    """Return a gateway to a JVM; raises TimeoutError when it does not answer.

    PySpark waits in a thread that nothing interrupts, so it has one of its own.
    """
    from pyspark.java_gateway import launch_gateway

    names = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": token}
    launched: Future[Any] = Future()

    def launch() -> None:
        try:
            launched.set_result(launch_gateway())  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 (raised where somebody waits)
            launched.set_exception(error)

    os.environ.update(names)
    try:
        threading.Thread(target=launch, name="connect-jvm", daemon=True).start()
        return launched.result(patience_s)
    finally:
        for name in names:
            os.environ.pop(name, None)


def set_python(settings: SparkSettings) -> None:
    """Make PySpark find itself, and the Python of its workers."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentDown("pyspark is not installed", fix="pip install 'pyspark>=4.1,<4.2'")
    os.environ["SPARK_HOME"] = str(Path(spec.origin).parent)
    if settings.is_local:
        # The machine's name may not resolve; a cluster's defaults do not apply to this session.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.pop("SPARK_CONF_DIR", None)
    else:
        os.environ["PYSPARK_PYTHON"] = settings.options.get("spark.pyspark.python", "python3")
