"""Translates what Spark and Iceberg raise into the errors that a user meets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse_backfill.errors import (
    BackfillError,
    CatalogDown,
    ChecksFailed,
    Conflict,
    EnvironmentDown,
    NotFound,
    Unsupported,
)

#: The plan holds the hash of the job file: a corrected one is another intent.
CORRECT_JOB_FIX = "correct the job file, then: lakehouse-backfill plan MANIFEST --revise RUN"
_NOTHING_PUBLISHED = "nothing was published; readers see what they saw before"
#: Part of the message -> (error, what to do). The first that matches wins.
_ERRORS_BY_MESSAGE: tuple[tuple[str, type[BackfillError], str], ...] = (
    ("Found conflicting files", Conflict, "run the step again"),
    ("Cannot commit", Conflict, "run the step again"),
    ("CommitFailedException", Conflict, "run the step again"),
    ("some, but not all, rows match", Unsupported, "widen target.partitions to whole partitions"),
    ("NOT_NULL_ASSERT_VIOLATION", ChecksFailed, "give every required column a value"),
    ("USER_RAISED_EXCEPTION", ChecksFailed, CORRECT_JOB_FIX),
    ("Failed to open input stream", NotFound, "lakehouse-backfill verify: a data file is gone"),
    ("Cannot find snapshot", NotFound, "plan again: the pinned snapshot is gone"),
    ("TABLE_OR_VIEW_NOT_FOUND", NotFound, "check the table's name"),
    ("UncheckedSQLException", CatalogDown, "run the step again"),
    ("JdbcClientPool", CatalogDown, "run the step again"),
    ("RESTException", CatalogDown, "run the step again"),
)
#: What Spark calls a failure of the data or of the transform's own expressions.
_DATA_ERRORS = ("ArithmeticException", "DateTimeException", "NumberFormatException")
_DATA_CLASSES = (*_DATA_ERRORS, "IllegalArgumentException", "PythonException", "AnalysisException")


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Raise our errors for Spark's, each naming what was being done."""
    try:
        yield
    except BackfillError:
        raise
    except Exception as error:
        raise translate_spark_error(error, doing) from error


def translate_spark_error(error: Exception, doing: str) -> BackfillError:
    """Give the error that a user should see."""
    text = str(error)
    said = root_cause_line(text)
    for part, kind, fix in _ERRORS_BY_MESSAGE:
        if part in text:
            return kind(f"{doing}: {said}", state=_NOTHING_PUBLISHED, fix=fix)
    if type(error).__name__ in _DATA_CLASSES or any(name in text for name in _DATA_ERRORS):
        return ChecksFailed(
            f"{doing}: the transform failed on the data: {said}",
            state=_NOTHING_PUBLISHED,
            fix=CORRECT_JOB_FIX,
        )
    return EnvironmentDown(f"{doing}: {said}", state=_NOTHING_PUBLISHED, fix="run the step again")


def root_cause_line(text: str) -> str:
    """Give the line that says why: of a Java stack trace, the innermost cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = [*lines[:1], *causes][-1] if lines else "no message"
    return said[:400]
