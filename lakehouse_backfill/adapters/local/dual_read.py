"""A reader's own query on two states of a table, in an isolated DuckDB (U8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.local.duckdb_engine import start_duckdb
from lakehouse_backfill.adapters.local.reader import snapshot_stream
from lakehouse_backfill.domain.catch_up import TableState
from lakehouse_backfill.domain.rollout import QueryAnswer, QueryComparison, ReaderQuery
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyiceberg.catalog import Catalog


# ruff: noqa: S608 (the SQL around the reader's query uses our own slots c0, c1, …)


#: Differing rows that are kept of each side.
SAMPLES = 5
#: The relation that a query names instead of the table.
RELATION_NAME = "product"
_INEXACT_TYPES = ("FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True)
class _QueryResult:
    """One side's result, stored as a table: its columns, their types, and the seconds it took."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    seconds: float = field(default=0.0, compare=False)


def compare_query(
    catalog: Catalog, query: ReaderQuery, old: TableState, new: TableState
) -> QueryComparison:
    """Run the query on both states and compare the results as multisets of rows.

    Rows stream; results are stored in DuckDB and may spill. Raises ConfigError when the query
    is not a single SELECT, or fails.
    """

    def read(state: TableState) -> pa.RecordBatchReader:
        return snapshot_stream(catalog, state.table, state.snapshot_id)

    return compare_streams(query, old, new, read)


def compare_streams(
    query: ReaderQuery,
    old: TableState,
    new: TableState,
    read: Callable[[TableState], pa.RecordBatchReader],
) -> QueryComparison:
    """Run the query on the rows that `read` streams of both states; otherwise as `compare_query`.

    A state may be a place outside the lake.
    """
    with (
        TemporaryDirectory(prefix="lhb-read-") as spill,
        _translate_query_errors(query),
        closing(start_duckdb(spill)) as db,
    ):
        db.execute("SET lock_configuration = true")
        statement = _require_one_select(query)
        before = _run_query(db, read, statement, old, "old_result")
        after = _run_query(db, read, statement, new, "new_result")
        has_same_shape = before == after
        if has_same_shape:
            _store_differences(db, query, before)
        kind = "only" if has_same_shape else "result"
        only_old = _sample_rows(db, f"old_{kind}", before.columns)
        only_new = _sample_rows(db, f"new_{kind}", after.columns)
        return QueryComparison(
            reader=query.reader,
            sql=query.sql,
            tolerance=query.tolerance,
            old=old,
            new=new,
            columns=after.columns,
            old_answer=_digest_result(db, "old_result", len(before.columns)),
            new_answer=_digest_result(db, "new_result", len(after.columns)),
            equal=has_same_shape and not (only_old or only_new),
            only_old=only_old,
            only_new=only_new,
            seconds=(before.seconds, after.seconds),
        )


def _run_query(
    db: duckdb.DuckDBPyConnection,
    read: Callable[[TableState], pa.RecordBatchReader],
    sql: str,
    state: TableState,
    name: str,
) -> _QueryResult:
    started = perf_counter()
    rows = read(state)
    db.register(RELATION_NAME, rows)
    result = db.sql(sql)
    columns, types = tuple(result.columns), tuple(str(kind) for kind in result.types)
    result.create(name)
    db.unregister(RELATION_NAME)
    return _QueryResult(columns, types, round(perf_counter() - started, 3))


def _require_one_select(query: ReaderQuery) -> str:
    import duckdb

    statements = duckdb.extract_statements(query.sql)
    kinds = [statement.type.name for statement in statements]
    if kinds != ["SELECT"]:
        raise ConfigError(
            f"the query of {query.reader} must be one SELECT, but holds "
            f"{', '.join(kinds) or 'nothing'}",
            fix=f"write one SELECT over the relation {RELATION_NAME}",
        )
    return statements[0].query


def _store_differences(
    db: duckdb.DuckDBPyConnection, query: ReaderQuery, shape: _QueryResult
) -> None:
    """Fill `old_only` and `new_only` with the rows that have no equal on the other side.

    With a tolerance, rows are paired by their exact columns, in the order of the inexact ones. The
    inexact values of a pair may differ by that share of the larger value.
    """
    slots = [f"c{number}" for number in range(len(shape.columns))]
    inexact = [
        s for s, kind in zip(slots, shape.types, strict=True) if kind.startswith(_INEXACT_TYPES)
    ]
    if not query.tolerance or not inexact:
        for mine, other in (("old", "new"), ("new", "old")):
            db.execute(
                f"CREATE TEMP TABLE {mine}_only AS SELECT * FROM {mine}_result "
                f"EXCEPT ALL SELECT * FROM {other}_result"
            )
        return
    exact = [slot for slot in slots if slot not in inexact]
    alias = f"r({', '.join(slots)})"
    for side in ("old", "new"):
        partition_by = f"PARTITION BY {', '.join(exact)} " if exact else ""
        db.execute(
            f"CREATE TEMP TABLE {side}_numbered AS SELECT *, row_number() OVER "
            f"({partition_by}ORDER BY {', '.join(inexact)}) AS place FROM {side}_result AS {alias}"
        )
    matched = " AND ".join(f"o.{slot} IS NOT DISTINCT FROM n.{slot}" for slot in [*exact, "place"])
    near = " AND ".join(_within_tolerance_sql(slot) for slot in inexact)
    for mine, other, left, right in (("old", "new", "o", "n"), ("new", "old", "n", "o")):
        db.execute(
            f"CREATE TEMP TABLE {mine}_only AS SELECT {', '.join(f'{left}.{s}' for s in slots)} "
            f"FROM {mine}_numbered {left} ANTI JOIN {other}_numbered {right} "
            f"ON {matched} AND {near}",
            {"tolerance": query.tolerance},
        )


def _within_tolerance_sql(slot: str) -> str:
    """Return the SQL condition under which two inexact values are equal; null equals null only."""
    old_number, new_number = f"o.{slot}::DOUBLE", f"n.{slot}::DOUBLE"
    return (
        f"(o.{slot} IS NOT DISTINCT FROM n.{slot} OR coalesce(abs({old_number} - {new_number}) "
        f"<= $tolerance * greatest(abs({old_number}), abs({new_number})), false))"
    )


def _digest_result(db: duckdb.DuckDBPyConnection, name: str, width: int) -> QueryAnswer:
    slots = [f"c{number}" for number in range(width)]
    texts = ", ".join(f"coalesce({slot}::VARCHAR, chr(1))" for slot in slots)
    rows, digest = db.execute(
        "SELECT count(*), sha256(coalesce(string_agg(mark, '' ORDER BY mark), '')) FROM "
        f"(SELECT sha256(concat_ws(chr(0), {texts})) AS mark FROM {name} AS r({', '.join(slots)}))"
    ).fetchall()[0]
    return QueryAnswer(rows=rows, digest=str(digest))


def _sample_rows(
    db: duckdb.DuckDBPyConnection, name: str, columns: tuple[str, ...]
) -> tuple[dict[str, Any], ...]:
    rows = db.execute(f"SELECT * FROM {name} ORDER BY ALL LIMIT {SAMPLES}").fetchall()
    return tuple(
        {column: to_json_value(value) for column, value in zip(columns, row, strict=True)}
        for row in rows
    )


@contextmanager
def _translate_query_errors(query: ReaderQuery) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise ConfigError(
            f"the query of {query.reader} cannot be run: {error}",
            fix=f"correct it: one SELECT over the relation {RELATION_NAME}, which has the "
            "product's columns; no file, extension or setting can be reached",
        ) from error
