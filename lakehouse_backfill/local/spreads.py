"""Measuring how each column is distributed on both sides of a batch."""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, … and of a parsed, rewritten condition)
from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.local.tally import SideName, Spread, Tally
from lakehouse_backfill.rules.drift import MAX_CATEGORIES, Moments

if TYPE_CHECKING:
    import duckdb

    from lakehouse_backfill.local.columns import Column

_PEEK_ROWS = 4 * MAX_CATEGORIES


def measure(connection: duckdb.DuckDBPyConnection, tally: Tally) -> None:
    """Add the distributions of the rows of views `old` and `new` to the tally."""
    compared = [column for column in tally.columns if column.use == "compared"]
    sides: tuple[SideName, SideName] = ("old", "new")
    for side in sides if compared else ():
        _measure_sums(connection, tally, compared, side)
        others = [column for column in compared if column.kind != "number"]
        spreads = {column.slot: tally.spread(column, side) for column in others}
        _close_wide_ones(connection, spreads, side)
        _count_values(connection, spreads, side)


def _measure_sums(
    connection: duckdb.DuckDBPyConnection, tally: Tally, columns: list[Column], side: SideName
) -> None:
    """Count nulls of all columns, and add up the number columns, in one pass."""
    parts = []
    for column in columns:
        parts.append(f"count(*) FILTER ({column.slot} IS NULL)")
        if column.kind == "number":
            parts += _sums(column)
    row = list(connection.execute(f"SELECT {', '.join(parts)} FROM {side}").fetchall()[0])
    for column in columns:
        spread, nulls = tally.spread(column, side), row.pop(0)
        spread.nulls += nulls
        if column.kind == "number":
            spread.moments += Moments(nulls, *row[:5])
            del row[:5]


def _sums(column: Column) -> list[str]:
    value = f"CAST({column.slot} AS DOUBLE)"
    # NaN and infinities are no part of a mean; only floating types have them.
    finite = f"FILTER (isfinite({value}))" if column.is_floating else ""
    return [
        f"count({column.slot}) {finite}",
        f"min({column.slot}) {finite}",
        f"max({column.slot}) {finite}",
        f"coalesce(sum({value}) {finite}, 0)",
        f"coalesce(sum({value} * {value}) {finite}, 0)",
    ]


def _count_values(
    connection: duckdb.DuckDBPyConnection, spreads: dict[str, Spread], side: SideName
) -> None:
    """Count the values of each column that may still stay under the limit."""
    queries = [
        f"(SELECT '{slot}' AS slot, CAST({slot} AS VARCHAR) AS value, count(*) AS rows "
        f"FROM {side} WHERE {slot} IS NOT NULL GROUP BY {slot} LIMIT {MAX_CATEGORIES + 1})"
        for slot, spread in spreads.items()
        if spread.counts is not None
    ]
    if not queries:
        return
    found: dict[str, dict[str, int]] = {}
    for slot, value, rows in connection.execute(" UNION ALL ".join(queries)).fetchall():
        found.setdefault(slot, {})[value] = rows
    for slot, values in found.items():
        spreads[slot].count(values)


def _close_wide_ones(
    connection: duckdb.DuckDBPyConnection, spreads: dict[str, Spread], side: SideName
) -> None:
    """Stop counting columns whose first rows alone exceed the limit: counting them all is dear."""
    slots = [slot for slot, spread in spreads.items() if spread.counts is not None]
    if not slots:
        return
    distinct = ", ".join(f"count(DISTINCT {slot})" for slot in slots)
    query = f"SELECT {distinct} FROM (SELECT {', '.join(slots)} FROM {side} LIMIT {_PEEK_ROWS})"
    for slot, count in zip(slots, connection.execute(query).fetchall()[0], strict=True):
        if count > MAX_CATEGORIES:
            spreads[slot].counts = None
