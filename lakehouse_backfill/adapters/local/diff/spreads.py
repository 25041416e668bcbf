"""Measuring how each column is distributed on both sides of a batch."""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, … and of a parsed, rewritten condition)
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.local.diff.bins import count_scaled_bins
from lakehouse_backfill.adapters.local.diff.tally import ColumnProfile, SideName, Tally
from lakehouse_backfill.adapters.local.diff.value_counts import PEEK_ROWS, is_countable_in_arrow
from lakehouse_backfill.core.comparison.distributions import bin_exponent
from lakehouse_backfill.core.comparison.drift import MAX_CATEGORIES, Moments

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from lakehouse_backfill.adapters.local.diff.columns import DiffColumn


def profile_in_duckdb(
    connection: duckdb.DuckDBPyConnection, tally: Tally, raw: Mapping[SideName, pa.Table]
) -> None:
    """Add the distributions of the rows of views `old` and `new` to the tally.

    `raw` holds the sides whose views show all of their rows: what
    `plain_spreads` counts there is left out.
    """
    sides: tuple[SideName, SideName] = ("old", "new")
    for side in sides:
        compared = [column for column in tally.columns if column.use == "compared"]
        left = [
            each for each in compared if side not in raw or not is_countable_in_arrow(each, side)
        ]
        _add_nulls_and_moments(connection, tally, left, side)
        others = [column for column in left if column.kind != "number"]
        spreads = {column.slot: tally.spread(column, side) for column in others}
        _stop_counting_wide_columns(connection, spreads, side)
        _count_values(connection, spreads, side)


def _add_nulls_and_moments(
    connection: duckdb.DuckDBPyConnection, tally: Tally, columns: list[DiffColumn], side: SideName
) -> None:
    """Count nulls of all columns, and add up the number columns, in one pass."""
    if not columns:
        return
    parts = []
    for column in columns:
        parts.append(f"count(*) - count({column.slot})")
        if column.kind == "number":
            parts += _moment_sql(column)
    row = list(connection.execute(f"SELECT {', '.join(parts)} FROM {side}").fetchall()[0])
    ranges: dict[str, tuple[ColumnProfile, Moments]] = {}
    for column in columns:
        spread, nulls = tally.spread(column, side), row.pop(0)
        spread.nulls += nulls
        if column.kind == "number":
            moments = Moments(nulls, *row[:5])
            spread.moments += moments
            del row[:5]
            if tally.distributions and moments.values:
                ranges[column.slot] = (spread, moments)
    _count_bins(connection, ranges, side)


def _count_bins(
    connection: duckdb.DuckDBPyConnection,
    ranges: dict[str, tuple[ColumnProfile, Moments]],
    side: SideName,
) -> None:
    """Count the finite numbers of each column in bins that fit their range, in one query."""
    queries, lowest = [], {}
    for slot, (_, moments) in ranges.items():
        factor = 2.0 ** -bin_exponent(moments.minimum, moments.maximum)
        lowest[slot] = math.floor(float(moments.minimum) * factor)
        value = f"CAST({slot} AS DOUBLE)"
        # A product with a power of two is exact. From the lowest bin on there are 256: counting by
        # a byte takes no hash table.
        number = f"CAST(floor({value} * {factor!r}::DOUBLE) - {lowest[slot]} AS UTINYINT)"
        queries.append(
            f"(SELECT '{slot}' AS slot, {number} AS bin, count(*) AS rows FROM {side} "
            f"WHERE isfinite({value}) GROUP BY bin)"
        )
    if not queries:
        return
    found: dict[str, dict[int, int]] = {slot: {} for slot in ranges}
    for slot, number, rows in connection.execute(" UNION ALL ".join(queries)).fetchall():
        found[slot][lowest[slot] + number] = rows
    scaled = _count_scaled_bins(connection, list(ranges), side)
    for slot, bins in found.items():
        spread, moments = ranges[slot]
        spread.histogram.add(moments.minimum, moments.maximum, bins, scaled[slot])


def _count_scaled_bins(
    connection: duckdb.DuckDBPyConnection, slots: list[str], side: SideName
) -> dict[str, dict[int, int]]:
    """Count the finite numbers of each column in `rules.scaled_bins`, by the doubles' bits."""
    doubles = {slot: f"CAST({slot} AS DOUBLE)" for slot in slots}
    chosen = ", ".join(
        f"CASE WHEN isfinite({value}) THEN {value} END AS {slot}" for slot, value in doubles.items()
    )
    found = connection.sql(f"SELECT {chosen} FROM {side}").to_arrow_table()
    return {
        slot: count_scaled_bins([found[slot].drop_null().to_numpy()]).as_dict() for slot in slots
    }


def _moment_sql(column: DiffColumn) -> list[str]:
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
    connection: duckdb.DuckDBPyConnection, spreads: dict[str, ColumnProfile], side: SideName
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


def _stop_counting_wide_columns(
    connection: duckdb.DuckDBPyConnection, spreads: dict[str, ColumnProfile], side: SideName
) -> None:
    """Stop counting columns whose first rows alone exceed the limit: counting them all is dear."""
    slots = [slot for slot, spread in spreads.items() if spread.counts is not None]
    if not slots:
        return
    distinct = ", ".join(f"count(DISTINCT {slot})" for slot in slots)
    query = f"SELECT {distinct} FROM (SELECT {', '.join(slots)} FROM {side} LIMIT {PEEK_ROWS})"
    for slot, count in zip(slots, connection.execute(query).fetchall()[0], strict=True):
        if count > MAX_CATEGORIES:
            spreads[slot].counts = None
