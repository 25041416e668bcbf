"""Refuses commits of a machine whose clock is wrong: its snapshots lie in the future, or the past.

Iceberg's Java API makes no commit, and loads no table, where a commit is more than a minute older
than the one before it. A commit that lies in the future therefore shuts out all writers with a
right clock until that time has come.

A reference clock is one that the deployment has: of the REST server, by the `Date` of each of its
answers; of PostgreSQL; else of a remote store, by the time of a file that was just written to it.
SQLite on a local disk has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timezone
from email.utils import parsedate_to_datetime
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate

from lakehouse_backfill import errors
from lakehouse_backfill.domain.tables.clock_skew import TOLERANCE_S, ClockSkew

#: An answer that took longer does not replace what is known.
_MAX_WAIT_S = 10.0
#: A server whose answers have no usable time is not asked before each commit.
_ASK_AGAIN_S = 300.0
#: `Date` of HTTP and times of files in a store have no fractions.
_SECOND = 1.0
_ATTRIBUTE = "reference_clock"
_LOCAL_SCHEMES = ("", "file")


def _uptime_s() -> float:
    """Return the seconds since the machine was started, those of its sleep too where it knows."""
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if kind is None else time.clock_gettime(kind)


class ReferenceClock:
    """Another machine's clock as it was read last; from there on it goes by the uptime.

    So a clock of this machine that is set while a run computes is noticed without another request.
    """

    def __init__(
        self,
        ask: Callable[[ReferenceClock], None] | None = None,
        now: Callable[[], float] = time.time,
        uptime: Callable[[], float] = _uptime_s,
    ) -> None:
        """`ask` reads the clock by a request of its own, where nothing else has shown it."""
        self._ask = ask
        self._now = now
        self.uptime = uptime
        #: Whose it is, its time minus the uptime, and how exactly that is known.
        self._read: tuple[str, float, float] | None = None
        self._ask_after = -1.0

    def note(self, whose: str, there_s: float, since: float, resolution_s: float = 0.0) -> None:
        """Note that the clock was at `there_s` at some moment from the uptime `since` until now."""
        now = self.uptime()
        within_s = (now - since + resolution_s) / 2
        if within_s <= (TOLERANCE_S if self._read is None else _MAX_WAIT_S) / 2:
            self._read = whose, there_s + resolution_s / 2 - (since + now) / 2, within_s

    def note_answer(self, headers: Mapping[str, str], since: float) -> None:
        """Note the `Date` of a server's answer to what was sent at `since`; not of a cached one."""
        if "Date" not in headers or "Age" in headers:
            return
        with suppress(ValueError, OverflowError, TypeError):
            date = parsedate_to_datetime(headers["Date"])
            if date.tzinfo is None:  # HTTP has no local times.
                date = date.replace(tzinfo=timezone.utc)
            self.note("the catalog's server", date.timestamp(), since, _SECOND)

    def note_file(self, io: FileIO, snapshot: Snapshot) -> None:
        """Note when the store says that the snapshot's list of manifests was written, just now."""
        written_s = _stored_at(io, snapshot.manifest_list)
        if written_s is not None:
            ago_s = self._now() - snapshot.timestamp_ms / 1000
            self.note("the store", written_s, self.uptime() - ago_s, _SECOND)

    def skew(self) -> ClockSkew | None:
        """Return how far this machine's clock is off; None where no other clock is known.

        Where it seems wrong, the clock is read once more, if a request can (that of a store is read
        by the next commit): a machine that slept, or was moved, has not counted all of its uptime.
        """
        found = self._known_skew()
        if self._ask is not None and (found.is_wrong if found else self.uptime() > self._ask_after):
            self._ask_after = self.uptime() + _ASK_AGAIN_S
            self._ask(self)
            found = self._known_skew()
        return found

    def _known_skew(self) -> ClockSkew | None:
        if self._read is None:
            return None
        whose, offset_s, within_s = self._read
        return ClockSkew(self._now(), self.uptime() + offset_s, within_s, whose)


def clock_of(catalog: Catalog) -> ReferenceClock | None:
    """Return the catalog's reference clock; None of a catalog that was not opened by `open`."""
    found = getattr(catalog, _ATTRIBUTE, None)
    return found if isinstance(found, ReferenceClock) else None


def require_right_clock(catalog: Catalog) -> None:
    """Raise WrongClock when this machine's clock is known to be wrong."""
    clock = clock_of(catalog)
    if clock is not None and (found := clock.skew()) is not None:
        found.require_small()


def guard_commits(catalog: Catalog, control: str) -> None:
    """Let the catalog commit, create and register only while this machine's clock is right.

    Where no server checks it, a commit that would go before the table's last one is refused too,
    but on control tables, which only this program reads.
    """
    if clock_of(catalog) is None:
        vars(catalog)[_ATTRIBUTE] = ReferenceClock(_database_reader(catalog))
    commit, is_unchecked = catalog.commit_table, isinstance(catalog, MetastoreCatalog)

    def commit_table(table: Table, *arguments: Any, **named: Any) -> CommitTableResponse:
        _note_files(catalog, table, (*arguments, *named.values()))
        require_right_clock(catalog)
        if is_unchecked and ".".join(table.name()[:-1]) != control:
            require_not_past(table)
        return commit(table, *arguments, **named)

    vars(catalog)["commit_table"] = commit_table
    for name in ("create_table", "register_table", "commit_tables"):
        if hasattr(catalog, name):
            vars(catalog)[name] = _with_right_clock(catalog, getattr(catalog, name))


def _with_right_clock(catalog: Catalog, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def checked(*arguments: Any, **named: Any) -> Any:
        require_right_clock(catalog)
        return call(*arguments, **named)

    return checked


def require_not_past(table: Table) -> None:
    """Raise WrongClock when a commit now would go before the table's last one."""
    ahead_s = table.metadata.last_updated_ms / 1000 - time.time()
    if ahead_s > TOLERANCE_S:
        raise errors.WrongClock(
            f"{'.'.join(table.name())}: its last commit is {ahead_s:,.0f} s later than this "
            "machine's clock: a clock is wrong, of this machine or of whoever made that commit",
            state="nothing was committed to it; readers see what they saw before",
            fix="set the clock right, then run the step again, not before that commit's time",
        )


def _note_files(catalog: Catalog, table: Table, changes: Iterable[Any]) -> None:
    """Read the store's clock where no other is known, by the snapshot that is to be committed.

    The first snapshot of a clone has the manifest list of its source, which was not just written.
    """
    clock = clock_of(catalog)
    if clock is None or ((found := clock.skew()) is not None and not found.is_wrong):
        return
    for updates in changes:
        for change in updates:
            if isinstance(change, AddSnapshotUpdate):
                if change.snapshot.manifest_list.startswith(f"{table.location().rstrip('/')}/"):
                    clock.note_file(table.io, change.snapshot)
                return


def _database_reader(catalog: Catalog) -> Callable[[ReferenceClock], None] | None:
    """Return what reads the clock of the catalog's database; None where it has none of its own."""
    engine: Any = getattr(catalog, "engine", None)
    if engine is None or engine.dialect.name != "postgresql":
        return None

    def read(clock: ReferenceClock) -> None:
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        # A database that does not answer takes no commit either, which says so itself.
        with suppress(SQLAlchemyError), engine.connect() as opened:
            connection = opened.execution_options(isolation_level="AUTOCOMMIT")
            since = clock.uptime()
            found = connection.execute(text("SELECT extract(epoch FROM clock_timestamp())"))
            clock.note("the catalog's database", float(found.scalar_one()), since)

    return read


def _stored_at(io: FileIO, place: str) -> float | None:
    """Return when a remote store says that the file was written; None of a local disk."""
    if urlsplit(place).scheme in _LOCAL_SCHEMES:
        return None
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        return None  # another library reads the store
    with suppress(OSError):
        scheme, netloc, path = io.parse_location(place)
        found = io.fs_by_scheme(scheme, netloc).get_file_info(path).mtime
        return None if found is None else float(found.timestamp())
    return None
