"""Value counts, number bins and moments of Arrow columns.

Whole numbers that are close together are counted in an array, which takes no hash table. Counts of
bins stay in arrays across batches. Counting batch by batch in dictionaries took as long as reading
the numbers.

Each number is converted to the double nearest to it, however the column stores it, because counts
must be the same on every engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn, SideName
from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.core.comparison.distributions import MAX_CATEGORIES, Moments


@dataclass(frozen=True)
class NumberCounts:
    """Whole numbers in ascending order, and how often each occurs; none occurs zero times."""

    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __add__(self, other: NumberCounts) -> NumberCounts:
        numbers = np.concatenate([self.numbers, other.numbers])
        if not len(numbers):
            return self
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], np.concatenate([self.rows, other.rows])[order]
        starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        sums = np.add.reduceat(rows, starts)
        return NumberCounts(numbers[starts][sums != 0], sums[sums != 0])

    def __sub__(self, other: NumberCounts) -> NumberCounts:
        return self + NumberCounts(other.numbers, -other.rows)

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


def read_numbers(values: pa.ChunkedArray) -> FiniteNumbers:
    """Convert the numbers of a column to doubles; null, NaN and infinities are left out."""
    chunks = [chunk.drop_null() if chunk.null_count else chunk for chunk in values.chunks]
    if pa.types.is_decimal(values.type):
        if values.type.precision > _EXACT_DIGITS:
            return _read_long_decimals(values, chunks)
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


def _read_long_decimals(values: pa.ChunkedArray, chunks: list[pa.Array]) -> FiniteNumbers:
    low, high = pc.min_max(values).as_py().values()
    if low is None:
        return FiniteNumbers((), None, None)
    # The cast may give a neighbour of the nearest double, which the ends are converted to.
    doubles = (chunk.cast(pa.float64()).to_numpy() for chunk in chunks)
    return FiniteNumbers(
        tuple(np.clip(part, float(low), float(high)) for part in doubles), low, high
    )


def count_bins(numbers: FiniteNumbers, origin: float) -> NumberCounts:
    """Count numbers by bin of their distance from the origin (`core.comparison.distributions`)."""
    if numbers.low is None:
        return NumberCounts()
    ends = np.array([float(numbers.low), float(numbers.high)]) - origin
    to_bins: Callable[[np.ndarray], np.ndarray] = _bins if ends[0] >= 0 else _signed_bins
    first, last = to_bins(ends).tolist()
    return count_in_range((to_bins(part - origin) for part in numbers.doubles), first, last)


def _bins(distances: np.ndarray) -> np.ndarray:
    """Return the bins of distances of which only -0.0 has a sign; it counts as zero."""
    bins: np.ndarray = distances.view(np.int64) >> distributions.DROPPED_BITS
    bins -= distributions.BIN_OFFSET
    np.maximum(bins, 0, out=bins)
    return bins


def _signed_bins(distances: np.ndarray) -> np.ndarray:
    """Return the bins of distances on both sides of the origin."""
    is_negative = distances < 0
    # Bins end before the next one begins, so on this side each holds its outer end.
    size = np.abs(distances).view(np.int64) - is_negative
    return np.where(is_negative, -_bins(size.view(np.float64)), _bins(size.view(np.float64)))


_COUNTABLE_TYPES = (
    types.StringType,
    types.BooleanType,
    types.DateType,
    types.TimestampType,
    types.TimestamptzType,
)
#: These first rows may show that a column has too many values to count.
PEEK_ROWS = 4 * MAX_CATEGORIES
#: Days that span more than this are counted in a hash table.
_MAX_DAY_SPAN = 1 << 16


def is_countable_in_arrow(column: DiffColumn, side: SideName) -> bool:
    """Return whether the side's values can be counted in their Arrow form."""
    if column.kind == "number":
        return True
    field = column.field(side) or column.known_field
    is_unchanged = column.comparable_sql(side) == column.slot
    return is_unchanged and isinstance(field.field_type, _COUNTABLE_TYPES)


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
