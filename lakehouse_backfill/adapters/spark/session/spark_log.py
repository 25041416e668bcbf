"""Spark's own output in a file that names unreadable files, and loggers that are silenced."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import IO

LOG_VARIABLE = "LAKEHOUSE_BACKFILL_SPARK_LOG"
#: Iceberg's readers log the file; the error that they raise does not name it.
_UNREADABLE = re.compile(r"BaseReader: Error reading file\(s\): (.+)")
_TAIL_BYTES = 200_000
#: Each with where this process begins to read it.
_open_logs: list[tuple[Path, int]] = []


def open_log() -> IO[bytes]:
    """Open the file for Spark's own output: the one that is configured, else a temporary one."""
    configured = os.environ.get(LOG_VARIABLE)
    if configured:
        path = Path(configured)
    else:
        handle, name = tempfile.mkstemp(prefix="lakehouse-backfill-spark-", suffix=".log")
        os.close(handle)
        path = Path(name)
        atexit.register(_remove, path)
    _open_logs.append((path, 0))
    return path.open("ab+")


def follow_log(path: Path) -> None:
    """Read from now on what another process's Spark writes to its log."""
    with contextlib.suppress(OSError):
        _open_logs.append((path, path.stat().st_size))


def current_log() -> Path | None:
    """Return the log of the newest session."""
    return _open_logs[-1][0] if _open_logs else None


def last_lines(lines: int = 15) -> str:
    """Return the end of the log of the newest session; empty without one."""
    return "\n".join(_tail().splitlines()[-lines:])


def last_unreadable_file() -> str | None:
    """Return the file that a reader of this machine could not read last.

    None when the log names no file: executors on other machines write logs of their own.
    """
    found = _UNREADABLE.findall(_tail())
    return str(found[-1]).strip() if found else None


def _tail() -> str:
    if not _open_logs:
        return ""
    path, first = _open_logs[-1]
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(max(first, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return log.read().decode("utf-8", errors="replace")
    return ""


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def silence_query_loggers() -> None:
    """Silence the loggers that print every query error to stderr; PySpark also raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel("CRITICAL")
    for logger in (logging.getLogger(), logging.getLogger("py4j.clientserver")):
        logger.addFilter(_is_no_interruption)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Drop what py4j logs, with tracebacks, where Ctrl-C ends its wait for an answer."""
    error = record.exc_info and record.exc_info[1]
    causes = [error, getattr(error, "__context__", None)]
    return not any(isinstance(cause, KeyboardInterrupt) for cause in causes)
