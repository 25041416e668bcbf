"""Turns at a control table, for fairness only.

Taking turns at a control table, for fairness only: commits are safe without it.

Taking turns in a PostgreSQL catalog, as `control_lock` does beside a SQLite file.
"""

from __future__ import annotations

import fcntl
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pyiceberg.catalog import Catalog

#: A stopped process may hold the lock for ever: after this long we go on without it.
LOCK_TIMEOUT_S = 5.0
#: Who comes back at once would win every time: the others need a moment to wake up.
_YIELD_S = 0.005


def lock_file_path(catalog: Catalog, table: str) -> Path | None:
    """Name the lock file of a control table: beside a local SQLite catalog, nowhere else."""
    scheme, _, rest = catalog.properties.get("uri", "").partition(":///")
    path = rest.partition("?")[0]
    if scheme not in ("sqlite", "sqlite+pysqlite") or not path or path.startswith(":memory:"):
        return None
    return Path(f"{path}.{table}.lock")


class FileAdvisoryLock:
    """The turns of this process at one lock file (None: no turns, everybody goes at once).

    Eight processes that commit to one table wait 3.3 s (p95) without it, under 1 s with it.
    """

    #: Held by a process that is stopped, it seems: waited for once, and then not again.
    _timed_out: ClassVar[set[Path]] = set()

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._released_at = 0.0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock file while the block runs, if there is one and it comes free in time."""
        try:
            handle = self._path.open("w") if self._path else None
        except OSError:
            # A folder that takes no new file costs fairness, not safety.
            handle = None
        if handle is None:
            yield
            return
        with handle:  # closing it also gives the lock back
            self._wait_for_lock(handle.fileno(), Path(handle.name))
            yield
        self._released_at = time.monotonic()

    def _wait_for_lock(self, descriptor: int, path: Path) -> None:
        if time.monotonic() - self._released_at < _YIELD_S:
            time.sleep(_YIELD_S)
        if _try_lock(descriptor):
            self._timed_out.discard(path)
            return
        if path in self._timed_out:
            return
        # Blocking in the kernel wakes waiters in order; a thread, because it knows no time-out.
        # If we leave before it has the lock, closing the file gives that lock back at once.
        waiter = threading.Thread(target=fcntl.flock, args=(descriptor, fcntl.LOCK_EX), daemon=True)
        waiter.start()
        waiter.join(LOCK_TIMEOUT_S)
        if waiter.is_alive():
            self._timed_out.add(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class AdvisoryLock(Protocol):
    """Lets one process at a time commit, for fairness only."""

    def hold(self) -> AbstractContextManager[None]:
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
    _timed_out: ClassVar[set[int]] = set()

    def __init__(self, engine: Any, name: str) -> None:
        self._engine = engine
        digest = hashlib.sha256(name.encode()).digest()
        self._key = int.from_bytes(digest[:8], "big", signed=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock while the block runs; without it after a while, or without a database."""
        connection = self._connect_and_lock()
        try:
            yield
        finally:
            if connection is not None:
                connection.close()

    def _connect_and_lock(self) -> Any:
        """Give the connection whose transaction holds the lock, or waited for it in vain."""
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        is_stuck = self._key in self._timed_out
        wait_ms = 1 if is_stuck else int(LOCK_TIMEOUT_S * 1000)
        connection = None
        try:
            connection = self._engine.connect()
            patience = text("SELECT set_config('lock_timeout', :wait, true)")
            connection.execute(patience, {"wait": f"{wait_ms}ms"})
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": self._key})
        except SQLAlchemyError:
            # Who cannot have the lock costs others fairness, not safety.
            self._timed_out.add(self._key)
        else:
            self._timed_out.discard(self._key)
        return connection
