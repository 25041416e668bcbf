"""Measuring the numbers of an Arrow column: their moments, and the doubles that `bins` counts.

Each number is looked at as a double, as it is shown: what is counted has to be the same on every
engine, so a double here is the one nearest to the number, however the column stores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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

from lakehouse_backfill.adapters.local.diff.counts import min_and_max
from lakehouse_backfill.core.comparison.drift import Moments

#: Whole numbers of more digits are no exact doubles, which a quotient of them would have to be.
_EXACT_DIGITS = 15
_EXACT_DOUBLE_TYPES = (IntegerType, LongType, FloatType, DoubleType)


@dataclass(frozen=True)
class FiniteNumbers:
    """The finite numbers of a column on one side: as doubles, and from where to where.

    They stay in parts, so that what is made of one fits the processor's cache.
    """

    doubles: tuple[np.ndarray, ...]
    low: Any
    high: Any

    @property
    def moments(self) -> Moments:
        """Their moments, but for nulls; sums may be infinite, or NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            return Moments(
                values=sum(map(len, self.doubles)),
                minimum=self.low,
                maximum=self.high,
                total=float(sum(part.sum() for part in self.doubles)),
                squares=float(sum(np.square(part).sum() for part in self.doubles)),
            )


def has_exact_doubles(kind: IcebergType) -> bool:
    """Tell whether Arrow makes exact doubles of the type's values."""
    is_short = isinstance(kind, DecimalType) and kind.precision <= _EXACT_DIGITS
    return is_short or isinstance(kind, _EXACT_DOUBLE_TYPES)


def read_numbers(values: pa.ChunkedArray) -> FiniteNumbers:
    """Look at the numbers of a column as doubles; null, NaN and infinities are left out."""
    chunks = [chunk.drop_null() if chunk.null_count else chunk for chunk in values.chunks]
    if pa.types.is_decimal(values.type):
        return _read_decimals(chunks, values.type.scale)
    found = [chunk.to_numpy() for chunk in chunks]
    if pa.types.is_floating(values.type):
        found = [part[np.isfinite(part)] for part in found]
    return FiniteNumbers(tuple(part.astype(np.float64) for part in found), *min_and_max(found))


def _read_decimals(chunks: list[pa.Array], scale: int) -> FiniteNumbers:
    # A decimal is two words, of which so few digits fill the first.
    digits = [
        np.frombuffer(chunk.buffers()[1], np.int64)[2 * chunk.offset :: 2][: len(chunk)].copy()
        for chunk in chunks
        if len(chunk)
    ]
    span = (None if end is None else Decimal(end).scaleb(-scale) for end in min_and_max(digits))
    # A product with 0.01, as Arrow's own cast has it, gives a neighbour of the nearest double.
    return FiniteNumbers(tuple(part / 10.0**scale for part in digits), *span)
