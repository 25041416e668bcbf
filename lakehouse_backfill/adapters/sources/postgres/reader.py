"""Reads a table of PostgreSQL as rows of the table that it becomes, in one database snapshot.

One transaction, REPEATABLE READ and read only, serves the survey, the copy and readers' queries: so
counts and checksums are of the rows that are copied, whatever is committed there meanwhile. The
snapshot ends with the process; another process must begin again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

from lakehouse_backfill.core.migration.fit import batch_rows, find_database_fault, key_kind
from lakehouse_backfill.domain.sources.migration import (
    MigrationPart,
    MigrationSurvey,
    PostgresTable,
)
from lakehouse_backfill.errors import Blocked, ConfigError, NotFound, RejectedInput, SourceDown

if TYPE_CHECKING:
    import pyarrow as pa

    from lakehouse_backfill.ports.migration import RowSums
    from lakehouse_backfill.ports.system import Progress

#: Rows of the first batch; the next ones are as large as the rows so far allow.
_FIRST_ROWS_READ = 500
_NOTHING = "nothing was migrated"
#: Instants and numbers are written so that they are read back exactly; a policy that would hide
#: rows is an error; nothing can be written.
_SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "SET LOCAL TimeZone TO 'UTC'",
    "SET LOCAL DateStyle TO 'ISO, YMD'",
    "SET LOCAL extra_float_digits TO 1",
    "SET LOCAL row_security TO off",
)
#: How a column is selected, by its type, where the driver would not give the plain value.
_CASTS = {
    "json": "text", "jsonb": "text", "uuid": "text", "real": "float8", "uuid[]": "text[]",
    "json[]": "text[]", "jsonb[]": "text[]", "real[]": "float8[]",
}  # fmt: skip
_DATES = ("date", "timestamp")
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), n.nspname, c.relname
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n
ON n.oid = c.relnamespace
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_SELECT = "SELECT {columns}"
_FINITE = "SELECT {finite}"
_FIRST_ROWS = " FROM {table} WHERE {key} <= %s::{kind}"
_NEXT_ROWS = " FROM {table} WHERE {key} > %s::{kind} AND {key} <= %s::{kind}"


@dataclass
class PostgresPlace:
    """`ports.migration.OldPlace` for a table or view of PostgreSQL."""

    declared: PostgresTable
    schema: pa.Schema
    required: frozenset[str]
    new_sums: Callable[[], RowSums]
    progress: Progress
    is_lasting: bool = False
    _connection: Any = None
    _types: dict[str, str] = field(default_factory=dict)
    _relation: tuple[str, str] = ("", "")
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def name(self) -> str:
        """The table; where its database is, is in no message."""
        return f"postgres table {self.declared.table}"

    def survey(self) -> MigrationSurvey:
        """Read every row once, range by range of the key; a range with a bad value is rejected."""
        rows, snapshot = self._describe()
        bounds = self._bounds()
        self.progress.start(f"reading {self.name}", len(bounds), "ranges")
        parts: list[MigrationPart] = []
        try:
            for after, last in zip([None, *bounds], bounds, strict=False):
                parts.append(self._judge(len(parts), after, last))
                self.progress.advance(1, rows=parts[-1].rows)
        finally:
            self.progress.finish()
        found = sum(
            self._count(part.keys) if part.action == "reject" and part.keys else part.rows
            for part in parts
        )
        if found != rows:
            raise Blocked(
                f"{self.name} has {rows} rows, and its ranges of {self.declared.key} {found}",
                state=_NOTHING,
                fix="name a key whose values are in one order",
            )
        return MigrationSurvey(tuple(parts), (f"database snapshot {snapshot}, {rows} rows",))

    def batches(self, part: MigrationPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of keys, as the snapshot has them."""
        yield from self._rows(*(part.keys or (None, "")))

    def changed(self, parts: Iterable[MigrationPart]) -> tuple[str, ...]:  # noqa: ARG002
        """Return nothing: a snapshot does not change."""
        return ()

    def added(self, survey: MigrationSurvey) -> tuple[str, ...]:  # noqa: ARG002
        """Return nothing: a snapshot does not change."""
        return ()

    def _judge(self, number: int, after: str | None, last: str) -> MigrationPart:
        known: dict[str, Any] = {"name": f"range {number + 1:06d}", "keys": (after, last)}
        sums = self.new_sums()
        try:
            self._require_finite(after, last)
            for batch in self._rows(after, last):
                sums.add(batch)
        except RejectedInput as error:
            return MigrationPart(**known, action="reject", because=error.problem)
        found = {label: one.checksum for label, one in sums.groups().items()}
        return MigrationPart(
            **known,
            action="rewrite",
            because="rows of a database",
            rows=sum(one.rows for one in found.values()),
            sums=found,
        )

    def _describe(self) -> tuple[int, str]:
        """Read columns, and the number of rows; raises Blocked for what cannot be migrated."""
        found = self._fetch(_COLUMNS, (self.declared.table,))
        if not found:
            raise NotFound(
                f"there is no table {self.declared.table} in the database, or it may not be seen",
                fix="write postgres.table as SQL names it, e.g. public.trips",
            )
        self._types = {name: kind for name, kind, _, _ in found}
        self._relation = (found[0][2], found[0][3])
        wanted = {one.name: str(one.type) for one in self.schema}
        fault = find_database_fault(self._types, wanted, self.required)
        key = self.declared.key
        if fault is None and key not in self._types:
            fault = f"the key {key} is no column"
        if fault is not None:
            raise Blocked(
                f"{self.name}: {fault}",
                state=_NOTHING,
                fix="name a view that has the columns of the contract, each in a type that fits",
            )
        ((rows, keys, snapshot),) = self._fetch(
            "SELECT count(*), count({key}), txid_current_snapshot()::text FROM {table}"
        )
        if keys < rows:
            raise Blocked(
                f"{self.name}: the key {key} is null in {rows - keys} rows",
                state=_NOTHING,
                fix="name a column without nulls in postgres.key",
            )
        return rows, snapshot

    def _bounds(self) -> list[str]:
        """Return the last key of each range, as texts."""
        size = self.declared.rows_per_part
        found = self._fetch(
            "SELECT k::text FROM (SELECT {key} AS k, row_number() OVER (ORDER BY {key}) AS n, "
            "count(*) OVER () AS c FROM {table}) AS numbered WHERE n %% %s = 0 OR n = c ORDER BY n",
            (size,),
        )
        # Rows with the same key belong to one range.
        return list(dict.fromkeys(text for (text,) in found))

    def _count(self, keys: tuple[str | None, str]) -> int:
        """Return the rows of a range, also where a value of them is bad."""
        after, last = keys
        values = (last,) if after is None else (after, last)
        ((found,),) = self._fetch(
            "SELECT count(*)" + (_FIRST_ROWS if after is None else _NEXT_ROWS), values
        )
        return int(found)

    def _rows(self, after: str | None, last: str) -> Iterator[pa.RecordBatch]:
        """Stream the rows with keys after one and up to another one."""
        connection = self._connect()
        text = _SELECT + (_FIRST_ROWS if after is None else _NEXT_ROWS)
        values = [last] if after is None else [after, last]
        statement = self._sql(text)
        # A query of a reader may leave the cursor before it open.
        name = f"lhb_{next(self._numbers)}"
        with _translate_errors(self.name), connection.cursor(name=name) as cursor:
            cursor.execute(statement, values)
            size = _FIRST_ROWS_READ
            while rows := _fetch_rows(cursor, size):
                batch = self._as_batch(rows)
                size = min(10 * size, batch_rows(len(rows), batch.nbytes))
                yield batch

    def _require_finite(self, after: str | None, last: str) -> None:
        """Raise RejectedInput for an infinite date: the driver would make the last day of it."""
        names = self._dates()
        if not names:
            return
        text = _FINITE + (_FIRST_ROWS if after is None else _NEXT_ROWS)
        values = (last,) if after is None else (after, last)
        (found,) = self._fetch(text, values)
        for name, is_infinite in zip(names, found, strict=True):
            if is_infinite:
                raise _bad(f"column {name} has a value that is infinite")

    def _dates(self) -> list[str]:
        return [name for name in self._selected() if self._types[name].startswith(_DATES)]

    def _as_batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        import pyarrow as pa

        at = {name: place for place, name in enumerate(self._selected())}
        columns = []
        for one in self.schema:
            if one.name not in at:
                columns.append(pa.nulls(len(rows), one.type))
                continue
            column = _exact_array([row[at[one.name]] for row in rows], one)
            if one.name in self.required and column.null_count:
                raise _bad(f"the required column {one.name} has a null")
            columns.append(column)
        plain = pa.schema([pa.field(one.name, one.type) for one in self.schema])
        return pa.RecordBatch.from_arrays(columns, schema=plain)

    def _selected(self) -> list[str]:
        return [name for name in self.schema.names if name in self._types]

    def _sql(self, text: str) -> Any:
        """Return a statement whose names are quoted by the driver; run it with values."""
        from psycopg2 import sql

        def quote(*names: str) -> Any:
            # The driver looks for its placeholders in names, too.
            return sql.Identifier(*(name.replace("%", "%%") for name in names))

        columns = []
        for name in self._selected():
            cast = _CASTS.get(self._types[name])
            columns.append(quote(name) + sql.SQL(f"::{cast}") if cast else quote(name))
        return sql.SQL(text).format(
            columns=sql.SQL(", ").join(columns),
            finite=sql.SQL(", ").join(
                sql.SQL("bool_or(NOT isfinite({}))").format(quote(name)) for name in self._dates()
            ),
            table=quote(*self._relation),
            key=quote(self.declared.key),
            # One of the types that fit, as the database writes it.
            kind=sql.SQL(key_kind(self._types.get(self.declared.key, "text"))),
        )

    def _fetch(self, text: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        connection = self._connect()
        statement = self._sql(text) if self._types else text
        with _translate_errors(self.name), connection.cursor() as cursor:
            cursor.execute(statement, values)
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    def _connect(self) -> Any:
        """Open the one transaction; raises ConfigError, SourceDown."""
        if self._connection is not None:
            return self._connection
        variable = self.declared.dsn
        if not os.environ.get(variable):
            raise ConfigError(
                f"the environment variable {variable} is not set",
                fix=f"export {variable}='host=… dbname=… user=…'",
            )
        try:
            import psycopg2
        except ImportError as error:
            raise ConfigError(
                "the driver of PostgreSQL is not installed",
                fix="pip install 'lakehouse-backfill[postgres]'",
            ) from error
        with _translate_errors(self.name):
            connection = psycopg2.connect(os.environ[variable])
            with connection.cursor() as cursor:
                for setting in _SETTINGS:
                    cursor.execute(setting)
        self._connection = connection
        return connection


def _fetch_rows(cursor: Any, size: int) -> list[tuple[Any, ...]]:
    """Return the next rows; raises RejectedInput for a value that Python cannot hold."""
    try:
        rows: list[tuple[Any, ...]] = cursor.fetchmany(size)
    except UnicodeDecodeError as error:
        raise _bad("a text is not in the encoding of the database") from error
    except (ValueError, OverflowError) as error:
        raise _bad("a date or instant lies outside the years 1 to 9999") from error
    return rows


def _exact_array(values: list[Any], one: pa.Field) -> pa.Array:
    """Return the values as a column, without loss; raises RejectedInput, which quotes no value."""
    import pyarrow as pa

    try:
        if str(one.type).startswith("extension<arrow.uuid"):
            texts = [None if value is None else UUID(value).bytes for value in values]
            return pa.array(texts, pa.binary(16)).cast(one.type)
        plain = [bytes(v) if isinstance(v, memoryview) else v for v in values]
        return pa.array(plain, one.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise _bad(f"column {one.name} has a value that does not fit into {one.type}") from error


@contextmanager
def _translate_errors(place: str) -> Iterator[None]:
    """Translate errors of the driver; none quotes the connection string."""
    import psycopg2

    try:
        yield
    except psycopg2.OperationalError as error:
        raise SourceDown(
            f"{place} does not answer: {_first_line(error)}",
            state="no reader sees a row of the migration",
            fix="give the command again: it takes a new snapshot of the database",
        ) from error
    except psycopg2.Error as error:
        raise Blocked(
            f"{place} cannot be read: {_first_line(error)}",
            state="no reader sees a row of the migration",
            fix="look at the rights of the user, and at the table",
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _bad(reason: str) -> RejectedInput:
    return RejectedInput(reason, state="no row of the range is migrated", fix="mend the value")
