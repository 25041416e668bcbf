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

from lakehouse_backfill.adapters.local.xxh64 import Words, hash_bytes, hash_ints, hash_longs
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import Unsupported

_SEED = np.uint64(42)
_MASK_BITS = 63
#: Decimals of more digits do not fit into 64 bits.
_MAX_SMALL_DECIMAL = 18


def shape_of(schema: pa.Schema) -> str:
    """Return the digest (64 hex digits) of the columns' names and canonical types.

    Raises Unsupported for a column type without a canonical form.
    """
    return digest(
        [[name, canonical_type(schema.field(name).type)] for name in sorted(schema.names)]
    )


def row_hashes(batch: pa.RecordBatch) -> Words:
    """Return the hash of each row, as unsigned numbers; the order of columns does not matter."""
    columns = {name: _plain(batch.column(name)) for name in batch.schema.names}
    return _record(columns, batch.num_rows)


def table_hashes(rows: pa.Table) -> Words:
    """Hash each row of a table: its chunks are put together first."""
    batches = rows.combine_chunks().to_batches()
    return np.concatenate([np.zeros(0, np.uint64), *map(row_hashes, batches)])


def repeated_hashes(hashes: bytearray) -> Words:
    """Return the hashes that occur more than once among these, of eight bytes each, and sort them.

    They are sorted in place, so that there is no copy of many.
    """
    words = np.frombuffer(hashes, np.uint64)
    words.sort()
    return np.unique(words[1:][words[1:] == words[:-1]])


def checksum_of(hashes: Words, shape: str) -> Checksum:
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


def _record(columns: dict[str, pa.Array], rows: int) -> Words:
    """Hash null masks, then the values, by name."""
    names = sorted(columns)
    found = np.full(1, _SEED, np.uint64)
    for start in range(0, max(len(names), 1), _MASK_BITS):
        # Most columns have no nulls: their words are the same in all rows.
        mask = np.zeros(1, np.uint64)
        for bit, name in enumerate(names[start : start + _MASK_BITS]):
            if columns[name].null_count:
                mask = mask | _nulls(columns[name]).astype(np.uint64) << np.uint64(bit)
        found = hash_longs(*np.broadcast_arrays(mask, found))
    found = found if len(found) == rows else found.repeat(rows)
    for name in names:
        found = _chain_value(columns[name], found)
    return found


def _nulls(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def _chain_value(column: pa.Array, seeds: Words) -> Words:
    """Hash each value with its seed; nulls keep the seed, nested nulls count as 42."""
    column = _plain(column)
    if pa.types.is_nested(column.type):
        return hash_longs(_reduced(column), seeds)
    if column.null_count == len(column):
        return seeds
    hashed = _hash_scalars(column, seeds)
    return np.where(_nulls(column), seeds, hashed) if column.null_count else hashed


def _elements(column: pa.Array) -> Words:
    """Return the number of each list element or map entry: 42 for null."""
    column = _plain(column)
    if pa.types.is_nested(column.type):
        return _reduced(column)
    return _chain_value(column, np.full(len(column), _SEED, np.uint64))


def _reduced(column: pa.Array) -> Words:
    """Reduce nested values to one number each, 42 for null."""
    nulls = _nulls(column)
    if pa.types.is_struct(column.type):
        kind = column.type
        fields = {kind.field(i).name: pc.struct_field(column, i) for i in range(kind.num_fields)}
        return np.where(nulls, _SEED, _record(fields, len(column)))
    starts, sizes = _extents(column, nulls)
    if pa.types.is_map(column.type):
        keys, items = _elements(column.keys), _elements(column.items)
        pairs = hash_longs(items, hash_longs(keys, np.full(len(keys), _SEED, np.uint64)))
        elements = _sorted_within(pairs, starts, sizes)
    else:
        elements = _elements(column.values)
    found = hash_longs(sizes.astype(np.uint64), np.full(len(column), _SEED, np.uint64))
    rows = np.arange(len(column))
    for place in range(int(sizes.max(initial=0))):
        rows = rows[sizes[rows] > place]
        found[rows] = hash_longs(elements[starts[rows] + place], found[rows])
    return np.where(nulls, _SEED, found)


def _extents(column: pa.Array, nulls: Any) -> tuple[Any, Any]:
    """Return where each list begins in the values, and how many it has."""
    offsets = np.asarray(column.offsets.to_numpy(zero_copy_only=False), dtype=np.int64)
    return offsets[:-1], np.where(nulls, 0, np.diff(offsets))


def _sorted_within(pairs: Words, starts: Any, sizes: Any) -> Words:
    """Return the hashes of entries, in ascending signed order within each map."""
    found = pairs.copy()
    for start, size in zip(starts, sizes, strict=True):
        found[start : start + size] = np.sort(pairs[start : start + size].view(np.int64)).view(
            np.uint64
        )
    return found


def _hash_scalars(column: pa.Array, seeds: Words) -> Words:
    """Hash values of a scalar type; what stands for null is of no meaning."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return hash_ints(_numbers(column.cast(pa.uint8()), np.uint64), seeds)
    if pa.types.is_date(kind):
        days = _numbers(column.cast(pa.date32()).view(pa.int32()), np.int64)
        return hash_ints(days.astype(np.uint64) & np.uint64(0xFFFFFFFF), seeds)
    if pa.types.is_timestamp(kind):
        instants = column.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
        return hash_longs(_numbers(instants, np.int64).astype(np.uint64), seeds)
    if pa.types.is_floating(kind):
        values = _numbers(column.cast(pa.float64()), np.float64) + 0.0
        bits = np.where(np.isnan(values), np.uint64(0x7FF8 << 48), values.view(np.uint64))
        return hash_longs(bits, seeds)
    if pa.types.is_decimal(kind):
        return _hash_decimals(column, seeds)
    if pa.types.is_integer(kind):
        return hash_longs(_numbers(column, np.int64).astype(np.uint64), seeds)
    canonical_type(kind)
    return _hash_bytes(column, seeds)


def _numbers(column: pa.Array, kind: Any) -> Any:
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False).astype(kind, copy=False)


def _hash_decimals(column: pa.Array, seeds: Words) -> Words:
    kind = column.type
    is_plain = pa.types.is_decimal128(kind)
    wide = column if is_plain else column.cast(pa.decimal128(38, kind.scale))
    # Each value is 16 bytes, little-endian two's complement.
    words = np.frombuffer(wide.buffers()[1], np.uint64)
    words = words[wide.offset * 2 : (wide.offset + len(wide)) * 2]
    if kind.precision <= _MAX_SMALL_DECIMAL:
        return hash_longs(words[::2], seeds)
    return hash_bytes(*_shortest(words, _nulls(column)), seeds)


def _shortest(words: Words, nulls: Any) -> tuple[Any, Any]:
    """Return the fewest big-endian bytes of each value, one after the other, and where each begins.

    The value is two's complement: a first byte that only repeats the sign is left out.
    """
    data = words.view(np.uint8).reshape(-1, 16)[:, ::-1]
    signs = np.where(data[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    repeats = (data[:, :-1] == signs) & ((data[:, 1:] ^ signs) < 0x80)
    skipped = np.logical_and.accumulate(repeats, axis=1).sum(axis=1)
    skipped[nulls] = 16
    offsets = np.concatenate([[0], np.cumsum(16 - skipped)])
    return data[np.arange(16) >= skipped[:, None]], offsets


def _hash_bytes(column: pa.Array, seeds: Words) -> Words:
    """Hash texts or bytes."""
    large = column.cast(pa.large_binary())
    offsets = np.frombuffer(large.buffers()[1], np.int64)[
        large.offset : large.offset + len(large) + 1
    ]
    stored = large.buffers()[2]
    has_bytes = stored is not None and stored.size
    data = np.frombuffer(stored, np.uint8) if has_bytes else np.empty(0, np.uint8)
    return hash_bytes(data, offsets, seeds)
