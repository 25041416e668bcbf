"""Column distributions of a batch.

Measuring how columns are spread, as they lie in Arrow.

What has not changed is spread alike on both sides. So the counts of one side follow from those of
the other and from the rows that differ: exactly, as counts have no rounding (sums have: they are
taken of each side).

Measuring how each column is distributed on both sides of a batch.
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
#: What is counted of number columns, by slot and side, until all batches have come.
BinAccumulators = defaultdict[tuple[str, SideName], BinAccumulator]


class ArrowProfiler:
    """Adds the distributions of those columns of a batch that can be counted in Arrow to a tally.

    `count_values` and `count_numbers` measure the new side and may run beside the search for rows
    that differ; `finish` measures the old side by those.
    """

    def __init__(self, tally: Tally, raw: _Sides, pending: BinAccumulators) -> None:
        self._tally = tally
        self._pending = pending
        self._raw = raw
        compared = [column for column in tally.columns if column.use == "compared"]
        self._numbers = [column for column in compared if column.kind == "number"]
        self._others = [column for column in compared if column.kind != "number"]
        #: From where to where the numbers of both sides reach, by slot.
        self._ranges: dict[str, tuple[Any, Any]] = {}
        self._bins: dict[str, BinnedNumbers] = {}
        self._values: dict[str, Counter[str]] = {}

    def count_values(self) -> None:
        """Count the values of the new side; of the old one nulls."""
        for column in self._others:
            for side in self._countable_sides(column):
                values = self._raw[side][column.slot]
                self._tally.profile_of(column, side).nulls += values.null_count
            if self._is_measured(column, "new"):
                self._add_values(column, "new")

    def count_numbers(self) -> None:
        """Measure the numbers of the new side; of the old one their moments."""
        for column in self._numbers:
            read = {side: self._add_moments(column, side) for side in self._countable_sides(column)}
            ends = [each for one in read.values() for each in (one.low, one.high)]
            known = [end for end in ends if end is not None]
            if known and self._tally.distributions:
                low, high = self._ranges[column.slot] = min(known), max(known)
                if "new" in read:
                    self._bins[column.slot] = bin_numbers(read["new"], low, high)
                    self._pending[column.slot, "new"].add(self._bins[column.slot])

    def profile_old_side(self, found: _Sides | None) -> None:
        """Measure the old side: by all rows that differ, or by its own (None: they are not known).

        Rows of `found` may be alike on both sides; those that are left out have to be.
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
        values, spread = self._raw[side][column.slot], self._tally.profile_of(column, side)
        found, nulls = counts.read_numbers(values), values.null_count
        spread.nulls += nulls
        spread.moments += replace(found.moments, nulls=nulls)
        return found

    def _profile_old_values(self, column: DiffColumn, found: _Sides | None) -> None:
        spread, known = self._tally.profile_of(column, "old"), self._values.get(column.slot)
        if found is None or known is None or spread.counts is None:
            self._add_values(column, "old")
            return
        gone, come = (
            count_values(found["new"][column.slot]),
            count_values(found["old"][column.slot]),
        )
        if gone is None or come is None:
            self._add_values(column, "old")
        else:
            spread.add_counts(apply_count_changes(known, gone, come))

    def _profile_old_numbers(self, column: DiffColumn, found: _Sides | None) -> None:
        known = self._bins.get(column.slot)
        if found is None or known is None:
            self._pending[column.slot, "old"].add(self._bin_column(column, self._raw["old"]))
        else:
            gone, come = (self._bin_column(column, found[side]) for side in _NEW_AND_OLD)
            self._pending[column.slot, "old"].add(known, gone.negated(), come)

    def _bin_column(self, column: DiffColumn, rows: pa.Table) -> BinnedNumbers:
        # Both sides of a batch are counted in the bins of what they span together.
        return bin_numbers(counts.read_numbers(rows[column.slot]), *self._ranges[column.slot])

    def _add_values(self, column: DiffColumn, side: SideName) -> None:
        spread = self._tally.profile_of(column, side)
        if spread.counts is None:
            return
        found = count_values(self._raw[side][column.slot])
        if found is None:
            spread.counts = None
            return
        spread.add_counts(found)
        if side == "new":
            self._values[column.slot] = found


_NEW_AND_OLD: tuple[SideName, SideName] = ("new", "old")


def _has_same_type(column: DiffColumn) -> bool:
    """Tell whether equal values of both sides are counted alike."""
    if column.old is None or column.new is None:
        return False
    return bool(column.old.field_type == column.new.field_type)


# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, … and of a parsed, rewritten condition)


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
        spreads = {column.slot: tally.profile_of(column, side) for column in others}
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
        spread, nulls = tally.profile_of(column, side), row.pop(0)
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
        spreads[slot].add_counts(values)


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
