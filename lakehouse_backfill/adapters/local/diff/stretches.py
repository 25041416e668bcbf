"""Stretches of paired rows that follow each other on both sides: compared as they lie.

Rows are mostly written in the order of their key. Copying the texts of both sides beside each
other takes four times as long as comparing them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

#: Pieces of some hundred rows break even: the same time goes by for each, whatever its size.
_MIN_ROWS_PER_SLICE = 256
_Columns = tuple[pa.ChunkedArray, pa.ChunkedArray]
_Rows = tuple[np.ndarray, np.ndarray]


def run_starts(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Tell which pairs of rows do not follow the pair before them on both sides."""
    apart = (mine[1:] - mine[:-1] != 1) | (theirs[1:] - theirs[:-1] != 1)
    return np.concatenate(([0], np.flatnonzero(apart) + 1))


def aligned_slices(sides: _Columns, starts: np.ndarray, rows: _Rows) -> _Columns | None:
    """Give the values of paired rows, pair by pair, without copying them.

    `starts` is what `begins` gave for the rows; None where that would be in too many pieces.
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
    """Tell which pairs inside a stretch are the first of a chunk on this side."""
    first, last = rows[starts], rows[np.append(starts[1:], len(rows)) - 1]
    low, high = (np.searchsorted(chunks, ends, side="right") for ends in (first, last))
    which = np.repeat(np.arange(len(starts)), high - low)
    before = np.cumsum(high - low) - (high - low)
    begun = chunks[np.arange(len(which)) - before[which] + low[which]]
    found: np.ndarray = starts[which] + begun - first[which]
    return found


def _slice_chunks(
    side: pa.ChunkedArray, chunks: np.ndarray, first: np.ndarray, sizes: np.ndarray
) -> pa.ChunkedArray:
    at = np.searchsorted(chunks, first, side="right") - 1
    spans = zip(at.tolist(), (first - chunks[at]).tolist(), sizes.tolist(), strict=True)
    held = side.chunks
    return pa.chunked_array([held[i].slice(start, size) for i, start, size in spans], side.type)
