"""Translates errors that Spark and Iceberg raise into the package's own.

Spark's own output in a file that names unreadable files, and loggers that are silenced.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote_plus

from lakehouse_backfill.command_lines import RUN_PLACEHOLDER, plan_command
from lakehouse_backfill.errors import (
    LOGIN_FIX,
    LOST_RACE,
    REFUSAL_FIX,
    RIGHTS_FIX,
    BackfillError,
    CatalogDown,
    ChecksFailed,
    ConfigError,
    Conflict,
    DamagedFile,
    EnvironmentDown,
    LostFile,
    NotFound,
    Unsupported,
    hides_texts,
    mask_secrets,
    without_secrets,
)

#: The plan holds the hash of the job file: a corrected file needs a revised plan.
CORRECT_JOB_FIX = (
    "correct the job file, and raise its version there and in the manifest; then: "
    f"{plan_command(revise=RUN_PLACEHOLDER)}"
)
_NOTHING_PUBLISHED = "nothing was published; readers see what they saw before"
_CLOCK_FIX = (
    "a clock is wrong, of this machine or of the one that made the table's last snapshot: set it "
    "right, then run the step again; a snapshot from the future refuses commits until its time"
)
#: (name of Iceberg's exception for an answer of the catalog, error, fix); as for commits of Python.
CATALOG_REFUSALS: tuple[tuple[str, type[BackfillError], str], ...] = (
    ("iceberg.exceptions.NotAuthorizedException", CatalogDown, LOGIN_FIX),
    ("iceberg.exceptions.ForbiddenException", Unsupported, RIGHTS_FIX),
    ("iceberg.exceptions.BadRequestException", Unsupported, REFUSAL_FIX),
)
#: (part of the message, error, fix). The first match wins.
_ERRORS_BY_MESSAGE: tuple[tuple[str, type[BackfillError], str], ...] = (
    ("Found conflicting files", Conflict, "run the step again"),
    ("Cannot commit", Conflict, "run the step again"),
    ("CommitFailedException", Conflict, "run the step again"),
    ("some, but not all, rows match", Unsupported, "widen target.partitions to whole partitions"),
    ("NOT_NULL_ASSERT_VIOLATION", ChecksFailed, "give every required column a value"),
    ("USER_RAISED_EXCEPTION", ChecksFailed, CORRECT_JOB_FIX),
    ("Failed to open input stream", LostFile, "restore the file, or plan against a newer snapshot"),
    # Java takes no metadata that is over a minute older than the table's last snapshot or commit.
    ("Invalid update timestamp", EnvironmentDown, _CLOCK_FIX),
    ("Cannot find snapshot", NotFound, "plan again: the pinned snapshot is gone"),
    ("TABLE_OR_VIEW_NOT_FOUND", NotFound, "check the table's name"),
    ("UncheckedSQLException", CatalogDown, "run the step again"),
    ("JdbcClientPool", CatalogDown, "run the step again"),
    ("RESTException", CatalogDown, "run the step again"),
)
#: What Iceberg's readers say of a file that is not what the table says.
_DAMAGE_MESSAGES = (
    "Reached the end of stream",
    "is not a Parquet file",
    "ParquetDecodingException",
    "ParquetCryptoRuntimeException",
    "Not an Avro data file",
    "Malformed ORC file",
)
#: Names of Spark's errors in the data or in the transform's own expressions.
_DATA_ERRORS = ("ArithmeticException", "DateTimeException", "NumberFormatException")
_DATA_CLASSES = (*_DATA_ERRORS, "IllegalArgumentException", "PythonException", "AnalysisException")


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Translate Spark's errors into ours; the text starts with `doing`."""
    try:
        yield
    except BackfillError:
        raise
    except Exception as error:
        translated = translate_spark_error(error, doing)
        if hides_texts():
            # A traceback would show the text of the cause.
            raise translated from None
        raise translated from error


def translate_spark_error(error: Exception, doing: str) -> BackfillError:
    """Return the error that a user sees for an error of Spark or Iceberg."""
    # It imports PySpark, which commands that start no Spark do not load.
    from lakehouse_backfill.adapters.spark.guard import driver_guard

    # Before it is cut: a part of a secret would not be recognised.
    text = without_secrets(str(error))
    if attempts := driver_guard.attempts_in(text):
        return driver_guard.forbidden(attempts)
    cause, place = root_cause_line(text), _place_in_python(text)
    if hides_texts():
        cause = _condition(error)
    if place:
        cause += f", at {place}"
    if known := _known_error(text):
        kind, fix = known
        return kind(f"{doing}: {cause}", state=_NOTHING_PUBLISHED, fix=fix)
    if any(part in text for part in _DAMAGE_MESSAGES):
        return _damaged_file_error(doing, cause)
    if type(error).__name__ in _DATA_CLASSES or any(name in text for name in _DATA_ERRORS):
        return ChecksFailed(
            f"{doing}: the transform failed on the data: {cause}",
            state=_NOTHING_PUBLISHED,
            fix=CORRECT_JOB_FIX,
        )
    return EnvironmentDown(f"{doing}: {cause}", state=_NOTHING_PUBLISHED, fix="run the step again")


def _known_error(text: str) -> tuple[type[BackfillError], str] | None:
    """Return the error for what Spark or Iceberg says, with its fix."""
    if LOST_RACE in text and "BadRequestException" in text:
        return Conflict, "run the step again"
    rules = (*CATALOG_REFUSALS, *_ERRORS_BY_MESSAGE)
    return next(((kind, fix) for part, kind, fix in rules if part in text), None)


#: What a Python stack trace ends with, and the file and line of each of its frames.
_RAISED = re.compile(r"^ +File \".+\", line \d+, in .*\n(?:[ \t]+.*\n)*([^\s].*)", re.MULTILINE)
_FRAMES = re.compile(r"^ +File \"(.+)\", line (\d+), in ", re.MULTILINE)
#: Parts of paths of libraries: the line that calls them is the one to correct.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/pyspark/", "<frozen ")
#: The folders that code of jobs was loaded from: their names say nothing to the reader.
_job_folders: set[str] = set()


def name_job_folder(folder: Path) -> None:
    """Leave this folder out of the names of files that errors show."""
    _job_folders.add(f"{folder}/")


def _place_in_python(text: str) -> str:
    """Return file and line of the innermost frame of the job's code; empty without a trace."""
    frames = _FRAMES.findall(text)
    own = [one for one in frames if not any(part in one[0] for part in _LIBRARIES)]
    if not frames:
        return ""
    file, line = (own or frames)[-1]
    for folder in _job_folders:
        file = file.removeprefix(folder)
    return f"{file}:{line}"


def _damaged_file_error(doing: str, cause: str) -> BackfillError:
    file = last_unreadable_file()
    if file is not None:
        return DamagedFile(file, f"{doing}: {cause}")
    found = "look for `Error reading file(s)` in the logs of Spark's executors"
    if hides_texts():  # their logs are off
        found = "read the data files of the inputs one by one, to find it"
    return LostFile(
        f"{doing}: a data file is damaged: {cause}",
        state=_NOTHING_PUBLISHED,
        fix=f"{found}; restore that file "
        "from the store's own history or from a copy, then run the step again",
    )


#: Settings whose value, or the last word of it, is a secret; names of accounts are shown.
_SECRET_SETTING = re.compile(
    r"(?i)(?:secret|password|token|credential|authorization|secret[.-](?:access[.-])?key)(?:\.|$)"
)
#: Shorter texts stand in other words by chance.
_LEAST_SECRET = 8


def mask_settings(options: Mapping[str, str]) -> None:
    """Leave the secrets of a session's settings out of errors, as they are and as URLs hold them.

    Of `ID:SECRET` the secret, of `Bearer TOKEN` the token. Of what a server quotes as another
    text, or of a token that it issued itself, see `errors.without_secrets`.
    """
    for key, text in options.items():
        if _SECRET_SETTING.search(key):
            whole = text.rpartition(" ")[2]
            parts = (whole, whole.partition(":")[2] if key.endswith("credential") else "")
            known = [one for one in parts if len(one) >= _LEAST_SECRET]
            mask_secrets({*known, *map(quote_plus, known)})


def first_line(error: Exception) -> str:
    """Return the class of an error and its first line, or the class alone: `errors.hide_texts`."""
    if hides_texts():
        return _condition(error)
    text = without_secrets(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def job_failed(what: str, file: str, error: Exception) -> ConfigError:
    """Return the error for job code that raised, with its line in the job's file."""
    line = _line_in(file, error)
    location = f"{file}:{line}" if line else file
    fix = CORRECT_JOB_FIX
    if "TABLE_OR_VIEW_NOT_FOUND" in str(error):
        fix = f"name inputs in braces, as in FROM {{orders}}; {CORRECT_JOB_FIX}"
    return ConfigError(
        f"{what} at {location}: {first_line(error)}",
        state="nothing was written",
        fix=fix,
    )


def _line_in(file: str, error: Exception) -> int:
    """Return the last line of the job file in the traceback; 0 when it is not in the traceback."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).as_posix().endswith(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _condition(error: Exception) -> str:
    """Return what an error is, without its text."""
    condition = getattr(error, "getCondition", lambda: None)()
    name = f"{type(error).__name__} {condition or ''}".strip()
    return f"{name}; its text may quote a restricted value, and is not shown"


_CALL_FAILED = re.compile(r"\AAn error occurred while calling .*\n: ")


def root_cause_line(text: str) -> str:
    """Return the line with the cause: the innermost one of a Java or Python stack trace."""
    if raised := _RAISED.findall(text):
        return str(raised[-1]).strip()[:400]
    # py4j's own line, which names no cause, comes before the error of Java.
    shown = _CALL_FAILED.sub("", text)
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    line_with_cause = [*lines[:1], *causes][-1] if lines else "no message"
    return line_with_cause[:400]


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
