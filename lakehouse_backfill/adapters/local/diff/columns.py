"""The columns of a diff, and how values of both sides are made comparable and compared.

Inside DuckDB columns are called c0, c1, …. So users' names never reach SQL, and DuckDB's
case-insensitive names cannot confuse two columns.

Values are compared exactly or by a column's tolerance. DuckDB compares values of every type; for
some thousand pairs Arrow is faster, as planning a DuckDB query takes longer than comparing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.schema import Schema

from lakehouse_backfill.core.comparison.conditions import (
    EXACT_DIGITS,
    format_decimal,
    require_applicable_tolerances,
    require_ignored_columns_exist,
)
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.errors import ConfigError, Unsupported

INTEGER_TYPES = (types.IntegerType, types.LongType)
FLOATING_TYPES = (types.FloatType, types.DoubleType)
NUMBER_TYPES = (*INTEGER_TYPES, *FLOATING_TYPES, types.DecimalType)
#: Types whose values can be compared with each other; others only with their own type.
_FAMILIES: tuple[tuple[type[types.IcebergType], ...], ...] = (
    NUMBER_TYPES,
    (types.DateType, types.TimestampType, types.TimestampNanoType),
    (types.TimestamptzType, types.TimestamptzNanoType),
    (types.BinaryType, types.FixedType),
)


@dataclass(frozen=True)
class DiffColumn:
    """One column by name: its field on each side (None: the side lacks it), and its use.

    Numbers are counted in bins by their distance from `origin`.
    """

    name: str
    slot: str
    old: types.NestedField | None
    new: types.NestedField | None
    use: Literal["key", "compared", "condition"]
    tolerance: Tolerance | None = None
    origin: float = 0.0

    @property
    def known_field(self) -> types.NestedField:
        """The new side's field, else the old side's; at least one side has the column."""
        return cast(types.NestedField, self.new or self.old)

    @property
    def field_types(self) -> list[types.IcebergType]:
        """The types of the sides that have the column."""
        return [field.field_type for field in (self.old, self.new) if field is not None]

    @property
    def kind(self) -> Literal["number", "category", "other"]:
        """The kind of distribution that describes the column."""
        if all(isinstance(each, NUMBER_TYPES) for each in self.field_types):
            return "number"
        texts = (types.StringType, types.BooleanType)
        return "category" if all(isinstance(each, texts) for each in self.field_types) else "other"

    @property
    def is_integer(self) -> bool:
        """Whether the values of both sides are whole numbers."""
        return all(isinstance(each, INTEGER_TYPES) for each in self.field_types)

    @property
    def is_floating(self) -> bool:
        """Whether a side's values may be NaN or infinite."""
        return any(isinstance(each, FLOATING_TYPES) for each in self.field_types)

    def field(self, side: Literal["old", "new"]) -> types.NestedField | None:
        """Return the side's own field."""
        return self.old if side == "old" else self.new

    def comparable_sql(self, side: Literal["old", "new"], prefix: str = "") -> str:
        """Return the SQL of the side's value, comparable with the other side's.

        The value is read from the slot's column, whose name may have a prefix.
        """
        own, other = (self.old, self.new) if side == "old" else (self.new, self.old)
        own_type = (own or self.known_field).field_type
        name, other_type = f"{prefix}{self.slot}", (other or self.known_field).field_type
        return _comparable_sql(name, own_type, other_type, depth=0)


def resolve_diff_columns(
    old: Schema,
    new: Schema,
    key: tuple[str, ...],
    ignore: tuple[str, ...],
    read: Iterable[str],
    tolerances: tuple[Tolerance, ...] = (),
) -> tuple[DiffColumn, ...]:
    """List the columns of both sides in table order: the new side's, then those only `old` has.

    Columns of `ignore` are left out unless the condition reads them. Raises ConfigError when a side
    lacks a key column or a tolerance names no compared number column, Unsupported when a key column
    cannot be compared.
    """
    sides = [{field.name: field for field in schema.fields} for schema in (old, new)]
    condition_names, limits = set(read), {tolerance.column: tolerance for tolerance in tolerances}
    columns: list[DiffColumn] = []
    for name in dict.fromkeys([*sides[1], *sides[0]]):
        if name in ignore and name not in key and name not in condition_names:
            continue
        compared: Literal["compared", "condition"] = "condition" if name in ignore else "compared"
        use: Literal["key", "compared", "condition"] = "key" if name in key else compared
        fields = sides[0].get(name), sides[1].get(name)
        columns.append(DiffColumn(name, f"c{len(columns)}", *fields, use, limits.get(name)))
    require_ignored_columns_exist(ignore, sides)
    _check_key_columns([side for side in sides if side], key)
    kinds = {column.name: column.kind for column in columns if column.use == "compared"}
    require_applicable_tolerances(tolerances, kinds, key)
    return tuple(columns)


def _check_key_columns(sides: list[dict[str, types.NestedField]], key: tuple[str, ...]) -> None:
    for name in key:
        fields = [side.get(name) for side in sides]
        kinds = [field.field_type for field in fields if field is not None]
        if len(kinds) < len(fields):
            known = sorted(set.intersection(*(set(side) for side in sides)))
            raise ConfigError(
                f"key column {name} is not on both sides",
                fix=f"choose key columns from: {', '.join(known)}",
            )
        if any(not each.is_primitive for each in kinds) or not all(
            _are_comparable(kinds[0], each) for each in kinds
        ):
            raise Unsupported(
                f"key column {name} has types that cannot be matched: "
                + ", ".join(str(each) for each in kinds),
                fix="choose key columns of one simple type",
            )


def _are_comparable(own: types.IcebergType, other: types.IcebergType) -> bool:
    if isinstance(own, (types.StructType, types.ListType, types.MapType)):
        return type(own) is type(other)
    return own == other or any(
        isinstance(own, family) and isinstance(other, family) for family in _FAMILIES
    )


def _comparable_sql(sql: str, own: types.IcebergType, other: types.IcebergType, depth: int) -> str:
    """Return `sql` itself where the values are comparable as they are."""
    item = f"e{depth}"
    if isinstance(own, types.StructType) and isinstance(other, types.StructType):
        return _struct_sql(sql, own, other, depth)
    if isinstance(own, types.ListType) and isinstance(other, types.ListType):
        inner = _comparable_sql(item, own.element_type, other.element_type, depth + 1)
        return sql if inner == item else f"list_transform({sql}, lambda {item}: {inner})"
    if isinstance(own, types.MapType) and isinstance(other, types.MapType):
        key = _comparable_sql(f"{item}.key", own.key_type, other.key_type, depth + 1)
        value = _comparable_sql(f"{item}.value", own.value_type, other.value_type, depth + 1)
        entry = f"struct_pack(key := {key}, value := {value})"
        entries = f"list_transform(map_entries({sql}), lambda {item}: {entry})"
        return f"CASE WHEN {sql} IS NOT NULL THEN list_sort({entries}) END"
    if _are_comparable(own, other):
        return sql
    # Values of different types are never equal; the type's name is part of the text.
    tag = _sql_literal(f"{own}: ")
    return f"CASE WHEN {sql} IS NOT NULL THEN {tag} || CAST({sql} AS VARCHAR) END"


def _struct_sql(sql: str, own: types.StructType, other: types.StructType, depth: int) -> str:
    own_types = {field.name: field.field_type for field in own.fields}
    other_types = {field.name: field.field_type for field in other.fields}
    parts, is_same = [], list(own_types) == list(other_types)
    for name in sorted({*own_types, *other_types}):
        value = "NULL"
        if name in own_types:
            stored = f"struct_extract({sql}, {_sql_literal(name)})"
            own_type = own_types[name]
            value = _comparable_sql(stored, own_type, other_types.get(name, own_type), depth + 1)
            is_same = is_same and value == stored
        parts.append(f"{_quoted_identifier(name)} := {value}")
    return (
        sql if is_same else f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"
    )


def _quoted_identifier(name: str) -> str:
    from sqlglot import exp

    return str(exp.to_identifier(name, quoted=True).sql("duckdb"))


def _sql_literal(text: str) -> str:
    from sqlglot import exp

    return str(exp.Literal.string(text).sql("duckdb"))


SideName = Literal["old", "new"]
ChangeKind = Literal["added", "removed", "changed"]

#: The number of a row's partition.
PARTITION_SLOT = "p"
#: The number of a row within its side's batch.
ROW_NUMBER_SLOT = "r"
#: The dictionary code of text column c1 is in column kc1.
CODE_PREFIX = "k"
#: A pair is one integer: the old row's number shifted by this, plus the new row's number.
ROW_NUMBER_BITS = 32


#: The kinds of pairs, in report order.
CHANGE_KINDS: tuple[ChangeKind, ...] = ("added", "removed", "changed")
_ADDED, _REMOVED, _CHANGED = range(3)
_EXACT_TYPES = (
    *INTEGER_TYPES,
    types.BooleanType,
    types.DecimalType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.TimeType,
    types.TimestampType,
    types.TimestamptzType,
)
#: Types of texts and bytes, each with its type that may exceed 2 GiB.
LARGE_TYPES = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def are_arrow_comparable(columns: tuple[DiffColumn, ...]) -> bool:
    """Return whether Arrow compares the values of all columns as DuckDB does."""
    return all(map(_is_arrow_comparable, columns))


def differing_pairs(
    beside: Mapping[str, Any], by: list[str], compared: list[DiffColumn]
) -> pa.Table:
    """Return the pairs that differ: kind, partition and key, values, and which values differ.

    `beside` holds the `o_` and `n_` columns of both sides; a side that lacks the row is null there.
    """
    lacks_old, lacks_new = (
        beside[f"{side}_{ROW_NUMBER_SLOT}"].is_null().to_numpy(zero_copy_only=False)
        for side in ("o", "n")
    )
    kinds = np.where(lacks_old, _ADDED, np.where(lacks_new, _REMOVED, _CHANGED))
    result: dict[str, Any] = {"kind": pa.array(CHANGE_KINDS).take(pa.array(kinds))}
    differing = lacks_old | lacks_new
    for name in by:
        old, new = (as_large_type(beside[f"{side}_{name}"]) for side in ("o", "n"))
        result[name] = pc.coalesce(old, new)
    for column in compared:
        old, new = (as_large_type(beside[f"{side}_{column.slot}"]) for side in ("o", "n"))
        flags = differing_values(old, new)
        result |= {f"o_{column.slot}": old, f"n_{column.slot}": new}
        result[f"d_{column.slot}"] = flags
        differing |= flags.to_numpy(zero_copy_only=False)
    return pa.table(result).filter(pa.array(differing))


def _is_arrow_comparable(column: DiffColumn) -> bool:
    if column.use == "condition":
        return True
    if column.old is None or column.new is None or column.tolerance is not None:
        return False
    kind = column.old.field_type
    known = _EXACT_TYPES if column.use == "key" else (*_EXACT_TYPES, *FLOATING_TYPES)
    return bool(kind == column.new.field_type) and isinstance(kind, known)


def as_large_type(values: Any) -> Any:
    """Return texts and bytes as a decoded type that may exceed 2 GiB."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    large_type = LARGE_TYPES.get(values.type)
    return values if large_type is None else values.cast(large_type)


def differing_values(old: Any, new: Any) -> Any:
    """Return for each pair whether it differs; two nulls, two NaN, and -0.0 and 0.0 are equal."""
    same = pc.equal(old, new)
    if pa.types.is_floating(old.type):
        same = pc.or_kleene(same, pc.and_(pc.is_nan(old), pc.is_nan(new)))
    if old.null_count or new.null_count:
        same = pc.coalesce(same, pc.and_(old.is_null(), new.is_null()))
    return pc.invert(same)


def differs_sql(column: DiffColumn, old: str, new: str) -> str:
    """Return the SQL condition that the values of a pair differ; null differs from any value."""
    exactly = f"{old} IS DISTINCT FROM {new}"
    tolerance = column.tolerance
    if tolerance is None:
        return exactly
    limit = format_decimal(tolerance.limit)
    kind = None if tolerance.is_relative else _exact_difference_type(column)
    one, other = (f"CAST({each} AS {kind or 'DOUBLE'})" for each in (old, new))
    if kind is not None:
        places = len(limit.partition(".")[2])
        within = f"abs({one} - {other}) <= CAST('{limit}' AS DECIMAL(38, {places}))"
    else:
        share = f" * greatest(abs({one}), abs({other}))" if tolerance.is_relative else ""
        bound = f"CAST('{limit}' AS DOUBLE){share}"
        within = f"isfinite({one}) AND isfinite({other}) AND abs({one} - {other}) <= {bound}"
    return f"({exactly} AND NOT coalesce({within}, false))"


def _exact_difference_type(column: DiffColumn) -> str | None:
    """Return the type in which both sides' values are subtracted without loss, or None.

    A difference of decimals needs one digit more than they have.
    """
    if column.is_integer:
        return "HUGEINT"
    decimals = [each for each in column.field_types if isinstance(each, types.DecimalType)]
    if len(decimals) < len(column.field_types) or len({each.scale for each in decimals}) > 1:
        return None
    digits = max(each.precision for each in decimals)
    return f"DECIMAL({digits}, {decimals[0].scale})" if digits <= EXACT_DIGITS else None
