"""The canonical row hash `lhb-rowhash-1` and its per-group checksum, as Spark expressions.

docs/row-hash.md fixes their definition. It must never change, because checksums are stored.
Everything here is a plain column expression, usable in `groupBy().agg()` and in an Observation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField, StructType

from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.adapters.spark.session.session import session_number
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import Unsupported

_MASK_64 = (1 << 64) - 1
_MASK_BITS = 63
#: The hash of a null: xxhash64 of no value is its seed, so no branch is needed.
NULL_HASH = 42
#: The hash is summed in three parts: a group may have 2^41 rows before a sum overflows.
_PART_BITS = 22
_PREFIX = "lhb_"
_BINARY_COLLATION = "UTF8_BINARY"
#: Expressions by session, and columns or name: building one calls the JVM dozens of times.
_CACHE: dict[tuple[Any, ...], tuple[Column, ...]] = {}
_MAX_CACHED = 64


def shape_digest(schema: StructType, ignore: Collection[str] = ()) -> str:
    """Return the digest (64 hex digits) of the hashed columns' names and canonical types."""
    fields = _hashed_fields(schema, ignore)
    return digest([[field.name, canonical_type(field.dataType)] for field in fields])


def row_hash_column(schema: StructType, ignore: Collection[str] = ()) -> Column:
    """Return the 64-bit hash of a row: never null, independent of column order.

    Raises Unsupported for a column type without a canonical form.
    """
    fields = _hashed_fields(schema, ignore)
    key = tuple((each.name, each.dataType.json(), each.nullable) for each in fields)

    def make() -> tuple[Column, ...]:
        return (_hash_columns([(field, quoted_column(field.name)) for field in fields]),)

    return made_once(key, make)[0]


def made_once(key: tuple[Any, ...], make: Callable[[], tuple[Column, ...]]) -> tuple[Column, ...]:
    """Return expressions that the current session has under this key, else make them.

    Expressions name columns and belong to no frame.
    """
    session_id = session_number()
    key = (session_id, *key)
    found = _CACHE.get(key)
    if found is None:
        found = make()
        if session_id:
            if len(_CACHE) >= _MAX_CACHED:
                _CACHE.clear()
            _CACHE[key] = found
    return found


def value_hash(kind: DataType, value: Column) -> Column:
    """Return the 64-bit hash of one value; equal values have equal hashes, maps in any order."""
    return _hash_element(kind, value)


def frame_checksum(frame: DataFrame, ignore: Collection[str] = ()) -> Checksum:
    """Compute the checksum of all rows of a frame."""
    aggregates = hash_aggregates(row_hash_column(frame.schema, ignore))
    values = frame.agg(*aggregates).collect()[0].asDict()
    return to_checksum(values, shape_digest(frame.schema, ignore))


def hash_aggregates(hashed: Column) -> list[Column]:
    """Return the aggregates over row hashes that `to_checksum` reads; null ones are ignored."""
    part = F.lit((1 << _PART_BITS) - 1)
    middle = F.shiftrightunsigned(hashed, _PART_BITS).bitwiseAND(part)
    return [
        F.count(hashed).alias(f"{_PREFIX}rows"),
        F.bit_xor(hashed).alias(f"{_PREFIX}xor"),
        F.sum(hashed.bitwiseAND(part)).alias(f"{_PREFIX}low"),
        F.sum(middle).alias(f"{_PREFIX}middle"),
        F.sum(F.shiftrightunsigned(hashed, 2 * _PART_BITS)).alias(f"{_PREFIX}high"),
    ]


def to_checksum(row: Mapping[str, Any], shape: str) -> Checksum:
    """Build the checksum from a row of the aggregates (as a dict)."""
    parts = (row[f"{_PREFIX}low"], row[f"{_PREFIX}middle"], row[f"{_PREFIX}high"])
    total = sum((part or 0) << (_PART_BITS * place) for place, part in enumerate(parts))
    return Checksum(
        rows=row[f"{_PREFIX}rows"] or 0,
        xor=(row[f"{_PREFIX}xor"] or 0) & _MASK_64,
        total=total & _MASK_64,
        shape=shape,
    )


def canonical_type(kind: DataType) -> Any:
    """Return the canonical type: a text, or a list for a nested type. Raises Unsupported."""
    if isinstance(kind, T.StructType):
        return ["struct", [[f.name, canonical_type(f.dataType)] for f in _by_name(kind.fields)]]
    if isinstance(kind, T.ArrayType):
        return ["list", canonical_type(kind.elementType)]
    if isinstance(kind, T.MapType):
        return ["map", canonical_type(kind.keyType), canonical_type(kind.valueType)]
    if isinstance(kind, T.DecimalType):
        return f"decimal{18 if kind.precision <= 18 else 38}:{kind.scale}"
    if getattr(kind, "collation", _BINARY_COLLATION) != _BINARY_COLLATION:
        raise _unsupported(kind)
    name = _SCALARS.get(kind.typeName())
    if name is None:
        raise _unsupported(kind)
    return name


_SCALARS = {
    "byte": "long",
    "short": "long",
    "integer": "long",
    "long": "long",
    "float": "double",
    "double": "double",
    "string": "string",
    "char": "string",
    "varchar": "string",
    "binary": "binary",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def _unsupported(kind: DataType) -> Unsupported:
    return Unsupported(
        f"columns of type {kind.simpleString()} have no canonical row hash",
        fix="leave the column out of the product, or store it as string",
    )


def _hashed_fields(schema: StructType, ignore: Collection[str]) -> list[StructField]:
    ignored = set(ignore)
    return _by_name([field for field in schema.fields if field.name not in ignored])


def _by_name(fields: list[StructField]) -> list[StructField]:
    """Sort by name in code point order, as Python compares texts."""
    return sorted(fields, key=lambda field: field.name)


def _hash_columns(columns: list[tuple[StructField, Column]]) -> Column:
    """Hash the NULL mask words, then the canonical values, in the order given."""
    words = [
        _mask_word(columns[start : start + _MASK_BITS])
        for start in range(0, max(len(columns), 1), _MASK_BITS)
    ]
    return F.xxhash64(
        *words, *(_canonical_value(field.dataType, value) for field, value in columns)
    )


def _mask_word(columns: list[tuple[StructField, Column]]) -> Column:
    """Set bit i when column i is null: xxhash64 skips nulls and would miss a moved value."""
    word = F.lit(0).cast("bigint")
    for place, (field, value) in enumerate(columns):
        if field.nullable:  # A required column's bit is always 0.
            bit = F.when(value.isNull(), F.lit(1 << place)).otherwise(F.lit(0))
            word = word.bitwiseOR(bit.cast("bigint"))
    return word


def _canonical_value(kind: DataType, value: Column) -> Column:
    """Return the value to hash; a nested value is reduced to one bigint, null to NULL_HASH."""
    canonical = canonical_type(kind)
    if isinstance(kind, T.StructType):
        fields = [(field, value.getField(field.name)) for field in _by_name(kind.fields)]
        return _unless_null(value, _hash_columns(fields))
    if isinstance(kind, T.ArrayType):
        return _unless_null(value, _hash_array(kind, value))
    if isinstance(kind, T.MapType):
        return _unless_null(value, _hash_map(kind, value))
    widened = {"long": "bigint", "double": "double"}.get(canonical)
    # xxhash64 itself hashes every NaN alike, and -0.0 as 0.0.
    return value.cast(widened) if widened and kind.simpleString() != widened else value


def _hash_element(kind: DataType, value: Column) -> Column:
    """Hash one element, struct field or map entry; null becomes NULL_HASH."""
    reduced = _canonical_value(kind, value)
    nested = isinstance(kind, T.StructType | T.ArrayType | T.MapType)
    return reduced if nested else F.xxhash64(reduced)


def _hash_array(kind: Any, value: Column) -> Column:
    elements = F.transform(value, lambda element: _hash_element(kind.elementType, element))
    return F.xxhash64(F.size(value).cast("bigint"), elements)


def _hash_map(kind: Any, value: Column) -> Column:
    def entry(pair: Column) -> Column:
        key = _hash_element(kind.keyType, pair.getField("key"))
        return F.xxhash64(key, _hash_element(kind.valueType, pair.getField("value")))

    entries = F.array_sort(F.transform(F.map_entries(value), entry))
    return F.xxhash64(F.size(value).cast("bigint"), entries)


def _unless_null(value: Column, reduced: Column) -> Column:
    return F.when(value.isNull(), F.lit(NULL_HASH).cast("bigint")).otherwise(reduced)
