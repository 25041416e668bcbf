"""Bins of numbers on a scale of their own: as narrow as the number is small.

A bin follows from the number alone, so one number far from all others does not widen the bins of
those. There are 256 from each power of two to the next, on both sides of zero; everything below
2^-64 counts as zero. In a double's bits a bin is the exponent and the first 8 digits after it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

#: Digits of a double that a bin has beside the exponent, and how many bins these make.
BIN_DIGITS = 8
BINS_PER_POWER = 1 << BIN_DIGITS
#: The least exponent that is told apart from zero.
MIN_SCALED_EXPONENT = -64
#: The digits of a double that a bin does not have, and what is taken off the rest.
DROPPED_BITS = 52 - BIN_DIGITS
#: The bins of some columns of numbers, which are asked for batch after batch.
BIN_CACHE_SIZE = 16_384
SCALED_BIN_OFFSET = (1023 + MIN_SCALED_EXPONENT) * BINS_PER_POWER - 1


def scaled_bin(value: float) -> int:
    """Give the bin of a finite number: 0 for zero, and negative for negative numbers."""
    mantissa, power = math.frexp(abs(value))
    if power - 1 < MIN_SCALED_EXPONENT or not value:
        return 0
    number = (
        (power - 1 - MIN_SCALED_EXPONENT) * BINS_PER_POWER
        + math.floor(mantissa * 2 * BINS_PER_POWER)
        - BINS_PER_POWER
        + 1
    )
    return number if value > 0 else -number


def scaled_bin_start(number: int) -> float:
    """Give where a bin begins, up to that of the next one."""
    if number < 0:
        return -scaled_bin_start(1 - number)
    if not number:
        return 0.0
    power, digits = divmod(number - 1, BINS_PER_POWER)
    if power + MIN_SCALED_EXPONENT >= sys.float_info.max_exp:
        return sys.float_info.max
    return math.ldexp(1 + digits / BINS_PER_POWER, power + MIN_SCALED_EXPONENT)


def are_scaled_bins_finer(exponent: int, low: Any, high: Any) -> bool:
    """Tell whether each bin of numbers from low to high lies in one bin of width 2^exponent.

    Both begin at multiples of powers of two, so one that is no wider does; those of negative
    numbers end where equal ones begin.
    """
    if low < 0 or exponent < MIN_SCALED_EXPONENT:
        return False
    return exponent >= math.frexp(float(high))[1] - 1 - BIN_DIGITS


def equal_width_counts(counted: Mapping[int, int], exponent: int) -> dict[int, int]:
    """Give counts in bins of width 2^exponent; these bins are finer."""
    found: dict[int, int] = {}
    for number, rows in counted.items():
        wide = equal_width_bin(number, exponent)
        found[wide] = found.get(wide, 0) + rows
    return found


@lru_cache(maxsize=BIN_CACHE_SIZE)
def equal_width_bin(number: int, exponent: int) -> int:
    """Give the bin of width 2^exponent that holds a bin of no negative numbers, no wider than it.

    Both begin at multiples of powers of two, so it lies there as a whole.
    """
    if not number:
        return 0
    power, digits = divmod(number - 1, BINS_PER_POWER)
    return (BINS_PER_POWER + digits) >> (exponent + BIN_DIGITS - MIN_SCALED_EXPONENT - power)
