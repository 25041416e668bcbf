"""Counts of a column's numbers in both kinds of bins, kept in arrays while batches come.

Counting in dictionaries batch by batch took as long as looking at the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lakehouse_backfill.adapters.local.diff.counts import Counts, counts, ends
from lakehouse_backfill.adapters.local.diff.numbers import Numbers
from lakehouse_backfill.core.comparison import scaled_bins
from lakehouse_backfill.core.comparison.distributions import Histogram, bin_exponent

_BITS_BUT_SIGN = (1 << (63 - scaled_bins.DROPPED_BITS)) - 1
_DIGITS = scaled_bins.PER_POWER - 1
#: Shifted so far, the digits of a bin are gone; further is undefined.
_ALL_BITS = 62
#: What takes the memory of so many bins is added up; the bins of one batch take some at least.
_PENDING, _LEAST = 1 << 15, 32


@dataclass(frozen=True)
class Bins:
    """The finite numbers of some rows, from low to high, in `rules.scaled_bins` and in equal bins.

    Equal bins are those of the range from low to high.
    """

    low: Any
    high: Any
    scaled: Counts
    equal: Counts

    @property
    def exponent(self) -> int:
        """How wide the equal bins are."""
        return bin_exponent(self.low, self.high)

    def taken(self) -> Bins:
        """Give the bins of rows that are to be taken off others."""
        scaled, equal = (Counts(each.numbers, -each.rows) for each in (self.scaled, self.equal))
        return Bins(self.low, self.high, scaled, equal)


@dataclass
class Pending:
    """Bins of batches that are not added up yet."""

    batches: list[Bins] = field(default_factory=list)
    _size: int = 0
    _limit: int = 0

    def add(self, *found: Bins) -> None:
        """Add the bins of a batch, or what it takes off."""
        held = [each for each in found if len(each.scaled.numbers)]
        self.batches += held
        self._size += sum(map(_size, held))
        if self._size > max(_PENDING, self._limit):
            self.batches = [_summed(self.batches)]
            self._size = _size(self.batches[0])
            # What does not get any smaller is left alone for as long as it took to come.
            self._limit = 2 * self._size

    def add_to(self, histogram: Histogram) -> None:
        """Hand over what has come so far."""
        if self.batches:
            found = _summed(self.batches)
            histogram.add(found.low, found.high, found.equal.as_dict(), found.scaled.as_dict())
        self.batches, self._size, self._limit = [], 0, 0


def _size(found: Bins) -> int:
    return _LEAST + len(found.scaled.numbers) + len(found.equal.numbers)


def binned(numbers: Numbers, low: Any, high: Any) -> Bins:
    """Count the numbers in the equal bins of a range that holds them, and in scaled ones."""
    exponent, scaled = bin_exponent(low, high), scaled_counts(numbers.doubles)
    if scaled_bins.are_finer(exponent, low, high):
        return Bins(low, high, scaled, _equal(scaled, exponent))
    # A product with a power of two is exact.
    factor = 2.0**-exponent
    first, last = (math.floor(float(end) * factor) for end in (low, high))
    equal = (np.floor(part * factor).astype(np.int64) for part in numbers.doubles)
    return Bins(low, high, scaled, counts(equal, first, last))


def scaled_counts(parts: Sequence[np.ndarray]) -> Counts:
    """Count finite doubles by `rules.scaled_bins`."""
    low, high = ends(parts)
    if low is None:
        return Counts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    first, last = scaled_bins.scaled_bin(low), scaled_bins.scaled_bin(high)
    if first > 0:
        return counts(map(_beyond_zero, parts), first, last)
    return counts(map(_from_zero if first == 0 else _scaled, parts), first, last)


def _scaled(doubles: np.ndarray) -> np.ndarray:
    begin = doubles.view(np.int64) >> scaled_bins.DROPPED_BITS
    found: np.ndarray = np.maximum((begin & _BITS_BUT_SIGN) - scaled_bins.OFFSET, 0)
    return np.where(begin < 0, -found, found)


def _from_zero(doubles: np.ndarray) -> np.ndarray:
    """Give the bins of numbers of which only -0.0 has a sign: it is zero as well."""
    found = _beyond_zero(doubles)
    np.maximum(found, 0, out=found)
    return found


def _beyond_zero(doubles: np.ndarray) -> np.ndarray:
    found: np.ndarray = doubles.view(np.int64) >> scaled_bins.DROPPED_BITS
    found -= scaled_bins.OFFSET
    return found


def _equal(scaled: Counts, exponent: int) -> Counts:
    """Give counts in equal bins, each of which holds whole scaled ones: see `rules.equal_bin`."""
    powers, digits = (scaled.numbers - 1) >> scaled_bins.DIGITS, (scaled.numbers - 1) & _DIGITS
    by = exponent + scaled_bins.DIGITS - scaled_bins.LEAST - powers
    wide = (scaled_bins.PER_POWER + digits) >> np.minimum(by, _ALL_BITS)
    return _by_bin(np.where(scaled.numbers == 0, 0, wide), scaled.rows)


def _summed(batches: Sequence[Bins]) -> Bins:
    """Add up the bins of batches, in equal bins of what all of them span."""
    low, high = min(each.low for each in batches), max(each.high for each in batches)
    wide = bin_exponent(low, high)
    equal = [each.equal.numbers >> min(wide - each.exponent, _ALL_BITS) for each in batches]
    return Bins(
        low,
        high,
        _added([each.scaled.numbers for each in batches], [each.scaled.rows for each in batches]),
        _added(equal, [each.equal.rows for each in batches]),
    )


def _added(bins: list[np.ndarray], rows: list[np.ndarray]) -> Counts:
    numbers = np.concatenate(bins)
    order = np.argsort(numbers, kind="stable")
    return _by_bin(numbers[order], np.concatenate(rows)[order])


def _by_bin(bins: np.ndarray, rows: np.ndarray) -> Counts:
    """Add up counts of ascending bins, and leave out those that are zero."""
    if not len(bins):
        return Counts(bins, rows)
    starts = np.flatnonzero(np.concatenate(([True], bins[1:] != bins[:-1])))
    sums = np.add.reduceat(rows, starts)
    held = sums != 0
    return Counts(bins[starts][held], sums[held])
