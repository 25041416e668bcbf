"""A limit of the time that a statement to PostgreSQL may take, kept by this process.

The driver waits for an answer without end: for a server that hangs, and for a row that a stopped
process has locked. A limit of the server's own would not hold for the first, and poolers between
client and server refuse or leak it.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy.dialects import plugins
from sqlalchemy.engine import URL, CreateEnginePlugin, Engine

_NAME, _LIMIT_S = "lakehouse_backfill_statement_limit", "statement_limit_s"
#: What of SQLAlchemy's dialect waits for an answer of the database.
_WAITING = (
    "do_execute", "do_executemany", "do_execute_no_params", "do_commit", "do_rollback", "do_ping",
)  # fmt: skip

_STEPS = 10


def as_plugin(limit_s: float) -> dict[str, str]:
    """Return what a uri names so that statements of its engine end after that time."""
    plugins.register(_NAME, __name__, StatementLimit.__name__)
    return {"plugin": _NAME, _LIMIT_S: str(limit_s)}


class StatementLimit(CreateEnginePlugin):
    """Closes a connection whose statement, commit or rollback is not answered in time.

    The driver then raises OperationalError, as when the connection is lost: a commit that was sent
    may or may not have happened, and what was not committed is rolled back by the server.
    """

    def __init__(self, url: URL, kwargs: dict[str, Any]) -> None:
        """Take the limit from the uri; the driver does not get it."""
        self._limit_s = float(str(url.query[_LIMIT_S]))
        # Asked for on each connection, past the dialect; no catalog has columns of this type.
        kwargs["use_native_hstore"] = False

    def update_url(self, url: URL) -> URL:
        """Return the uri without the limit."""
        return url.difference_update_query([_LIMIT_S])

    def engine_created(self, engine: Engine) -> None:
        """Limit all that the engine's connections wait for."""
        for name in _WAITING:
            setattr(engine.dialect, name, self._limited(getattr(engine.dialect, name)))

    def _limited(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def within_limit(of: Any, *arguments: Any, **named: Any) -> Any:
            connection = of.connection if hasattr(of, "execute") else of
            with _Watch(connection, self._limit_s) as watch:
                try:
                    return wait(of, *arguments, **named)
                except Exception as error:
                    if not watch.has_ended:
                        raise
                    problem = f"the database did not answer within {self._limit_s:g} s"
                    raise type(error)(problem) from error

        return within_limit


class _Watch:
    """Shuts the connection's socket down unless the block ends in time.

    Time is counted in steps, so that a process that was stopped, or a machine that slept, goes on
    as if it had waited for one of them.
    """

    def __init__(self, connection: Any, limit_s: float) -> None:
        self._connection, self._step_s = connection, limit_s / _STEPS
        self._is_over, self._lock = threading.Event(), threading.Lock()
        self.has_ended = False

    def __enter__(self) -> _Watch:
        threading.Thread(target=self._wait, daemon=True, name="statement limit").start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over.set()

    def _wait(self) -> None:
        if any(self._is_over.wait(self._step_s) for _ in range(_STEPS)):
            return
        with self._lock, suppress(Exception):  # a connection that is closed has no socket
            if not self._is_over.is_set():
                self.has_ended = True
                with socket.socket(fileno=os.dup(self._connection.fileno())) as twin:
                    twin.shutdown(socket.SHUT_RDWR)
