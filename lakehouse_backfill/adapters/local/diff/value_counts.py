"""Counting the values of Arrow columns, where their own types say which values are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import BooleanType, DateType, StringType, TimestampType, TimestamptzType

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn
from lakehouse_backfill.adapters.local.diff.counts import count_in_range, min_and_max
from lakehouse_backfill.adapters.local.diff.numbers import has_exact_doubles
from lakehouse_backfill.adapters.local.diff.tally import SideName
from lakehouse_backfill.core.comparison.drift import MAX_CATEGORIES

_COUNTABLE_TYPES = (StringType, BooleanType, DateType, TimestampType, TimestamptzType)
#: So many first rows may show that a column has too many values to count.
PEEK_ROWS = 4 * MAX_CATEGORIES
#: Days that lie so far apart are counted in a hash table.
_MAX_DAY_SPAN = 1 << 16


def is_countable_in_arrow(column: DiffColumn, side: SideName) -> bool:
    """Tell whether the side's values can be measured as they stand in Arrow."""
    field = column.field(side)
    if field is None or column.sql(side) != column.slot:
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
