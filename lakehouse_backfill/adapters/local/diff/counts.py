"""Value counts, number bins, moments in Arrow.

How often whole numbers are there: counted in an array, which takes no hash table.

Measuring the numbers of an Arrow column: their moments, and the doubles that `bins` counts.

Each number is looked at as a double, as it is shown: what is counted has to be the same on every
engine, so a double here is the one nearest to the number, however the column stores it.

Counts of a column's numbers in both kinds of bins, kept in arrays while batches come.

Counting in dictionaries batch by batch took as long as looking at the numbers.

Counting the values of Arrow columns, where their own types say which values are equal.
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
    """Numbers in ascending order, and how often each is there."""

    numbers: np.ndarray
    rows: np.ndarray

    def as_dict(self) -> dict[int, int]:
        """Give the rows by number."""
        return dict(zip(self.numbers.tolist(), self.rows.tolist(), strict=True))


def count_in_range(parts: Iterable[np.ndarray], first: int, last: int) -> NumberCounts:
    """Count the whole numbers of all parts: from first to last, which are not far apart."""
    rows = np.zeros(last - first + 1, np.int64)
    for part in parts:
        found = np.bincount(part - first if first else part)
        rows[: len(found)] += found
    filled = np.flatnonzero(rows)
    return NumberCounts(filled + first, rows[filled])


def min_and_max(parts: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """Give the least and the greatest number of all parts, as Python's own; None without any."""
    held = [part for part in parts if len(part)]
    if not held:
        return None, None
    return min(part.min() for part in held).item(), max(part.max() for part in held).item()


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


_MAGNITUDE_MASK = (1 << (63 - distributions.DROPPED_BITS)) - 1
_DIGIT_MASK = distributions.BINS_PER_POWER - 1
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

    def negated(self) -> BinnedNumbers:
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

    def flush_to(self, histogram: Histogram) -> None:
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
    if distributions.are_scaled_bins_finer(exponent, low, high):
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
    first, last = distributions.scaled_bin(low), distributions.scaled_bin(high)
    if first > 0:
        return count_in_range(map(_positive_scaled_bins, parts), first, last)
    return count_in_range(
        map(_non_negative_scaled_bins if first == 0 else _signed_scaled_bins, parts), first, last
    )


def _signed_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    begin = doubles.view(np.int64) >> distributions.DROPPED_BITS
    found: np.ndarray = np.maximum((begin & _MAGNITUDE_MASK) - distributions.SCALED_BIN_OFFSET, 0)
    return np.where(begin < 0, -found, found)


def _non_negative_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    """Give the bins of numbers of which only -0.0 has a sign: it is zero as well."""
    found = _positive_scaled_bins(doubles)
    np.maximum(found, 0, out=found)
    return found


def _positive_scaled_bins(doubles: np.ndarray) -> np.ndarray:
    found: np.ndarray = doubles.view(np.int64) >> distributions.DROPPED_BITS
    found -= distributions.SCALED_BIN_OFFSET
    return found


def _equal_bin_counts(scaled: NumberCounts, exponent: int) -> NumberCounts:
    """Give counts in equal bins, each of which holds whole scaled ones: see `rules.equal_bin`."""
    powers, digits = (
        (scaled.numbers - 1) >> distributions.BIN_DIGITS,
        (scaled.numbers - 1) & _DIGIT_MASK,
    )
    by = exponent + distributions.BIN_DIGITS - distributions.MIN_SCALED_EXPONENT - powers
    wide = (distributions.BINS_PER_POWER + digits) >> np.minimum(by, _MAX_SHIFT)
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


_COUNTABLE_TYPES = (StringType, BooleanType, DateType, TimestampType, TimestamptzType)
#: So many first rows may show that a column has too many values to count.
PEEK_ROWS = 4 * MAX_CATEGORIES
#: Days that lie so far apart are counted in a hash table.
_MAX_DAY_SPAN = 1 << 16


def is_countable_in_arrow(column: DiffColumn, side: SideName) -> bool:
    """Tell whether the side's values can be measured as they stand in Arrow."""
    field = column.field(side)
    if field is None or column.comparable_sql(side) != column.slot:
        return False
    if column.kind == "number":
        return has_exact_doubles(field.field_type)
    return isinstance(field.field_type, _COUNTABLE_TYPES)


def count_values(values: pa.ChunkedArray) -> Counter[str] | None:
    """Count the values of a column but null; None for too many, which its first rows may show."""
    if pa.types.is_dictionary(values.type):
        return _count_dictionary_codes(values.unify_dictionaries())
    if pa.types.is_date32(values.type):
        found = _count_days(values)
        if found is not None:
            return found if len(found) <= MAX_CATEGORIES else None
    if pc.count_distinct(values.slice(0, PEEK_ROWS)).as_py() > MAX_CATEGORIES:
        return None
    found = pc.value_counts(values)
    if len(found) > MAX_CATEGORIES + 1:  # null is one of them
        return None
    return Counter(_rows_by_text(found.field(0), found.field(1).to_pylist()))


def _count_dictionary_codes(values: pa.ChunkedArray) -> Counter[str] | None:
    """Count texts that all chunks hold as places in one dictionary."""
    if not values.num_chunks:
        return Counter()
    texts = values.chunk(0).dictionary
    chunks = (chunk.indices.drop_null() for chunk in values.chunks)
    found = count_in_range((codes.to_numpy() for codes in chunks), 0, len(texts) - 1)
    if len(found.numbers) > MAX_CATEGORIES:
        return None
    names = texts.take(pa.array(found.numbers)).to_pylist()
    return Counter(dict(zip(names, found.rows.tolist(), strict=True)))


def _count_days(values: pa.ChunkedArray) -> Counter[str] | None:
    """Count days by number, where all lie within some two hundred years: takes no hash table."""
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
    """Give counts without some rows and with others, none of them zero."""
    found = dict(counts)
    for name, rows in come.items():
        found[name] = found.get(name, 0) + rows
    for name, rows in gone.items():
        found[name] -= rows
        if not found[name]:
            del found[name]
    return found


def rows_by_partition_number(numbers: pa.ChunkedArray) -> Mapping[int, int]:
    """Count the rows of each partition number."""
    return rows_by_number([chunk.to_numpy() for chunk in numbers.chunks])


def rows_by_number(parts: Sequence[np.ndarray]) -> dict[int, int]:
    """Count numbers that are not far apart."""
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
    """Write a value as DuckDB does; what stands for a moment is never shown."""
    return str(value).lower() if isinstance(value, bool) else str(value)
