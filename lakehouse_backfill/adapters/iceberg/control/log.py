"""A control table as a log.

Rows are appended, and properties set, in one conditional commit. The first commit wins; other
writers load the new head and decide again. Facts that must be read fast (a pointer, the status of
an open run) are kept in table properties, so a read is one table load, whatever the length of the
history.

Rows of tables of older releases are read too: columns that they lack get the fields' defaults.
"""

from __future__ import annotations

import importlib
import random
import time
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationException
from pyiceberg.table import Table, Transaction

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg.control import log_files
from lakehouse_backfill.adapters.iceberg.control.advisory_lock import choose_advisory_lock
from lakehouse_backfill.adapters.iceberg.control.log_files import FilterValue
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    LOG_ID,
    LOG_SEQ,
    ControlTable,
)
from lakehouse_backfill.adapters.iceberg.metadata import view_of
from lakehouse_backfill.adapters.iceberg.rest import answers
from lakehouse_backfill.fault_points import commit_window

T = TypeVar("T")
_ROWS_AT_ONCE = 200
_MAX_RELOADS = 5
#: What a view keeps of a control table: answers, and rows of each.
_MAX_KNOWN, _MAX_KNOWN_ROWS = 200, 2_000


@dataclass(frozen=True)
class LogAppend(Generic[T]):
    """The change that a decision returns: rows to append, properties to set or remove, its result.

    Without rows nothing is committed, unless `moves_head`: then the properties come with a new
    snapshot, so that every commit prepared for the old head is refused and decided again.
    """

    result: T
    rows: tuple[dict[str, Any], ...] = ()
    set_properties: Mapping[str, str] = field(default_factory=dict)
    remove_properties: tuple[str, ...] = ()
    moves_head: bool = False


class LogHead:
    """A control table at one moment; a table that does not exist is empty."""

    def __init__(self, table: Table | None) -> None:
        self.table = table
        self.properties: dict[str, str] = dict(table.properties) if table else {}
        #: What was computed from this head in a view; None outside of one.
        self.known: dict[Hashable, Any] | None = None

    @property
    def snapshot_id(self) -> int | None:
        """The head of main, or None."""
        snapshot = self.table.current_snapshot() if self.table else None
        return snapshot.snapshot_id if snapshot else None

    def named_properties(self, prefix: str) -> dict[str, str]:
        """Return the properties with this prefix, by the rest of their names."""
        found = self.properties.items()
        return {key.removeprefix(prefix): text for key, text in found if key.startswith(prefix)}

    def rows(
        self, where: Mapping[str, FilterValue] | None = None, columns: tuple[str, ...] = ("*",)
    ) -> list[dict[str, Any]]:
        """Read the rows with these values, in the order in which they were appended.

        For a set of texts, rows with any of them match. Columns that a table of an older release
        lacks are left out.
        """
        found = (frozenset((where or {}).items()), columns)
        return list(self.once(found, lambda: tuple(self.iter_rows(where, columns))))

    def once(self, question: Hashable, compute: Callable[[], T]) -> T:
        """Compute an answer from this head, in a view only once for the same question."""
        if self.known is None:
            return compute()
        if question in self.known:
            answer: T = self.known[question]
            return answer
        answer = compute()
        is_long = isinstance(answer, tuple) and len(answer) > _MAX_KNOWN_ROWS
        if len(self.known) < _MAX_KNOWN and not is_long:
            self.known[question] = answer
        return answer

    def may_hold(self, column: str, value: str) -> bool:
        """Return whether a row may have this value; a view knows it of all values by one read."""
        if self.known is None or self.table is None:
            return True
        return value in self.once(("values", column), lambda: self._values(column))

    def _values(self, column: str) -> frozenset[Any]:
        if self.table is None or self.snapshot_id is None:
            return frozenset()
        with _translate_outages(self.table.name()[-1]):
            found = log_files.read_rows(self.table, {}, {column})
        return frozenset(found[column].unique().to_pylist())

    def iter_rows(
        self, where: Mapping[str, FilterValue] | None = None, columns: tuple[str, ...] = ("*",)
    ) -> Iterator[dict[str, Any]]:
        """Yield the same rows; only a few of them are Python objects at a time."""
        if self.table is None or self.snapshot_id is None:
            return
        column_names = set(self.table.schema().column_names)
        selected = column_names if "*" in columns else {LOG_SEQ, *columns} & column_names
        with _translate_outages(self.table.name()[-1]):
            found = log_files.read_rows(self.table, where or {}, selected)
            batches = found.sort_by(LOG_SEQ).to_batches(max_chunksize=_ROWS_AT_ONCE)
        for batch in batches:
            yield from batch.to_pylist()


class ControlLog:
    """One control table of a set."""

    def __init__(
        self,
        catalog: Catalog,
        namespace: str,
        table: ControlTable,
        ensure_tables: Callable[[], None],
        require_tables: Callable[[], bool],
        budget_s: float,
    ) -> None:
        """Use `ensure_tables` and `require_tables` to create and to look for all tables of the set.

        All control tables are created before the first row is written to any of them.
        """
        self._catalog = catalog
        self._identifier = (namespace, table.name)
        self.name = table.name
        self._declared = table
        self._ensure_tables = ensure_tables
        self._require_tables = require_tables
        self._budget_s = budget_s
        self._advisory_lock = choose_advisory_lock(catalog, f"{namespace}.{table.name}")

    def head(self) -> LogHead:
        """Load the current state, in a view of the catalog that of the first read.

        In a new lake the table is empty, and is not created. Raises CatalogDown, LostFile; Tampered
        when the table or a column of it was dropped.
        """
        view = view_of(self._catalog)
        if view is None:
            return self._fresh_head()
        return view.control_tables.get(self._identifier, self._known_head)

    def _known_head(self) -> LogHead:
        head = self._fresh_head()
        head.known = {}
        return head

    def _fresh_head(self) -> LogHead:
        with _translate_outages(self.name):
            for _ in range(_MAX_RELOADS):
                try:
                    return self._load()
                except FileNotFoundError:
                    # Between the reads of the catalog's row and of the metadata file, other writers
                    # committed so often that the file was cleaned up: the row has changed.
                    continue
            return self._load()

    def _load(self) -> LogHead:
        missing = (NoSuchTableError, NoSuchNamespaceError)
        try:
            table = self._catalog.load_table(self._identifier)
        except missing:
            self._require_tables()
            with suppress(*missing):  # another process may have created it meanwhile
                return LogHead(self._catalog.load_table(self._identifier))
            return LogHead(None)
        self._require_columns(table)
        return LogHead(table)

    def _require_columns(self, table: Table) -> None:
        """Raise Tampered when the table had a column of ours that it has no more.

        A table of an older release lacks columns that it never had.
        """
        lost = {name for name, _, _ in self._declared.missing_columns(table.schema())}
        if not lost:
            return
        had = {name for schema in table.metadata.schemas for name in schema.column_names}
        if dropped := sorted(lost & had):
            name = ".".join(self._identifier)
            raise restore_error(
                f"the control table {name} has lost its columns {', '.join(dropped)}"
            )

    def append(self, decide: Callable[[LogHead], LogAppend[T]]) -> T:
        """Append what `decide` returns for the current state, in one commit; return its result.

        After another writer's commit `decide` runs again on the new state. Nothing is ever appended
        twice. Raises what `decide` raises, TooBusy, CatalogDown, OutcomeUnknown.
        """
        # Importing the writer takes longer than a commit, so it is done before the lock is held.
        importlib.import_module("pyiceberg.io.pyarrow")
        retry: _Retry[T] = _Retry(self.name, self._budget_s)
        try:
            while True:
                with self._advisory_lock.hold():
                    appended = self._attempt(retry, decide)
                if appended is not None:
                    return appended.result
                retry.pause()
        finally:
            # No view took part: a commit is decided by the head that it replaces.
            if (view := view_of(self._catalog)) is not None:
                view.control_tables.drop(self._identifier)

    def _attempt(
        self, retry: _Retry[T], decide: Callable[[LogHead], LogAppend[T]]
    ) -> LogAppend[T] | None:
        try:
            table = self._ensure_table()
        except (errors.CatalogDown, errors.LostFile) as error:
            if not retry.unknown_commits:
                raise
            retry.last_error = error
            return None
        head = LogHead(table)
        landed = retry.find_landed(head)
        if landed is not None:
            return landed
        change = decide(head)
        if not change.rows and not change.moves_head:
            return change
        token = uuid.uuid4().hex
        with _translate_outages(self.name):
            staged = log_files.stage_commit(
                table, change.rows, change.set_properties, change.remove_properties, token
            )
        failure = self._commit(staged.transaction)
        if failure is None:
            log_files.delete_doomed_files(table, staged.doomed)
            return change
        if answers.is_certain_refusal(failure) and not retry.unknown_commits:
            raise answers.refusal_error(failure) or failure from failure
        retry.last_error = failure
        if not _is_refused(failure):
            retry.unknown_commits[token] = (head.snapshot_id, change)
            retry.is_unknown |= not isinstance(failure, answers.CommitPutOffError)
        return None

    def _ensure_table(self) -> Table:
        with _translate_outages(self.name):
            are_all_there = self._require_tables()
        table = self._fresh_head().table
        if not are_all_there or table is None or self._declared.missing_columns(table.schema()):
            self._ensure_tables()
            table = self._fresh_head().table
        if table is None:
            raise errors.CatalogDown(
                f"the control table {self.name} vanished right after it was made",
                fix="lakehouse-backfill doctor",
            )
        return table

    def _commit(self, transaction: Transaction) -> Exception | None:
        """Commit; return the error of a commit that was refused, or that was not answered."""
        try:
            with commit_window(f"ControlLog.{self.name}"):
                transaction.commit_transaction()
        except Exception as error:
            is_known = _is_refused(error) or isinstance(error, answers.ResentCommitFailedError)
            if not is_known and not catalogs.is_outage(error):
                raise
            return error
        return None


def _is_refused(error: Exception) -> bool:
    if isinstance(error, answers.ResentCommitFailedError):
        return False
    is_invalid = isinstance(error, ValidationException) or answers.is_certain_refusal(error)
    return catalogs.is_lost_race(error) or is_invalid


class _Retry(Generic[T]):
    """The attempts at one append: their errors, and the remaining time."""

    def __init__(self, name: str, budget_s: float) -> None:
        self._name = name
        self._deadline = time.monotonic() + budget_s
        self._budget_s = budget_s
        self._attempts = 0
        self.last_error: Exception | None = None
        #: Commits of unknown outcome by token: the head that they require, and their change.
        self.unknown_commits: dict[str, tuple[int | None, LogAppend[T]]] = {}
        self.is_unknown = False  # one of them was not answered

    def find_landed(self, head: LogHead) -> LogAppend[T] | None:
        """Look for commits of unknown outcome; return the one that succeeded.

        Once the head has moved, a commit that is not in the table can no longer succeed.
        """
        for token, (needed, change) in list(self.unknown_commits.items()):
            if head.snapshot_id == needed:
                continue
            # A change without rows is decided again: the properties show whether it succeeded.
            if change.rows and head.rows({LOG_ID: token}, (LOG_ID,)):
                return change
            del self.unknown_commits[token]
        return None

    def pause(self) -> None:
        """Wait a little longer than the last time; raises when time and attempts are used up."""
        self._attempts += 1
        error = self._final_error()
        is_new = isinstance(error, errors.TooBusy) and self._attempts < catalogs.LEAST_ATTEMPTS
        if time.monotonic() >= self._deadline and not is_new:
            raise error from self.last_error
        max_pause_s = min(0.02 * self._attempts, 0.5)
        time.sleep(random.uniform(0, max_pause_s))  # noqa: S311 (jitter, not a secret)

    def _final_error(self) -> errors.BackfillError:
        error = self.last_error
        if self.unknown_commits and self.is_unknown:
            return errors.OutcomeUnknown(
                f"a commit to the control table {self._name} may or may not have landed ({error})",
                fix="lakehouse-backfill status",
            )
        if error and (catalogs.is_sqlite_locked(error) or not catalogs.is_lost_race(error)):
            return _unreachable_error(self._name, error)
        return errors.TooBusy(
            f"other writers of the control table {self._name} kept winning for "
            f"{self._budget_s:g} s ({self._attempts} attempts)",
            fix="try again",
        )


@contextmanager
def _translate_outages(name: str) -> Iterator[None]:
    """Translate failures to read or write files and catalog into CatalogDown or LostFile."""
    try:
        yield
    except FileNotFoundError as error:
        raise errors.LostFile(
            f"a file of the control table {name} is gone: {error}",
            state="no file was deleted; what this command did before it met the file stays",
            fix="give the command again: a concurrent clean-up may have replaced the file; if it "
            "stays gone, restore it from the store's own history or from a copy",
        ) from error
    except Exception as error:
        catalogs.require_undamaged(error)
        if not catalogs.is_outage(error):
            raise
        raise _unreachable_error(name, error) from error


def restore_error(problem: str) -> errors.Tampered:
    """Build the error for a control table that is gone, or has lost columns."""
    return errors.Tampered(
        problem,
        state="nothing was read as if it were empty; nothing was written",
        fix="register its newest whole metadata file again: docs/recovery.md, 'A control table is "
        "gone'",
    )


def _unreachable_error(name: str, error: Exception) -> errors.CatalogDown:
    return errors.CatalogDown(
        f"the control table {name} cannot be reached: {catalogs.first_error_line(error)}",
        fix="try again; lakehouse-backfill doctor says what does not answer",
    )
