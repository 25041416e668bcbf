"""Measuring the numbers of an Arrow column: their moments, and their counts in both kinds of bins.

Each number is looked at as a double, as it is shown: what is counted has to be the same on every
engine, so a double here is the one nearest to the number, however the column stores it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
)

from lakehouse_backfill.rules import scaled_bins
from lakehouse_backfill.rules.distributions import bin_exponent
from lakehouse_backfill.rules.drift import Moments

_Key = TypeVar("_Key", int, str)
#: Whole numbers of more digits are no exact doubles, which a quotient of them would have to be.
_EXACT_DIGITS = 15
_PLAIN = (IntegerType, LongType, FloatType, DoubleType)
_BITS_BUT_SIGN = (1 << (63 - scaled_bins.DROPPED_BITS)) - 1


@dataclass(frozen=True)
class Numbers:
    """The finite numbers of a column on one side: as doubles, and from where to where.

    They stay in parts, so that what is made of one fits the processor's cache.
    """

    doubles: tuple[np.ndarray, ...]
    low: Any
    high: Any

    @property
    def moments(self) -> Moments:
        """Their moments, but for nulls; sums may be infinite."""
        with np.errstate(over="ignore"):
            return Moments(
                values=sum(map(len, self.doubles)),
                minimum=self.low,
                maximum=self.high,
                total=float(sum(part.sum() for part in self.doubles)),
                squares=float(sum(np.square(part).sum() for part in self.doubles)),
            )


@dataclass(frozen=True)
class Bins:
    """The finite numbers of some rows: counted in `rules.scaled_bins` and in equal bins.

    `own_equal` is None where the equal bins follow from the scaled ones.
    """

    exponent: int
    scaled: dict[int, int]
    own_equal: dict[int, int] | None

    @property
    def equal(self) -> dict[int, int]:
        """The counts in equal bins."""
        if self.own_equal is not None:
            return self.own_equal
        return scaled_bins.equal_counts(self.scaled, self.exponent)

    def moved(self, gone: Bins, come: Bins) -> Bins:
        """Give the counts without some of the rows, and with others."""
        equal = None
        if not (self.own_equal is None or gone.own_equal is None or come.own_equal is None):
            equal = moved(self.own_equal, gone.own_equal, come.own_equal)
        return Bins(self.exponent, moved(self.scaled, gone.scaled, come.scaled), equal)


def is_countable_number(kind: IcebergType) -> bool:
    """Tell whether Arrow makes exact doubles of the type's values."""
    is_short = isinstance(kind, DecimalType) and kind.precision <= _EXACT_DIGITS
    return is_short or isinstance(kind, _PLAIN)


def read(values: pa.ChunkedArray) -> Numbers:
    """Look at the numbers of a column as doubles; null, NaN and infinities are left out."""
    chunks = [chunk.drop_null() if chunk.null_count else chunk for chunk in values.chunks]
    if pa.types.is_decimal(values.type):
        return _decimals(chunks, values.type.scale)
    found = [chunk.to_numpy() for chunk in chunks]
    if pa.types.is_floating(values.type):
        found = [part[np.isfinite(part)] for part in found]
    return Numbers(tuple(part.astype(np.float64) for part in found), *_ends(found))


def _decimals(chunks: list[pa.Array], scale: int) -> Numbers:
    # A decimal is two words, of which so few digits fill the first.
    digits = [
        np.frombuffer(chunk.buffers()[1], np.int64)[2 * chunk.offset :: 2][: len(chunk)].copy()
        for chunk in chunks
        if len(chunk)
    ]
    ends = (None if end is None else Decimal(end).scaleb(-scale) for end in _ends(digits))
    # A product with 0.01, as Arrow's own cast has it, gives a neighbour of the nearest double.
    return Numbers(tuple(part / 10.0**scale for part in digits), *ends)


def _ends(found: list[np.ndarray]) -> tuple[Any, Any]:
    held = [part for part in found if len(part)]
    if not held:
        return None, None
    return min(part.min() for part in held).item(), max(part.max() for part in held).item()


def bins(numbers: Numbers, low: Any, high: Any) -> Bins:
    """Count the numbers in the equal bins of a range that holds them, and in scaled ones."""
    exponent, scaled = bin_exponent(low, high), scaled_counts(numbers.doubles)
    if scaled_bins.are_finer(exponent, low, high):
        return Bins(exponent, scaled, None)
    # A product with a power of two is exact.
    factor = 2.0**-exponent
    first, last = (math.floor(float(end) * factor) for end in (low, high))
    equal = (np.floor(part * factor).astype(np.int64) for part in numbers.doubles)
    return Bins(exponent, scaled, _counted(equal, first, last))


def scaled_counts(parts: Iterable[np.ndarray]) -> dict[int, int]:
    """Count finite doubles by `rules.scaled_bins`."""
    held = [part for part in parts if len(part)]
    if not held:
        return {}
    ends = min(part.min() for part in held), max(part.max() for part in held)
    first, last = (scaled_bins.scaled_bin(float(end)) for end in ends)
    count = _scaled if first < 0 else _scaled_from_zero
    return _counted(map(count, held), first, last)


def _scaled(doubles: np.ndarray) -> np.ndarray:
    begin = doubles.view(np.int64) >> scaled_bins.DROPPED_BITS
    found: np.ndarray = np.maximum((begin & _BITS_BUT_SIGN) - scaled_bins.OFFSET, 0)
    return np.where(begin < 0, -found, found)


def _scaled_from_zero(doubles: np.ndarray) -> np.ndarray:
    """Give the bins of numbers of which only -0.0 has a sign: it is zero as well."""
    found: np.ndarray = doubles.view(np.int64) >> scaled_bins.DROPPED_BITS
    found -= scaled_bins.OFFSET
    np.maximum(found, 0, out=found)
    return found


def _counted(parts: Iterable[np.ndarray], first: int, last: int) -> dict[int, int]:
    """Count whole numbers from first to last: in an array, which takes no hash table.

    The parts are changed.
    """
    rows = np.zeros(last - first + 1, np.int64)
    for part in parts:
        part -= first
        rows += np.bincount(part, minlength=len(rows))
    filled = np.flatnonzero(rows)
    return dict(zip((filled + first).tolist(), rows[filled].tolist(), strict=True))


def moved(
    counts: Mapping[_Key, int], gone: Mapping[_Key, int], come: Mapping[_Key, int]
) -> dict[_Key, int]:
    """Give counts without some rows and with others, none of them zero."""
    found = dict(counts)
    for name, rows in come.items():
        found[name] = found.get(name, 0) + rows
    for name, rows in gone.items():
        found[name] -= rows
        if not found[name]:
            del found[name]
    return found
