"""Counting the values of Arrow columns, where their own types say which values are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import BooleanType, DateType, StringType, TimestampType, TimestamptzType

from lakehouse_backfill.local.columns import Column
from lakehouse_backfill.local.tally import SideName, Spread
from lakehouse_backfill.rules import scaled_bins
from lakehouse_backfill.rules.drift import MAX_CATEGORIES

_PLAIN = (StringType, BooleanType, DateType, TimestampType, TimestamptzType)
_PEEK_ROWS = 4 * MAX_CATEGORIES


def is_countable(column: Column, side: SideName) -> bool:
    """Tell whether the side's values are compared as they stand in Arrow, and are no floats."""
    field = column.field(side)
    is_plain = field is not None and isinstance(field.field_type, _PLAIN)
    return is_plain and column.sql(side) == column.slot


def count_values(spread: Spread, values: pa.ChunkedArray) -> None:
    """Add the nulls and values of a column; one of too many values is closed by its first rows."""
    spread.nulls += values.null_count
    if spread.counts is None:
        return
    if pa.types.is_dictionary(values.type):
        values = values.unify_dictionaries()
    elif pc.count_distinct(values.slice(0, _PEEK_ROWS)).as_py() > MAX_CATEGORIES:
        spread.counts = None
        return
    counted = pc.value_counts(values)
    if len(counted) > MAX_CATEGORIES + 1:  # null is one of them
        spread.counts = None
        return
    found, rows = counted.field(0), counted.field(1).to_pylist()
    spread.count(_named(found, rows))


def scaled_counts(doubles: pa.ChunkedArray) -> dict[int, int]:
    """Count doubles by `rules.scaled_bins`; nulls are left out."""
    found: Counter[int] = Counter()
    for chunk in doubles.chunks:
        bits = pc.shift_right(pc.abs(chunk).view(pa.int64()), scaled_bins.DROPPED_BITS)
        number = pc.max_element_wise(pc.subtract(bits, scaled_bins.OFFSET), 0, skip_nulls=False)
        signed = pc.if_else(pc.less(chunk, 0.0), pc.negate(number), number)
        counted = pc.value_counts(signed)
        rows = zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True)
        found.update({bin_: count for bin_, count in rows if bin_ is not None})
    return dict(found)


def partition_rows(numbers: pa.ChunkedArray) -> Mapping[int, int]:
    """Count the rows of each partition number."""
    counted = pc.value_counts(numbers)
    return dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))


def _named(found: Any, rows: list[int]) -> dict[str, int]:
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    if pa.types.is_date(found.type):
        found = found.cast(pa.int32())
    elif pa.types.is_timestamp(found.type):
        found = found.cast(pa.int64())
    return {
        _text(value): number
        for value, number in zip(found.to_pylist(), rows, strict=True)
        if value is not None
    }


def _text(value: Any) -> str:
    """Write a value as DuckDB does; what stands for a moment is never shown."""
    return str(value).lower() if isinstance(value, bool) else str(value)
