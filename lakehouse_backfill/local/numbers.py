"""Measuring the numbers of an Arrow column: their moments, and their counts in both kinds of bins.

Each number is looked at as a double, as it is shown: what is counted has to be the same on every
engine, so a double here is the one nearest to the number, however the column stores it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
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
    """The numbers of a column on one side: as finite doubles, others being null, and from to."""

    doubles: pa.ChunkedArray
    low: Any
    high: Any

    @property
    def moments(self) -> Moments:
        """Their moments, but for nulls."""
        squares = pc.multiply(self.doubles, self.doubles)
        return Moments(
            values=len(self.doubles) - self.doubles.null_count,
            minimum=self.low,
            maximum=self.high,
            total=pc.sum(self.doubles).as_py() or 0.0,
            squares=pc.sum(squares).as_py() or 0.0,
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
        found: dict[int, int] = {}
        for number, rows in self.scaled.items():
            wide = scaled_bins.equal_bin(number, self.exponent)
            found[wide] = found.get(wide, 0) + rows
        return found

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
    """Look at the numbers of a column as doubles; NaN and infinities become null."""
    kind = values.type
    if pa.types.is_decimal(kind):
        return _decimals(values)
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_finite(values), values, pa.scalar(None, kind))
    ends = pc.min_max(values)
    found = pc.cast(values, pa.float64(), safe=False)
    return Numbers(found, ends["min"].as_py(), ends["max"].as_py())


def _decimals(values: pa.ChunkedArray) -> Numbers:
    # Arrow's own cast multiplies by 0.01, which gives a neighbour of the nearest double.
    whole = pa.decimal128(values.type.precision, 0)
    chunks = [chunk.view(whole).cast(pa.int64()) for chunk in values.chunks]
    digits, scale = pa.chunked_array(chunks, pa.int64()), values.type.scale
    ends = (digit.as_py() for digit in pc.min_max(digits).values())
    low, high = (None if end is None else Decimal(end).scaleb(-scale) for end in ends)
    found = pc.cast(digits, pa.float64(), safe=False)
    return Numbers(pc.divide(found, 10.0**scale) if scale else found, low, high)


def bins(numbers: pa.ChunkedArray, low: Any, high: Any) -> Bins:
    """Count finite doubles in the equal bins of the range, and in scaled ones."""
    exponent, scaled = bin_exponent(low, high), scaled_counts(numbers)
    if _is_coarser(exponent, low, high):
        return Bins(exponent, scaled, None)
    return Bins(exponent, scaled, _equal_counts(numbers, exponent))


def scaled_counts(numbers: pa.ChunkedArray) -> dict[int, int]:
    """Count doubles by `rules.scaled_bins`; nulls are left out."""
    # What is left of a double fits 32 bits, which are counted faster.
    bits = [
        pc.cast(pc.shift_right(chunk.view(pa.int64()), scaled_bins.DROPPED_BITS), pa.int32())
        for chunk in numbers.chunks
    ]
    found: dict[int, int] = {}
    for begin, rows in _counted(pa.chunked_array(bits, pa.int32())):
        number = _scaled(begin)
        found[number] = found.get(number, 0) + rows
    return found


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


@lru_cache(maxsize=scaled_bins.KEPT)
def _scaled(bits: int) -> int:
    """Give the bin of the doubles that begin with these bits; the first is the sign."""
    number = max((bits & _BITS_BUT_SIGN) - scaled_bins.OFFSET, 0)
    return -number if bits < 0 else number


def _is_coarser(exponent: int, low: Any, high: Any) -> bool:
    """Tell whether every scaled bin of the range lies in one equal bin.

    Both begin at multiples of powers of two, so a scaled bin that is no wider does; those of
    negative numbers end where equal ones begin.
    """
    if low < 0 or exponent < scaled_bins.LEAST:
        return False
    return exponent >= math.frexp(float(high))[1] - 1 - scaled_bins.DIGITS


def _equal_counts(numbers: pa.ChunkedArray, exponent: int) -> dict[int, int]:
    # A product with a power of two is exact.
    number = pc.floor(pc.multiply(numbers, 2.0**-exponent))
    found: dict[int, int] = {}
    for one, rows in _counted(number):
        # -0.0 and 0.0 are counted apart.
        found[int(one)] = found.get(int(one), 0) + rows
    return found


def _counted(values: pa.ChunkedArray) -> Iterator[tuple[Any, int]]:
    found = pc.value_counts(values)
    pairs = zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True)
    return (pair for pair in pairs if pair[0] is not None)
