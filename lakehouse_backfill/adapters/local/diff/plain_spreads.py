"""Measuring how columns are spread, as they lie in Arrow.

What has not changed is spread alike on both sides. So the counts of one side follow from those of
the other and from the rows that differ: exactly, as counts have no rounding (sums have: they are
taken of each side).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakehouse_backfill.adapters.local.diff import numbers
from lakehouse_backfill.adapters.local.diff.bins import BinAccumulator, BinnedNumbers, bin_numbers
from lakehouse_backfill.adapters.local.diff.columns import DiffColumn
from lakehouse_backfill.adapters.local.diff.tally import SideName, Tally
from lakehouse_backfill.adapters.local.diff.value_counts import (
    apply_count_changes,
    count_values,
    is_countable_in_arrow,
)

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
            for side in self._sides(column):
                values = self._raw[side][column.slot]
                self._tally.spread(column, side).nulls += values.null_count
            if self._is_measured(column, "new"):
                self._add_values(column, "new")

    def count_numbers(self) -> None:
        """Measure the numbers of the new side; of the old one their moments."""
        for column in self._numbers:
            read = {side: self._add_moments(column, side) for side in self._sides(column)}
            ends = [each for one in read.values() for each in (one.low, one.high)]
            known = [end for end in ends if end is not None]
            if known and self._tally.distributions:
                low, high = self._ranges[column.slot] = min(known), max(known)
                if "new" in read:
                    self._bins[column.slot] = bin_numbers(read["new"], low, high)
                    self._pending[column.slot, "new"].add(self._bins[column.slot])

    def finish(self, found: _Sides | None) -> None:
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
                self._finish_values(column, known)
            elif column.slot in self._ranges:
                self._finish_bins(column, known)

    def _is_measured(self, column: DiffColumn, side: SideName) -> bool:
        return side in self._raw and is_countable_in_arrow(column, side)

    def _sides(self, column: DiffColumn) -> list[SideName]:
        return [side for side in self._raw if is_countable_in_arrow(column, side)]

    def _add_moments(self, column: DiffColumn, side: SideName) -> numbers.FiniteNumbers:
        values, spread = self._raw[side][column.slot], self._tally.spread(column, side)
        found, nulls = numbers.read_numbers(values), values.null_count
        spread.nulls += nulls
        spread.moments += replace(found.moments, nulls=nulls)
        return found

    def _finish_values(self, column: DiffColumn, found: _Sides | None) -> None:
        spread, known = self._tally.spread(column, "old"), self._values.get(column.slot)
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
            spread.count(apply_count_changes(known, gone, come))

    def _finish_bins(self, column: DiffColumn, found: _Sides | None) -> None:
        known = self._bins.get(column.slot)
        if found is None or known is None:
            self._pending[column.slot, "old"].add(self._counted(column, self._raw["old"]))
        else:
            gone, come = (self._counted(column, found[side]) for side in _NEW_AND_OLD)
            self._pending[column.slot, "old"].add(known, gone.taken(), come)

    def _counted(self, column: DiffColumn, rows: pa.Table) -> BinnedNumbers:
        # Both sides of a batch are counted in the bins of what they span together.
        return bin_numbers(numbers.read_numbers(rows[column.slot]), *self._ranges[column.slot])

    def _add_values(self, column: DiffColumn, side: SideName) -> None:
        spread = self._tally.spread(column, side)
        if spread.counts is None:
            return
        found = count_values(self._raw[side][column.slot])
        if found is None:
            spread.counts = None
            return
        spread.count(found)
        if side == "new":
            self._values[column.slot] = found


_NEW_AND_OLD: tuple[SideName, SideName] = ("new", "old")


def _has_same_type(column: DiffColumn) -> bool:
    """Tell whether equal values of both sides are counted alike."""
    if column.old is None or column.new is None:
        return False
    return bool(column.old.field_type == column.new.field_type)
