"""Which library errors mean what."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.errors import CatalogDown, NotFound, TooBusy


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CommitFailedException("409"), True),
        (BadRequestError("Cannot add snapshot with sequence number 3 older than 4"), True),
        (BadRequestError("malformed"), False),
        (CommitStateUnknownException("502"), False),
        (ConnectionResetError("gone"), False),
    ],
    ids=["conflict", "seaweedfs", "bad request", "unknown", "connection"],
)
def test_only_a_commit_that_certainly_lost_is_repeated(error, expected):
    assert catalogs.is_lost_race(error) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NoSuchTableError("t"), NotFound),
        (FileNotFoundError("f"), NotFound),
        (ConnectionRefusedError("no"), CatalogDown),
        (CommitStateUnknownException("502"), CatalogDown),
        (CommitFailedException("409"), TooBusy),
        (ZeroDivisionError("bug"), ZeroDivisionError),
    ],
)
def test_library_errors_become_ours_and_bugs_stay_bugs(error, expected):
    with pytest.raises(expected), catalogs.translate_errors():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.OperationalError("attempt to write a readonly database"),
        PermissionError(13, "Permission denied", "/lake/metadata"),
        OSError(30, "Read-only file system", "/lake/metadata"),
    ],
    ids=["catalog", "permission", "file system"],
)
def test_a_lake_that_cannot_be_written_is_said_to_be_read_only(error):
    with (
        pytest.raises(CatalogDown, match="the lake is read-only here"),
        catalogs.translate_errors(),
    ):
        raise error


def test_a_lock_that_is_held_too_long_is_an_outage_that_a_retry_may_help(tmp_path: Path):
    catalog = SqlCatalog("l", uri=f"sqlite:///{tmp_path}/c.db?timeout=0", warehouse=str(tmp_path))
    holder = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    with pytest.raises(CatalogDown) as down:
        catalogs.load_table(catalog, "a.b")

    assert catalogs.is_sqlite_locked(down.value.__cause__)
    assert down.value.retry_may_help
    holder.close()


def test_attempts_end_with_the_budget():
    started = time.monotonic()

    numbers = list(catalogs.retry_attempts(0.1))

    assert numbers == list(range(1, len(numbers) + 1))
    assert time.monotonic() - started < 5

    def lose() -> None:
        raise CommitFailedException("409")

    with pytest.raises(TooBusy, match=r"for 0 s: pin x"):
        catalogs.commit_with_retry(lose, "pin x", budget_s=0.01)
