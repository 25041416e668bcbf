"""Value counts, number bins and moments of Arrow columns.

Whole numbers that are close together are counted in an array, which takes no hash table. Counts of
both kinds of bins stay in arrays across batches. Counting batch by batch in dictionaries took as
long as reading the numbers.

Each number is converted to the double nearest to it, however the column stores it, because counts
must be the same on every engine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn, SideName
from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.core.comparison.distributions import (
    MAX_CATEGORIES,
    Histogram,
    Moments,
    bin_exponent,
)


@dataclass(frozen=True)
class NumberCounts:
    """Numbers in ascending order, and how often each occurs."""

    numbers: np.ndarray
    rows: np.ndarray

    def as_dict(self) -> dict[int, int]:
        """Return the rows by number."""
        return dict(zip(self.numbers.tolist(), self.rows.tolist(), strict=True))


def count_in_range(parts: Iterable[np.ndarray], first: int, last: int) -> NumberCounts:
    """Count the whole numbers of all parts; `first` and `last` must be close together."""
    rows = np.zeros(last - first + 1, np.int64)
    for part in parts:
        part_rows = np.bincount(part - first if first else part)
        rows[: len(part_rows)] += part_rows
    filled = np.flatnonzero(rows)
    return NumberCounts(filled + first, rows[filled])


def min_and_max(parts: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """Return the smallest and the largest number of all parts as Python numbers, or None."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return None, None
    return min(part.min() for part in filled).item(), max(part.max() for part in filled).item()


#: Whole numbers of more digits are not exact doubles, so their quotient would be inexact too.
_EXACT_DIGITS = 15
_EXACT_DOUBLE_TYPES = (IntegerType, LongType, FloatType, DoubleType)


@dataclass(frozen=True)
class FiniteNumbers:
    """The finite numbers of a column on one side as doubles, with their lowest and highest.

    They stay in parts, so that arrays derived from one part fit the processor's cache.
    """

    doubles: tuple[np.ndarray, ...]
    low: Any
    high: Any

    @property
    def moments(self) -> Moments:
        """The moments without null counts; sums may be infinite or NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            return Moments(
                values=sum(map(len, self.doubles)),
                minimum=self.low,
                maximum=self.high,
                total=float(sum(part.sum() for part in self.doubles)),
                squares=float(sum(np.square(part).sum() for part in self.doubles)),
            )


def has_exact_doubles(kind: IcebergType) -> bool:
    """Return whether Arrow converts the type's values to exact doubles."""
    is_short = isinstance(kind, DecimalType) and kind.precision <= _EXACT_DIGITS
    return is_short or isinstance(kind, _EXACT_DOUBLE_TYPES)


def read_numbers(values: pa.ChunkedArray) -> FiniteNumbers:
    """Convert the numbers of a column to doubles; null, NaN and infinities are left out."""
    chunks = [chunk.drop_null() if chunk.null_count else chunk for chunk in values.chunks]
    if pa.types.is_decimal(values.type):
        return _read_decimals(chunks, values.type.scale)
    arrays = [chunk.to_numpy() for chunk in chunks]
    if pa.types.is_floating(values.type):
        arrays = [part[np.isfinite(part)] for part in arrays]
    return FiniteNumbers(tuple(part.astype(np.float64) for part in arrays), *min_and_max(arrays))


def _read_decimals(chunks: list[pa.Array], scale: int) -> FiniteNumbers:
    # A decimal is two words; up to _EXACT_DIGITS digits fit the first one.
    digits = [
        np.frombuffer(chunk.buffers()[1], np.int64)[2 * chunk.offset :: 2][: len(chunk)].copy()
        for chunk in chunks
        if len(chunk)
    ]
    span = (None if end is None else Decimal(end).scaleb(-scale) for end in min_and_max(digits))
    # Arrow's own cast multiplies by 0.01, which may give a neighbour of the nearest double.
    return FiniteNumbers(tuple(part / 10.0**scale for part in digits), *span)


_MAGNITUDE_MASK = (1 << (63 - distributions.DROPPED_BITS)) - 1
_DIGIT_MASK = distributions.BINS_PER_POWER - 1
#: This shift removes all digits of a bin; a larger shift is undefined.
_MAX_SHIFT = 62
#: Pending batches are summed at this many bins; each batch counts as at least the minimum.
_PENDING_LIMIT, _MIN_BATCH_SIZE = 1 << 15, 32


@dataclass(frozen=True)
class BinnedNumbers:
    """The finite numbers of some rows, counted in scaled bins and in equal bins.

    The equal bins are those of the range from `low` to `high`.
    """

    low: Any
    high: Any
    scaled: NumberCounts
    equal: NumberCounts

    @property
    def exponent(self) -> int:
        """The width of the equal bins as a power of two."""
        return bin_exponent(self.low, self.high)

    def negated(self) -> BinnedNumbers:
        """Return the bins with negative counts, for rows to subtract from others."""
        scaled, equal = (
            NumberCounts(each.numbers, -each.rows) for each in (self.scaled, self.equal)
        )
        return BinnedNumbers(self.low, self.high, scaled, equal)


@dataclass
class BinAccumulator:
    """Bins of several batches that are not summed yet."""

    batches: list[BinnedNumbers] = field(default_factory=list)
    _size: int = 0
    _limit: int = 0

    def add(self, *found: BinnedNumbers) -> None:
        """Add the bins of a batch, which may be negated."""
        filled = [each for each in found if len(each.scaled.numbers)]
        self.batches += filled
        self._size += sum(map(_stored_bins, filled))
        if self._size > max(_PENDING_LIMIT, self._limit):
            self.batches = [_sum_bins(self.batches)]
            self._size = _stored_bins(self.batches[0])
            # Bins that a sum does not shrink are summed again only once they have doubled.
            self._limit = 2 * self._size

    def flush_to(self, histogram: Histogram) -> None:
        """Add the sum of all bins to the histogram and clear them."""
        if self.batches:
            total = _sum_bins(self.batches)
            histogram.add(total.low, total.high, total.equal.as_dict(), total.scaled.as_dict())
        self.batches, self._size, self._limit = [], 0, 0


def _stored_bins(found: BinnedNumbers) -> int:
    return _MIN_BATCH_SIZE + len(found.scaled.numbers) + len(found.equal.numbers)


def bin_numbers(numbers: FiniteNumbers, low: Any, high: Any) -> BinnedNumbers:
    """Count the numbers in scaled bins and in the equal bins of a range that holds them."""
    exponent, scaled = bin_exponent(low, high), count_scaled_bins(numbers.doubles)
    if distributions.are_scaled_bins_finer(exponent, low, high):
        return BinnedNumbers(low, high, scaled, _equal_bin_counts(scaled, exponent))
    # A product with a power of two is exact.
    factor = 2.0**-exponent
    first, last = (math.floor(float(end) * factor) for end in (low, high))
    equal = (np.floor(part * factor).astype(np.int64) for part in numbers.doubles)
    return BinnedNumbers(low, high, scaled, count_in_range(equal, first, last))


def count_scaled_bins(parts: Sequence[np.ndarray]) -> NumberCounts:
    """Count finite doubles by scaled bin (`core.comparison.distributions.scaled_bin`)."""
    low, high = min_and_max(parts)
    if low is None:
        return NumberCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    first, last = distributions.scaled_bin(low), distributions.scaled_bin(high)
    if first > 0:
        return count_in_range(map(_positive_scaled_bins, parts), first, last)
    return count_in_range(
        map(_non_negative_scaled_bins if first == 0 else _signed_scaled_bins, parts), first, last
    )


def _signed_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    shifted = doubles.view(np.int64) >> distributions.DROPPED_BITS
    magnitude: np.ndarray = np.maximum(
        (shifted & _MAGNITUDE_MASK) - distributions.SCALED_BIN_OFFSET, 0
    )
    return np.where(shifted < 0, -magnitude, magnitude)


def _non_negative_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    """Return the bins of numbers of which only -0.0 has a sign; it counts as zero."""
    bins = _positive_scaled_bins(doubles)
    np.maximum(bins, 0, out=bins)
    return bins


def _positive_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    bins: np.ndarray = doubles.view(np.int64) >> distributions.DROPPED_BITS
    bins -= distributions.SCALED_BIN_OFFSET
    return bins


def _equal_bin_counts(scaled: NumberCounts, exponent: int) -> NumberCounts:
    """Return the counts in equal bins, each of which holds whole scaled bins."""
    powers, digits = (
        (scaled.numbers - 1) >> distributions.BIN_DIGITS,
        (scaled.numbers - 1) & _DIGIT_MASK,
    )
    shift = exponent + distributions.BIN_DIGITS - distributions.MIN_SCALED_EXPONENT - powers
    equal_bins = (distributions.BINS_PER_POWER + digits) >> np.minimum(shift, _MAX_SHIFT)
    return _sum_by_bin(np.where(scaled.numbers == 0, 0, equal_bins), scaled.rows)


def _sum_bins(batches: Sequence[BinnedNumbers]) -> BinnedNumbers:
    """Sum the bins of batches; the equal bins are those of their common range."""
    low, high = min(each.low for each in batches), max(each.high for each in batches)
    exponent = bin_exponent(low, high)
    equal = [each.equal.numbers >> min(exponent - each.exponent, _MAX_SHIFT) for each in batches]
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
    """Sum the counts of ascending bins, and leave out those that are zero."""
    if not len(bins):
        return NumberCounts(bins, rows)
    starts = np.flatnonzero(np.concatenate(([True], bins[1:] != bins[:-1])))
    sums = np.add.reduceat(rows, starts)
    is_filled = sums != 0
    return NumberCounts(bins[starts][is_filled], sums[is_filled])


_COUNTABLE_TYPES = (StringType, BooleanType, DateType, TimestampType, TimestamptzType)
#: These first rows may show that a column has too many values to count.
PEEK_ROWS = 4 * MAX_CATEGORIES
#: Days that span more than this are counted in a hash table.
_MAX_DAY_SPAN = 1 << 16


def is_countable_in_arrow(column: DiffColumn, side: SideName) -> bool:
    """Return whether the side's values can be measured in their Arrow form."""
    field = column.field(side)
    if field is None or column.comparable_sql(side) != column.slot:
        return False
    if column.kind == "number":
        return has_exact_doubles(field.field_type)
    return isinstance(field.field_type, _COUNTABLE_TYPES)


def count_values(values: pa.ChunkedArray) -> Counter[str] | None:
    """Count the non-null values of a column; return None for too many distinct values."""
    if pa.types.is_dictionary(values.type):
        return _count_dictionary_codes(values.unify_dictionaries())
    if pa.types.is_date32(values.type):
        counted = _count_days(values)
        if counted is not None:
            return counted if len(counted) <= MAX_CATEGORIES else None
    if pc.count_distinct(values.slice(0, PEEK_ROWS)).as_py() > MAX_CATEGORIES:
        return None
    counted = pc.value_counts(values)
    if len(counted) > MAX_CATEGORIES + 1:  # null is one of them
        return None
    return Counter(_rows_by_text(counted.field(0), counted.field(1).to_pylist()))


def _count_dictionary_codes(values: pa.ChunkedArray) -> Counter[str] | None:
    """Count texts that all chunks hold as codes of one dictionary."""
    if not values.num_chunks:
        return Counter()
    texts = values.chunk(0).dictionary
    chunks = (chunk.indices.drop_null() for chunk in values.chunks)
    counted = count_in_range((codes.to_numpy() for codes in chunks), 0, len(texts) - 1)
    if len(counted.numbers) > MAX_CATEGORIES:
        return None
    names = texts.take(pa.array(counted.numbers)).to_pylist()
    return Counter(dict(zip(names, counted.rows.tolist(), strict=True)))


def _count_days(values: pa.ChunkedArray) -> Counter[str] | None:
    """Count days by number in an array, which takes no hash table.

    Returns None when they span more than some two hundred years.
    """
    days = [chunk.drop_null().view(pa.int32()).to_numpy() for chunk in values.chunks]
    first, last = min_and_max(days)
    if first is None:
        return Counter()
    if last - first > _MAX_DAY_SPAN:
        return None
    return Counter(
        {str(day): rows for day, rows in count_in_range(days, first, last).as_dict().items()}
    )


def apply_count_changes(
    counts: Mapping[str, int], gone: Mapping[str, int], come: Mapping[str, int]
) -> dict[str, int]:
    """Return `counts` without the rows in `gone` and with those in `come`, none of them zero."""
    result = dict(counts)
    for name, rows in come.items():
        result[name] = result.get(name, 0) + rows
    for name, rows in gone.items():
        result[name] -= rows
        if not result[name]:
            del result[name]
    return result


def rows_by_partition_number(numbers: pa.ChunkedArray) -> Mapping[int, int]:
    """Count the rows of each partition number."""
    return rows_by_number([chunk.to_numpy() for chunk in numbers.chunks])


def rows_by_number(parts: Sequence[np.ndarray]) -> dict[int, int]:
    """Count numbers that are close together."""
    first, last = min_and_max(parts)
    return {} if first is None else count_in_range(parts, first, last).as_dict()


def _rows_by_text(found: Any, rows: list[int]) -> dict[str, int]:
    if pa.types.is_date(found.type):
        found = found.cast(pa.int32())
    elif pa.types.is_timestamp(found.type):
        found = found.cast(pa.int64())
    return {
        _duckdb_text(value): number
        for value, number in zip(found.to_pylist(), rows, strict=True)
        if value is not None
    }


def _duckdb_text(value: Any) -> str:
    """Return a value as DuckDB prints it; texts of dates and instants are never shown."""
    return str(value).lower() if isinstance(value, bool) else str(value)
