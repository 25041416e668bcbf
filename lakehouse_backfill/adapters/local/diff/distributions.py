"""Column distributions of a batch, measured in Arrow where possible and else in DuckDB.

Rows that did not change have the same distribution on both sides. So the counts of one side follow
exactly from those of the other side and from the rows that differ. Sums are rounded, so they are
computed for each side.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse_backfill.adapters.local.diff import counts
from lakehouse_backfill.adapters.local.diff.columns import DiffColumn, SideName
from lakehouse_backfill.adapters.local.diff.counts import (
    PEEK_ROWS,
    BinAccumulator,
    BinnedNumbers,
    apply_count_changes,
    bin_numbers,
    count_scaled_bins,
    count_values,
    is_countable_in_arrow,
)
from lakehouse_backfill.adapters.local.diff.tally import ColumnProfile, Tally
from lakehouse_backfill.core.comparison.distributions import MAX_CATEGORIES, Moments, bin_exponent

if TYPE_CHECKING:
    import duckdb


_Sides = Mapping[SideName, pa.Table]
#: Pending bins of number columns, by slot and side, until all batches are compared.
BinAccumulators = defaultdict[tuple[str, SideName], BinAccumulator]


class ArrowProfiler:
    """Adds to a tally the distributions of those columns of a batch that Arrow can count.

    `count_values` and `count_numbers` measure the new side and may run concurrently with the search
    for rows that differ; `profile_old_side` derives the old side from those rows.
    """

    def __init__(self, tally: Tally, raw: _Sides, pending: BinAccumulators) -> None:
        self._tally = tally
        self._pending = pending
        self._raw = raw
        compared = [column for column in tally.columns if column.use == "compared"]
        self._numbers = [column for column in compared if column.kind == "number"]
        self._others = [column for column in compared if column.kind != "number"]
        #: Lowest and highest number of both sides, by slot.
        self._ranges: dict[str, tuple[Any, Any]] = {}
        self._bins: dict[str, BinnedNumbers] = {}
        self._values: dict[str, Counter[str]] = {}

    def count_values(self) -> None:
        """Count the values of the new side and the nulls of both sides."""
        for column in self._others:
            for side in self._countable_sides(column):
                values = self._raw[side][column.slot]
                self._tally.profile_of(column, side).nulls += values.null_count
            if self._is_measured(column, "new"):
                self._add_values(column, "new")

    def count_numbers(self) -> None:
        """Measure the numbers of the new side, and the moments of both sides."""
        for column in self._numbers:
            numbers = {
                side: self._add_moments(column, side) for side in self._countable_sides(column)
            }
            ends = [
                bound
                for side_numbers in numbers.values()
                for bound in (side_numbers.low, side_numbers.high)
            ]
            known_ends = [end for end in ends if end is not None]
            if known_ends and self._tally.distributions:
                low, high = self._ranges[column.slot] = min(known_ends), max(known_ends)
                if "new" in numbers:
                    self._bins[column.slot] = bin_numbers(numbers["new"], low, high)
                    self._pending[column.slot, "new"].add(self._bins[column.slot])

    def profile_old_side(self, found: _Sides | None) -> None:
        """Measure the old side from the differing rows, or from its own rows when `found` is None.

        `found` may include rows that are equal on both sides; rows that it omits must be equal.
        """
        if found is not None and sum(map(len, found.values())) > len(self._raw.get("old", ())):
            found = None
        for column in [*self._numbers, *self._others]:
            if not self._is_measured(column, "old"):
                continue
            known = found if _has_same_type(column) else None
            if column.kind != "number":
                self._profile_old_values(column, known)
            elif column.slot in self._ranges:
                self._profile_old_numbers(column, known)

    def _is_measured(self, column: DiffColumn, side: SideName) -> bool:
        return side in self._raw and is_countable_in_arrow(column, side)

    def _countable_sides(self, column: DiffColumn) -> list[SideName]:
        return [side for side in self._raw if is_countable_in_arrow(column, side)]

    def _add_moments(self, column: DiffColumn, side: SideName) -> counts.FiniteNumbers:
        values, profile = self._raw[side][column.slot], self._tally.profile_of(column, side)
        numbers, nulls = counts.read_numbers(values), values.null_count
        profile.nulls += nulls
        profile.moments += replace(numbers.moments, nulls=nulls)
        return numbers

    def _profile_old_values(self, column: DiffColumn, found: _Sides | None) -> None:
        profile, new_counts = self._tally.profile_of(column, "old"), self._values.get(column.slot)
        if found is None or new_counts is None or profile.counts is None:
            self._add_values(column, "old")
            return
        removed, added = (
            count_values(found["new"][column.slot]),
            count_values(found["old"][column.slot]),
        )
        if removed is None or added is None:
            self._add_values(column, "old")
        else:
            profile.add_counts(apply_count_changes(new_counts, removed, added))

    def _profile_old_numbers(self, column: DiffColumn, found: _Sides | None) -> None:
        new_bins = self._bins.get(column.slot)
        if found is None or new_bins is None:
            self._pending[column.slot, "old"].add(self._bin_column(column, self._raw["old"]))
        else:
            removed, added = (self._bin_column(column, found[side]) for side in _NEW_AND_OLD)
            self._pending[column.slot, "old"].add(new_bins, removed.negated(), added)

    def _bin_column(self, column: DiffColumn, rows: pa.Table) -> BinnedNumbers:
        # Both sides of a batch use the bins of their common range.
        return bin_numbers(counts.read_numbers(rows[column.slot]), *self._ranges[column.slot])

    def _add_values(self, column: DiffColumn, side: SideName) -> None:
        profile = self._tally.profile_of(column, side)
        if profile.counts is None:
            return
        value_counts = count_values(self._raw[side][column.slot])
        if value_counts is None:
            profile.counts = None
            return
        profile.add_counts(value_counts)
        if side == "new":
            self._values[column.slot] = value_counts


_NEW_AND_OLD: tuple[SideName, SideName] = ("new", "old")


def _has_same_type(column: DiffColumn) -> bool:
    """Return whether equal values of both sides are counted alike."""
    if column.old is None or column.new is None:
        return False
    return bool(column.old.field_type == column.new.field_type)


# ruff: noqa: S608 (the SQL uses our own slots c0, c1, … and a parsed, rewritten condition)


def profile_in_duckdb(
    connection: duckdb.DuckDBPyConnection, tally: Tally, raw: Mapping[SideName, pa.Table]
) -> None:
    """Add the distributions of the rows of views `old` and `new` to the tally.

    `raw` holds the sides whose views show all of their rows; what `ArrowProfiler` counts there is
    left out.
    """
    sides: tuple[SideName, SideName] = ("old", "new")
    for side in sides:
        compared = [column for column in tally.columns if column.use == "compared"]
        remaining = [
            each for each in compared if side not in raw or not is_countable_in_arrow(each, side)
        ]
        _add_nulls_and_moments(connection, tally, remaining, side)
        others = [column for column in remaining if column.kind != "number"]
        profiles = {column.slot: tally.profile_of(column, side) for column in others}
        _stop_counting_wide_columns(connection, profiles, side)
        _count_values(connection, profiles, side)


def _add_nulls_and_moments(
    connection: duckdb.DuckDBPyConnection, tally: Tally, columns: list[DiffColumn], side: SideName
) -> None:
    """Count the nulls of all columns and sum the number columns, in one pass."""
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
        profile, nulls = tally.profile_of(column, side), row.pop(0)
        profile.nulls += nulls
        if column.kind == "number":
            moments = Moments(nulls, *row[:5])
            profile.moments += moments
            del row[:5]
            if tally.distributions and moments.values:
                ranges[column.slot] = (profile, moments)
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
        # A product with a power of two is exact. There are 256 bins from the lowest one on, and
        # counting by a byte takes no hash table.
        bin_sql = f"CAST(floor({value} * {factor!r}::DOUBLE) - {lowest[slot]} AS UTINYINT)"
        queries.append(
            f"(SELECT '{slot}' AS slot, {bin_sql} AS bin, count(*) AS rows FROM {side} "
            f"WHERE isfinite({value}) GROUP BY bin)"
        )
    if not queries:
        return
    bins_by_slot: dict[str, dict[int, int]] = {slot: {} for slot in ranges}
    for slot, bin_sql, rows in connection.execute(" UNION ALL ".join(queries)).fetchall():
        bins_by_slot[slot][lowest[slot] + bin_sql] = rows
    scaled = _count_scaled_bins(connection, list(ranges), side)
    for slot, bins in bins_by_slot.items():
        profile, moments = ranges[slot]
        profile.histogram.add(moments.minimum, moments.maximum, bins, scaled[slot])


def _count_scaled_bins(
    connection: duckdb.DuckDBPyConnection, slots: list[str], side: SideName
) -> dict[str, dict[int, int]]:
    """Count the finite numbers of each column in scaled bins, by the bits of the doubles."""
    doubles = {slot: f"CAST({slot} AS DOUBLE)" for slot in slots}
    chosen = ", ".join(
        f"CASE WHEN isfinite({value}) THEN {value} END AS {slot}" for slot, value in doubles.items()
    )
    finite = connection.sql(f"SELECT {chosen} FROM {side}").to_arrow_table()
    return {
        slot: count_scaled_bins([finite[slot].drop_null().to_numpy()]).as_dict() for slot in slots
    }


def _moment_sql(column: DiffColumn) -> list[str]:
    value = f"CAST({column.slot} AS DOUBLE)"
    # A mean excludes NaN and infinities; only floating types have them.
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
    rows_by_slot: dict[str, dict[str, int]] = {}
    for slot, value, rows in connection.execute(" UNION ALL ".join(queries)).fetchall():
        rows_by_slot.setdefault(slot, {})[value] = rows
    for slot, values in rows_by_slot.items():
        spreads[slot].add_counts(values)


def _stop_counting_wide_columns(
    connection: duckdb.DuckDBPyConnection, spreads: dict[str, ColumnProfile], side: SideName
) -> None:
    """Stop counting columns whose first rows exceed the limit, as counting them all is slow."""
    slots = [slot for slot, spread in spreads.items() if spread.counts is not None]
    if not slots:
        return
    distinct = ", ".join(f"count(DISTINCT {slot})" for slot in slots)
    query = f"SELECT {distinct} FROM (SELECT {', '.join(slots)} FROM {side} LIMIT {PEEK_ROWS})"
    for slot, count in zip(slots, connection.execute(query).fetchall()[0], strict=True):
        if count > MAX_CATEGORIES:
            spreads[slot].counts = None
