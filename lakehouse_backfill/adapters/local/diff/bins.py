"""Counts of a column's numbers in both kinds of bins, kept in arrays while batches come.

Counting in dictionaries batch by batch took as long as looking at the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lakehouse_backfill.adapters.local.diff.counts import NumberCounts, count_in_range, min_and_max
from lakehouse_backfill.adapters.local.diff.numbers import FiniteNumbers
from lakehouse_backfill.core.comparison import scaled_bins
from lakehouse_backfill.core.comparison.distributions import Histogram, bin_exponent

_MAGNITUDE_MASK = (1 << (63 - scaled_bins.DROPPED_BITS)) - 1
_DIGIT_MASK = scaled_bins.BINS_PER_POWER - 1
#: Shifted so far, the digits of a bin are gone; further is undefined.
_MAX_SHIFT = 62
#: What takes the memory of so many bins is added up; the bins of one batch take some at least.
_PENDING_LIMIT, _MIN_BATCH_SIZE = 1 << 15, 32


@dataclass(frozen=True)
class BinnedNumbers:
    """The finite numbers of some rows, from low to high, in `rules.scaled_bins` and in equal bins.

    Equal bins are those of the range from low to high.
    """

    low: Any
    high: Any
    scaled: NumberCounts
    equal: NumberCounts

    @property
    def exponent(self) -> int:
        """How wide the equal bins are."""
        return bin_exponent(self.low, self.high)

    def taken(self) -> BinnedNumbers:
        """Give the bins of rows that are to be taken off others."""
        scaled, equal = (
            NumberCounts(each.numbers, -each.rows) for each in (self.scaled, self.equal)
        )
        return BinnedNumbers(self.low, self.high, scaled, equal)


@dataclass
class BinAccumulator:
    """Bins of batches that are not added up yet."""

    batches: list[BinnedNumbers] = field(default_factory=list)
    _size: int = 0
    _limit: int = 0

    def add(self, *found: BinnedNumbers) -> None:
        """Add the bins of a batch, or what it takes off."""
        held = [each for each in found if len(each.scaled.numbers)]
        self.batches += held
        self._size += sum(map(_stored_bins, held))
        if self._size > max(_PENDING_LIMIT, self._limit):
            self.batches = [_sum_bins(self.batches)]
            self._size = _stored_bins(self.batches[0])
            # What does not get any smaller is left alone for as long as it took to come.
            self._limit = 2 * self._size

    def add_to(self, histogram: Histogram) -> None:
        """Hand over what has come so far."""
        if self.batches:
            found = _sum_bins(self.batches)
            histogram.add(found.low, found.high, found.equal.as_dict(), found.scaled.as_dict())
        self.batches, self._size, self._limit = [], 0, 0


def _stored_bins(found: BinnedNumbers) -> int:
    return _MIN_BATCH_SIZE + len(found.scaled.numbers) + len(found.equal.numbers)


def bin_numbers(numbers: FiniteNumbers, low: Any, high: Any) -> BinnedNumbers:
    """Count the numbers in the equal bins of a range that holds them, and in scaled ones."""
    exponent, scaled = bin_exponent(low, high), count_scaled_bins(numbers.doubles)
    if scaled_bins.are_scaled_bins_finer(exponent, low, high):
        return BinnedNumbers(low, high, scaled, _equal_bin_counts(scaled, exponent))
    # A product with a power of two is exact.
    factor = 2.0**-exponent
    first, last = (math.floor(float(end) * factor) for end in (low, high))
    equal = (np.floor(part * factor).astype(np.int64) for part in numbers.doubles)
    return BinnedNumbers(low, high, scaled, count_in_range(equal, first, last))


def count_scaled_bins(parts: Sequence[np.ndarray]) -> NumberCounts:
    """Count finite doubles by `rules.scaled_bins`."""
    low, high = min_and_max(parts)
    if low is None:
        return NumberCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    first, last = scaled_bins.scaled_bin(low), scaled_bins.scaled_bin(high)
    if first > 0:
        return count_in_range(map(_positive_scaled_bins, parts), first, last)
    return count_in_range(
        map(_non_negative_scaled_bins if first == 0 else _signed_scaled_bins, parts), first, last
    )


def _signed_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    begin = doubles.view(np.int64) >> scaled_bins.DROPPED_BITS
    found: np.ndarray = np.maximum((begin & _MAGNITUDE_MASK) - scaled_bins.SCALED_BIN_OFFSET, 0)
    return np.where(begin < 0, -found, found)


def _non_negative_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    """Give the bins of numbers of which only -0.0 has a sign: it is zero as well."""
    found = _positive_scaled_bins(doubles)
    np.maximum(found, 0, out=found)
    return found


def _positive_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    found: np.ndarray = doubles.view(np.int64) >> scaled_bins.DROPPED_BITS
    found -= scaled_bins.SCALED_BIN_OFFSET
    return found


def _equal_bin_counts(scaled: NumberCounts, exponent: int) -> NumberCounts:
    """Give counts in equal bins, each of which holds whole scaled ones: see `rules.equal_bin`."""
    powers, digits = (
        (scaled.numbers - 1) >> scaled_bins.BIN_DIGITS,
        (scaled.numbers - 1) & _DIGIT_MASK,
    )
    by = exponent + scaled_bins.BIN_DIGITS - scaled_bins.MIN_SCALED_EXPONENT - powers
    wide = (scaled_bins.BINS_PER_POWER + digits) >> np.minimum(by, _MAX_SHIFT)
    return _sum_by_bin(np.where(scaled.numbers == 0, 0, wide), scaled.rows)


def _sum_bins(batches: Sequence[BinnedNumbers]) -> BinnedNumbers:
    """Add up the bins of batches, in equal bins of what all of them span."""
    low, high = min(each.low for each in batches), max(each.high for each in batches)
    wide = bin_exponent(low, high)
    equal = [each.equal.numbers >> min(wide - each.exponent, _MAX_SHIFT) for each in batches]
    return BinnedNumbers(
        low,
        high,
        _merge_counts(
            [each.scaled.numbers for each in batches], [each.scaled.rows for each in batches]
        ),
        _merge_counts(equal, [each.equal.rows for each in batches]),
    )


def _merge_counts(bins: list[np.ndarray], rows: list[np.ndarray]) -> NumberCounts:
    numbers = np.concatenate(bins)
    order = np.argsort(numbers, kind="stable")
    return _sum_by_bin(numbers[order], np.concatenate(rows)[order])


def _sum_by_bin(bins: np.ndarray, rows: np.ndarray) -> NumberCounts:
    """Add up counts of ascending bins, and leave out those that are zero."""
    if not len(bins):
        return NumberCounts(bins, rows)
    starts = np.flatnonzero(np.concatenate(([True], bins[1:] != bins[:-1])))
    sums = np.add.reduceat(rows, starts)
    held = sums != 0
    return NumberCounts(bins[starts][held], sums[held])
