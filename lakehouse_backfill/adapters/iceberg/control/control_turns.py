"""Taking turns in a PostgreSQL catalog, as `control_lock` does beside a SQLite file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Protocol

from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.iceberg.control import control_lock
from lakehouse_backfill.adapters.iceberg.control.control_lock import (
    FileAdvisoryLock,
    lock_file_path,
)


class AdvisoryLock(Protocol):
    """Lets one process at a time commit, for fairness only."""

    def turn(self) -> AbstractContextManager[None]:
        """Hold the place while the block runs, if it comes free in time."""
        ...


def choose_advisory_lock(catalog: Catalog, table: str) -> AdvisoryLock:
    """Give the turns at a control table, as its catalog has them."""
    engine = getattr(catalog, "engine", None)
    if engine is not None and engine.dialect.name == "postgresql":
        return PostgresAdvisoryLock(engine, f"lakehouse-backfill:{catalog.name}:{table}")
    return FileAdvisoryLock(lock_file_path(catalog, table))


class PostgresAdvisoryLock:
    """Turns by an advisory lock of PostgreSQL, which wakes those who wait in order.

    It lasts for one transaction, so that it is free again when its process dies. Without it eight
    processes that commit to one table keep each other from committing for half a minute.
    """

    #: Held by a process that is stopped, it seems: waited for once, and then not again.
    _stuck: ClassVar[set[int]] = set()

    def __init__(self, engine: Any, name: str) -> None:
        self._engine = engine
        digest = hashlib.sha256(name.encode()).digest()
        self._key = int.from_bytes(digest[:8], "big", signed=True)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock while the block runs; without it after a while, or without a database."""
        connection = self._locked()
        try:
            yield
        finally:
            if connection is not None:
                connection.close()

    def _locked(self) -> Any:
        """Give the connection whose transaction holds the lock, or waited for it in vain."""
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        is_stuck = self._key in self._stuck
        wait_ms = 1 if is_stuck else int(control_lock.LOCK_TIMEOUT_S * 1000)
        connection = None
        try:
            connection = self._engine.connect()
            patience = text("SELECT set_config('lock_timeout', :wait, true)")
            connection.execute(patience, {"wait": f"{wait_ms}ms"})
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": self._key})
        except SQLAlchemyError:
            # Who cannot have the lock costs others fairness, not safety.
            self._stuck.add(self._key)
        else:
            self._stuck.discard(self._key)
        return connection
