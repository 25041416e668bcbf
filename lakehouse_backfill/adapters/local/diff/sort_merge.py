"""Matching of rows by whole-number keys, by sorting in Arrow arrays.

A join takes twice as long. Rows are compared by value, without a hash or a database.

Rows are mostly written in key order. So paired rows form runs that are consecutive on both sides,
which are compared in place. Copying the texts of both sides into pair order takes four times as
long as comparing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import DateType, IntegerType, LongType, TimestampType, TimestamptzType

from lakehouse_backfill.adapters.local.diff.columns import (
    CODE_PREFIX,
    LARGE_TYPES,
    PARTITION_SLOT,
    ROW_NUMBER_BITS,
    DiffColumn,
    SideName,
    are_arrow_comparable,
    as_large_type,
    differing_values,
)
from lakehouse_backfill.adapters.local.diff.counts import is_countable_in_arrow, min_and_max

#: Slices of some hundred rows break even, as each slice has the same fixed cost.
_MIN_ROWS_PER_SLICE = 256
_Columns = tuple[pa.ChunkedArray, pa.ChunkedArray]
_Rows = tuple[np.ndarray, np.ndarray]


def run_starts(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the pairs of rows that do not follow the pair before them on both sides."""
    apart = (mine[1:] - mine[:-1] != 1) | (theirs[1:] - theirs[:-1] != 1)
    return np.concatenate(([0], np.flatnonzero(apart) + 1))


def aligned_slices(sides: _Columns, starts: np.ndarray, rows: _Rows) -> _Columns | None:
    """Return the values of paired rows, pair by pair, without copying them.

    `starts` is the result of `run_starts` for the rows. Returns None when that takes too many
    slices.
    """
    if len(starts) * _MIN_ROWS_PER_SLICE > len(rows[0]):
        return None
    chunks = [np.cumsum([0, *map(len, side.chunks)]) for side in sides]
    cuts = (_chunk_starts(own, each, starts) for own, each in zip(chunks, rows, strict=True))
    starts = np.unique(np.concatenate([starts, *cuts]))
    if len(starts) * _MIN_ROWS_PER_SLICE > len(rows[0]):
        return None
    sizes = np.diff(np.append(starts, len(rows[0])))
    old, new = (
        _slice_chunks(side, own, each[starts], sizes)
        for side, own, each in zip(sides, chunks, rows, strict=True)
    )
    return old, new


def _chunk_starts(chunks: np.ndarray, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the pairs inside a run that are the first of a chunk on this side."""
    first, last = rows[starts], rows[np.append(starts[1:], len(rows)) - 1]
    low, high = (np.searchsorted(chunks, ends, side="right") for ends in (first, last))
    which = np.repeat(np.arange(len(starts)), high - low)
    before = np.cumsum(high - low) - (high - low)
    chunk_offsets = chunks[np.arange(len(which)) - before[which] + low[which]]
    result: np.ndarray = starts[which] + chunk_offsets - first[which]
    return result


def _slice_chunks(
    side: pa.ChunkedArray, chunks: np.ndarray, first: np.ndarray, sizes: np.ndarray
) -> pa.ChunkedArray:
    indices = np.searchsorted(chunks, first, side="right") - 1
    spans = zip(indices.tolist(), (first - chunks[indices]).tolist(), sizes.tolist(), strict=True)
    arrays = side.chunks
    return pa.chunked_array([arrays[i].slice(start, size) for i, start, size in spans], side.type)


_INTEGER_KEY_TYPES = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)
_MAX_KEY_BITS = 63
#: Keys with fewer descents than one in this many rows count as nearly sorted.
_NEARLY_SORTED_RATIO = 64
_MAX_BYTES = 1 << 30
#: Texts may be long, so only this many are copied at a time.
_TEXTS_PER_COPY = 65_536
_SIDES: tuple[SideName, SideName] = ("old", "new")


def are_sortable(columns: tuple[DiffColumn, ...]) -> bool:
    """Return whether keys are whole numbers and Arrow can compare and count all columns."""
    keys = [column.old.field_type for column in columns if column.use == "key" and column.old]
    compared = [column for column in columns if column.use == "compared"]
    return (
        bool(keys)
        and all(isinstance(kind, _INTEGER_KEY_TYPES) for kind in keys)
        and are_arrow_comparable(columns)
        and all(is_countable_in_arrow(column, side) for column in compared for side in _SIDES)
    )


def sorted_pairs(
    old: pa.Table, new: pa.Table, columns: tuple[DiffColumn, ...]
) -> np.ndarray | None:
    """Return the pairs of rows that differ, in order: row numbers from 1 on, 0 for none.

    None when a side has a key more than once, when a key is null, when the combined keys of both
    sides need more than 63 bits, and when the rows are too wide for copies of columns to pay off.
    """
    if old.nbytes + new.nbytes > _MAX_BYTES:
        return None
    by = [PARTITION_SLOT, *(column.slot for column in columns if column.use == "key")]
    keys = _combined_keys([rows.select(by) for rows in (old, new)]) or []
    ordered = [unique for each in keys if (unique := _sorted_unique_keys(each)) is not None]
    if len(ordered) < len(_SIDES):
        return None
    (old_keys, old_order), (new_keys, new_order) = ordered
    places = np.searchsorted(old_keys, new_keys)
    np.minimum(places, max(len(old_keys) - 1, 0), out=places)
    is_both = old_keys[places] == new_keys if len(old_keys) else np.zeros(len(new_keys), bool)
    is_removed = np.ones(len(old_keys), bool)
    is_removed[places[is_both]] = False
    old_rows, new_rows = old_order[places[is_both]], new_order[is_both]
    flags = _differing_flags(old, new, columns, old_rows, new_rows)
    pairs = (
        (old_rows[flags] + 1 << ROW_NUMBER_BITS) | (new_rows[flags] + 1),
        old_order[is_removed] + 1 << ROW_NUMBER_BITS,
        new_order[~is_both] + 1,
    )
    return np.sort(np.concatenate(pairs))


def _combined_keys(sides: Sequence[pa.Table]) -> list[np.ndarray] | None:
    """Return one number for each row's key, in key order; None when that is impossible."""
    combined = [np.zeros(rows.num_rows, np.int64) for rows in sides]
    places = 1
    for name in sides[0].column_names:
        parts = [_stored_numbers(rows[name]) for rows in sides]
        low, high = min_and_max([part for side in parts for part in side])
        if low is None or any(rows[name].null_count for rows in sides):
            return None
        places *= high - low + 1
        if places.bit_length() > _MAX_KEY_BITS:
            return None
        for keys, side in zip(combined, parts, strict=True):
            _append_key_column(keys, side, low, high - low + 1)
    return combined


def _append_key_column(keys: np.ndarray, parts: list[np.ndarray], low: int, width: int) -> None:
    """Append a column to the keys as their last digit, part by part to stay in the cache."""
    start = 0
    for part in parts:
        key_slice = keys[start : start + len(part)]
        key_slice *= width
        key_slice += part
        key_slice -= low
        start += len(part)


def _stored_numbers(values: pa.ChunkedArray) -> list[np.ndarray]:
    """Return the stored integers of values without nulls."""
    kind = pa.int32() if values.type.bit_width == 32 else pa.int64()
    return [chunk.view(kind).to_numpy() for chunk in values.chunks if not chunk.null_count]


def _sorted_unique_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the keys in ascending order and their positions; None when a key repeats."""
    descents = np.count_nonzero(keys[1:] <= keys[:-1])
    if not descents:
        return keys, np.arange(len(keys))
    # A stable sort is faster on nearly sorted keys, quicksort on unsorted ones.
    kind: Any = "stable" if descents * _NEARLY_SORTED_RATIO < len(keys) else "quicksort"
    order = np.argsort(keys, kind=kind)
    ordered = keys[order]
    return (ordered, order) if bool((ordered[1:] != ordered[:-1]).all()) else None


def _differing_flags(
    old: pa.Table,
    new: pa.Table,
    columns: tuple[DiffColumn, ...],
    mine: np.ndarray,
    theirs: np.ndarray,
) -> np.ndarray:
    """Return for each pair of rows whether a compared column differs."""
    places = pa.array(mine), pa.array(theirs)
    starts = run_starts(mine, theirs)
    differs = pa.chunked_array([pa.repeat(pa.scalar(value=False), len(mine))])
    for column in (column for column in columns if column.use == "compared"):
        name = (
            coded if (coded := f"{CODE_PREFIX}{column.slot}") in old.column_names else column.slot
        )
        sides = old[name], new[name]
        pieces = aligned_slices(sides, starts, (mine, theirs)) if _are_texts(sides) else None
        differs = pc.or_(
            differs, _compare_copied(sides, places) if pieces is None else differing_values(*pieces)
        )
    flags: np.ndarray = differs.combine_chunks().to_numpy(zero_copy_only=False)
    return flags


def _are_texts(sides: tuple[pa.ChunkedArray, pa.ChunkedArray]) -> bool:
    kind = sides[0].type
    return kind == sides[1].type and (kind in LARGE_TYPES or kind in LARGE_TYPES.values())


def _compare_copied(
    sides: tuple[pa.ChunkedArray, pa.ChunkedArray], places: tuple[pa.Array, pa.Array]
) -> pa.ChunkedArray:
    """Compare the values at these positions, after copying them into pair order."""
    whole = [as_large_type(each).combine_chunks() for each in sides]
    size = _TEXTS_PER_COPY if pa.types.is_large_string(whole[0].type) else max(len(places[0]), 1)
    parts = []
    for start in range(0, len(places[0]), size):
        values = (
            pc.take(each, own.slice(start, size), boundscheck=False)
            for each, own in zip(whole, places, strict=True)
        )
        parts.append(differing_values(*values))
    return pa.chunked_array(parts, pa.bool_())
