"""Column distributions of a batch, measured in Arrow where possible and else in DuckDB.

Rows that did not change have the same distribution on both sides. So the counts of one side follow
exactly from those of the other side and from the rows that differ. Sums are rounded, so they are
computed for each side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn, SideName
from lakehouse_backfill.adapters.local.diff.counts import (
    PEEK_ROWS,
    NumberCounts,
    count_bins,
    count_values,
    is_countable_in_arrow,
    read_numbers,
)
from lakehouse_backfill.adapters.local.diff.tally import ColumnProfile, Tally
from lakehouse_backfill.core.comparison.distributions import MAX_CATEGORIES

if TYPE_CHECKING:
    import duckdb


_Sides = Mapping[SideName, pa.Table]


class ArrowProfiler:
    """Adds to a tally the distributions of the columns of a batch, where Arrow can count them.

    `profile_new_side` may run concurrently with the search for rows that differ; `profile_old_side`
    derives the old side from those rows.
    """

    def __init__(self, tally: Tally, raw: _Sides) -> None:
        self._tally = tally
        self._raw = raw
        self._columns = tally.compared
        self._bins: dict[str, NumberCounts] = {}
        self._values: dict[str, Counter[str]] = {}

    def profile_new_side(self) -> None:
        """Measure the new side, and the nulls and moments of both sides."""
        for column in self._columns:
            for side, rows in self._raw.items():
                self._tally.profile_of(column, side).nulls += rows[column.slot].null_count
                if column.kind == "number":
                    self._add_numbers(column, side)
                elif side == "new" and is_countable_in_arrow(column, side):
                    self._add_values(column, side)

    def profile_old_side(self, found: _Sides | None) -> None:
        """Measure the old side from the differing rows, or from its own rows when `found` is None.

        `found` may include rows that are equal on both sides; rows that it omits must be equal.
        """
        if found is not None and sum(map(len, found.values())) > len(self._raw["old"]):
            found = None
        for column in self._columns:
            known = found if _has_same_type(column) else None
            if column.kind != "number":
                if is_countable_in_arrow(column, "old"):
                    self._profile_old_values(column, known)
            elif self._tally.distributions:
                self._profile_old_numbers(column, known)

    def _add_numbers(self, column: DiffColumn, side: SideName) -> None:
        profile = self._tally.profile_of(column, side)
        numbers = read_numbers(self._raw[side][column.slot])
        profile.moments += numbers.moments
        if side == "new" and self._tally.distributions:
            self._bins[column.slot] = count_bins(numbers, column.origin)
            profile.histogram += self._bins[column.slot]

    def _profile_old_values(self, column: DiffColumn, found: _Sides | None) -> None:
        profile, new_counts = self._tally.profile_of(column, "old"), self._values.get(column.slot)
        if found is not None and new_counts is not None and profile.counts is not None:
            removed, added = (count_values(found[side][column.slot]) for side in _NEW_AND_OLD)
            if removed is not None and added is not None:
                profile.add_counts(new_counts + added - removed)
                return
        self._add_values(column, "old")

    def _profile_old_numbers(self, column: DiffColumn, found: _Sides | None) -> None:
        new_bins = self._bins.get(column.slot)
        if found is None or new_bins is None:
            bins = self._count_bins(column, self._raw["old"])
        else:
            removed, added = (self._count_bins(column, found[side]) for side in _NEW_AND_OLD)
            bins = new_bins - removed + added
        self._tally.profile_of(column, "old").histogram += bins

    def _count_bins(self, column: DiffColumn, rows: pa.Table) -> NumberCounts:
        return count_bins(read_numbers(rows[column.slot]), column.origin)

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


def count_values_in_duckdb(connection: duckdb.DuckDBPyConnection, tally: Tally) -> None:
    """Add to the tally the values of views `old` and `new` that Arrow cannot count."""
    sides: tuple[SideName, SideName] = ("old", "new")
    for column in tally.compared:
        for side in sides:
            if not is_countable_in_arrow(column, side):
                _count_values(connection, tally.profile_of(column, side), column.slot, side)


def _count_values(
    connection: duckdb.DuckDBPyConnection, profile: ColumnProfile, slot: str, side: SideName
) -> None:
    """Count the values of a column unless it has too many, which its first rows may show."""
    first_rows = f"SELECT {slot} FROM {side} LIMIT {PEEK_ROWS}"
    peek = f"SELECT count(DISTINCT {slot}) FROM ({first_rows})"
    if profile.counts is None or connection.execute(peek).fetchall()[0][0] > MAX_CATEGORIES:
        profile.counts = None
        return
    query = (
        f"SELECT CAST({slot} AS VARCHAR), count(*) FROM {side} WHERE {slot} IS NOT NULL "
        f"GROUP BY {slot} LIMIT {MAX_CATEGORIES + 1}"
    )
    profile.add_counts(dict(connection.execute(query).fetchall()))
