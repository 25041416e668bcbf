"""The canonical row hash `lhb-rowhash-1` over Arrow batches, vectorised, without a JVM.

docs/row-hash.md fixes the definition; `adapters/spark/row_hash.py` is the same in Spark. A hash of
one value takes the hash so far as its seed, so each function takes an array of seeds and returns an
array of hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import Unsupported

#: An array of np.uint64; what numpy's operators return is not typed.
_Words = Any
_SEED = np.uint64(42)
_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64,
    (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    ),
)  # fmt: skip
_MASK_BITS, _STRIPE, _WORD = 63, 32, 8
#: Of so few long values each is hashed alone, with Python's numbers: 32 bytes of one take 1 us.
#: A step of numpy takes 30 us for 32 bytes of all of them.
_FEW_ROWS = 32
#: Words of a long value that are Python's numbers at a time.
_WORDS_AT_ONCE = 65_536
#: Decimals of more digits do not fit into 64 bits.
_MAX_SMALL_DECIMAL = 18


def shape_of(schema: pa.Schema) -> str:
    """Return the digest (64 hex digits) of the columns' names and canonical types.

    Raises Unsupported for a column type without a canonical form.
    """
    return digest(
        [[name, canonical_type(schema.field(name).type)] for name in sorted(schema.names)]
    )


def row_hashes(batch: pa.RecordBatch) -> _Words:
    """Return the hash of each row, as unsigned numbers; the order of columns does not matter."""
    columns = {name: _plain(batch.column(name)) for name in batch.schema.names}
    return _record(columns, batch.num_rows)


def table_hashes(rows: pa.Table) -> _Words:
    """Hash each row of a table: its chunks are put together first."""
    batches = rows.combine_chunks().to_batches()
    return np.concatenate([np.zeros(0, np.uint64), *map(row_hashes, batches)])


def repeated_hashes(hashes: bytearray) -> _Words:
    """Return the hashes that occur more than once among these, of eight bytes each, and sort them.

    They are sorted in place, so that there is no copy of many.
    """
    words = np.frombuffer(hashes, np.uint64)
    words.sort()
    return np.unique(words[1:][words[1:] == words[:-1]])


def checksum_of(hashes: _Words, shape: str) -> Checksum:
    """Return the checksum of rows with these hashes."""
    return Checksum(
        rows=len(hashes),
        xor=int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0,
        total=int(hashes.sum(dtype=np.uint64)) if len(hashes) else 0,
        shape=shape,
    )


def canonical_type(kind: pa.DataType) -> Any:
    """Return the canonical type: a text, or a list for a nested type. Raises Unsupported."""
    if isinstance(kind, pa.BaseExtensionType):
        return "string" if str(kind).startswith("extension<arrow.uuid") else _unsupported(kind)
    if pa.types.is_struct(kind):
        fields = sorted((kind.field(i) for i in range(kind.num_fields)), key=lambda f: f.name)
        return ["struct", [[field.name, canonical_type(field.type)] for field in fields]]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ["list", canonical_type(kind.value_type)]
    if pa.types.is_map(kind):
        return ["map", canonical_type(kind.key_type), canonical_type(kind.item_type)]
    if pa.types.is_decimal(kind):
        size = 18 if kind.precision <= _MAX_SMALL_DECIMAL else 38
        return f"decimal{size}:{kind.scale}"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    found = next((name for is_kind, name in _SCALARS if is_kind(kind)), None)
    return found or _unsupported(kind)


def _unsupported(kind: pa.DataType) -> Any:
    raise Unsupported(
        f"a column of type {kind} has no row hash",
        fix="leave such columns out, or declare them as string",
    )


_Is = Callable[[pa.DataType], bool]
_SCALARS: tuple[tuple[_Is, str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "long"),
    (pa.types.is_floating, "double"),
    (pa.types.is_date, "date"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
)


def _plain(column: pa.Array) -> pa.Array:
    """Return a column without dictionary or extension; a UUID becomes its text, as in Spark."""
    if isinstance(column, pa.DictionaryArray):
        return column.dictionary_decode()
    if isinstance(column, pa.ExtensionArray):
        canonical_type(column.type)
        texts = [None if one is None else str(one) for one in column.to_pylist()]
        return pa.array(texts, pa.string())
    return column


def _record(columns: dict[str, pa.Array], rows: int) -> _Words:
    """Hash null masks, then the values, by name."""
    names = sorted(columns)
    found = np.full(rows, _SEED, np.uint64)
    for start in range(0, max(len(names), 1), _MASK_BITS):
        mask = np.zeros(rows, np.uint64)
        for bit, name in enumerate(names[start : start + _MASK_BITS]):
            if columns[name].null_count:
                mask |= _nulls(columns[name]).astype(np.uint64) << np.uint64(bit)
        found = _hash_long(mask, found)
    for name in names:
        found = _chain_value(columns[name], found)
    return found


def _nulls(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def _chain_value(column: pa.Array, seeds: _Words) -> _Words:
    """Hash each value with its seed; nulls keep the seed, nested nulls count as 42."""
    column = _plain(column)
    if pa.types.is_nested(column.type):
        return _hash_long(_reduced(column), seeds)
    if column.null_count == len(column):
        return seeds
    hashed = _hash_scalars(column, seeds)
    return np.where(_nulls(column), seeds, hashed) if column.null_count else hashed


def _elements(column: pa.Array) -> _Words:
    """Return the number of each list element or map entry: 42 for null."""
    column = _plain(column)
    if pa.types.is_nested(column.type):
        return _reduced(column)
    return _chain_value(column, np.full(len(column), _SEED, np.uint64))


def _reduced(column: pa.Array) -> _Words:
    """Reduce nested values to one number each, 42 for null."""
    nulls = _nulls(column)
    if pa.types.is_struct(column.type):
        kind = column.type
        fields = {kind.field(i).name: pc.struct_field(column, i) for i in range(kind.num_fields)}
        return np.where(nulls, _SEED, _record(fields, len(column)))
    starts, sizes = _extents(column, nulls)
    if pa.types.is_map(column.type):
        keys, items = _elements(column.keys), _elements(column.items)
        pairs = _hash_long(items, _hash_long(keys, np.full(len(keys), _SEED, np.uint64)))
        elements = _sorted_within(pairs, starts, sizes)
    else:
        elements = _elements(column.values)
    found = _hash_long(sizes.astype(np.uint64), np.full(len(column), _SEED, np.uint64))
    rows = np.arange(len(column))
    for place in range(int(sizes.max(initial=0))):
        rows = rows[sizes[rows] > place]
        found[rows] = _hash_long(elements[starts[rows] + place], found[rows])
    return np.where(nulls, _SEED, found)


def _extents(column: pa.Array, nulls: Any) -> tuple[Any, Any]:
    """Return where each list begins in the values, and how many it has."""
    offsets = np.asarray(column.offsets.to_numpy(zero_copy_only=False), dtype=np.int64)
    return offsets[:-1], np.where(nulls, 0, np.diff(offsets))


def _sorted_within(pairs: _Words, starts: Any, sizes: Any) -> _Words:
    """Return the hashes of entries, in ascending signed order within each map."""
    found = pairs.copy()
    for start, size in zip(starts, sizes, strict=True):
        found[start : start + size] = np.sort(pairs[start : start + size].view(np.int64)).view(
            np.uint64
        )
    return found


def _hash_scalars(column: pa.Array, seeds: _Words) -> _Words:
    """Hash values of a scalar type; what stands for null is of no meaning."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return _hash_int(_numbers(column.cast(pa.uint8()), np.uint64), seeds)
    if pa.types.is_date(kind):
        days = _numbers(column.cast(pa.date32()).view(pa.int32()), np.int64)
        return _hash_int(days.astype(np.uint64) & np.uint64(0xFFFFFFFF), seeds)
    if pa.types.is_timestamp(kind):
        instants = column.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
        return _hash_long(_numbers(instants, np.int64).astype(np.uint64), seeds)
    if pa.types.is_floating(kind):
        values = _numbers(column.cast(pa.float64()), np.float64) + 0.0
        bits = np.where(np.isnan(values), np.uint64(0x7FF8 << 48), values.view(np.uint64))
        return _hash_long(bits, seeds)
    if pa.types.is_decimal(kind):
        return _hash_decimals(column, seeds)
    if pa.types.is_integer(kind):
        return _hash_long(_numbers(column, np.int64).astype(np.uint64), seeds)
    canonical_type(kind)
    return _hash_bytes(column, seeds)


def _numbers(column: pa.Array, kind: Any) -> Any:
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False).astype(kind, copy=False)


def _hash_decimals(column: pa.Array, seeds: _Words) -> _Words:
    kind = column.type
    wide = column.cast(pa.decimal128(38, kind.scale))
    # Each value is 16 bytes, little-endian two's complement.
    data = np.frombuffer(wide.buffers()[1], np.uint8)
    start = wide.offset * 16
    data = data[start : start + len(wide) * 16].reshape(-1, 16)
    if kind.precision <= _MAX_SMALL_DECIMAL:
        return _hash_long(np.ascontiguousarray(data[:, :8]).view(np.uint64)[:, 0], seeds)
    nulls = _nulls(column)
    texts = [
        None if is_null else _shortest(int.from_bytes(bytes(row), "little", signed=True))
        for row, is_null in zip(data, nulls, strict=True)
    ]
    return _hash_bytes(pa.array(texts, pa.binary()), seeds)


def _shortest(unscaled: int) -> bytes:
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def _hash_bytes(column: pa.Array, seeds: _Words) -> _Words:
    """Hash texts or bytes: XXH64 of all values at once, those that have bytes left in each step."""
    large = column.cast(pa.large_binary())
    offsets = np.frombuffer(large.buffers()[1], np.int64)[
        large.offset : large.offset + len(large) + 1
    ]
    stored = large.buffers()[2]
    data = np.frombuffer(stored, np.uint8) if stored is not None and stored.size else np.empty(0)
    base, stop = int(offsets[0]), int(offsets[-1])
    data = np.concatenate([data[base:stop].astype(np.uint8), np.zeros(_WORD, np.uint8)])
    at, left = offsets[:-1] - base, np.diff(offsets)
    sizes = left.astype(np.uint64)
    at, left, found = _hash_stripes(data, at, left.copy(), seeds)
    found = found + sizes
    for _ in range(3):
        rows = np.flatnonzero(left >= _WORD)
        if not len(rows):
            break
        word = _word(data, at[rows])
        found[rows] = _rotate(found[rows] ^ _round(np.uint64(0), word), 27) * _P1 + _P4
        at[rows] += _WORD
        left[rows] -= _WORD
    rows = np.flatnonzero(left >= 4)
    half = _word(data, at[rows]) & np.uint64(0xFFFFFFFF)
    found[rows] = _rotate(found[rows] ^ half * _P1, 23) * _P2 + _P3
    at[rows] += 4
    left[rows] -= 4
    for _ in range(3):
        rows = np.flatnonzero(left > 0)
        byte = data[at[rows]].astype(np.uint64)
        found[rows] = _rotate(found[rows] ^ byte * _P5, 11) * _P1
        at[rows] += 1
        left[rows] -= 1
    return _finish(found)


def _hash_stripes(data: Any, at: Any, left: Any, seeds: _Words) -> tuple[Any, Any, _Words]:
    """Hash the whole stripes of 32 bytes; return positions, bytes left, and hashes so far."""
    found = seeds + _P5
    at = at.copy()
    rows = np.flatnonzero(left >= _STRIPE)
    if not len(rows):
        return at, left, found
    own = seeds[rows]
    lanes = [own + _P1 + _P2, own + _P2, own.copy(), own - _P1]
    active = np.arange(len(rows))
    while len(active) > _FEW_ROWS:
        whole = rows[active]
        for lane in range(4):
            word = _word(data, at[whole] + lane * _WORD)
            lanes[lane][active] = _round(lanes[lane][active], word)
        at[whole] += _STRIPE
        left[whole] -= _STRIPE
        active = active[left[whole] >= _STRIPE]
    for place, row in zip(active, rows[active], strict=True):
        size = int(left[row]) // _STRIPE * _STRIPE
        words = data[at[row] : at[row] + size].view("<u8").reshape(-1, 4)
        for lane in range(4):
            lanes[lane][place] = _lane_of_one(int(lanes[lane][place]), words[:, lane])
        at[row] += size
        left[row] -= size
    mixed = sum(
        (_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)),
        start=np.zeros(len(rows), np.uint64),
    )
    for lane_words in lanes:
        mixed = (mixed ^ _round(np.uint64(0), lane_words)) * _P1 + _P4
    found[rows] = mixed
    return at, left, found


def _lane_of_one(lane: int, words: Any) -> int:
    """Return a lane of one value after all of its words.

    Each round needs the one before, so that numpy would do a whole call for each of its operations.
    """
    factor, below = int(_P1), 0xFFFFFFFFFFFFFFFF
    for start in range(0, len(words), _WORDS_AT_ONCE):
        for term in (words[start : start + _WORDS_AT_ONCE] * _P2).tolist():
            lane = (lane + term) & below
            lane = (lane << 31 | lane >> 33) * factor & below
    return lane


def _word(data: Any, at: Any) -> _Words:
    """Return the 8 bytes at each position as little-endian numbers."""
    words: _Words = np.ndarray((len(data) - _WORD + 1,), "<u8", buffer=data, strides=(1,))
    return words[at]


def _hash_long(values: _Words, seeds: _Words) -> _Words:
    found = (seeds + _P5 + np.uint64(8)) ^ _round(np.uint64(0), values)
    return _finish(_rotate(found, 27) * _P1 + _P4)


def _hash_int(values: _Words, seeds: _Words) -> _Words:
    found = (seeds + _P5 + np.uint64(4)) ^ values * _P1
    return _finish(_rotate(found, 23) * _P2 + _P3)


def _round(lane: Any, word: _Words) -> _Words:
    return _rotate(lane + word * _P2, 31) * _P1


def _rotate(value: _Words, by: int) -> _Words:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _finish(found: _Words) -> _Words:
    found = (found ^ (found >> np.uint64(33))) * _P2
    found = (found ^ (found >> np.uint64(29))) * _P3
    return found ^ (found >> np.uint64(32))
