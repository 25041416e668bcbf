"""The columns of a diff, and the SQL that makes both sides' values comparable.

Inside DuckDB columns are called c0, c1, …. So users' names never reach SQL, and DuckDB's
case-insensitive names cannot confuse two columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from lakehouse_backfill.core.comparison.conditions import (
    require_applicable_tolerances,
    require_ignored_columns_exist,
)
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.errors import ConfigError, Unsupported

NUMBER_TYPES = (IntegerType, LongType, FloatType, DoubleType, DecimalType)
#: Types whose values can be compared with each other; others only with their own type.
_FAMILIES: tuple[tuple[type[IcebergType], ...], ...] = (
    NUMBER_TYPES,
    (DateType, TimestampType, TimestampNanoType),
    (TimestamptzType, TimestamptzNanoType),
    (BinaryType, FixedType),
)


@dataclass(frozen=True)
class DiffColumn:
    """One column by name: its field on each side (None: the side lacks it), and its use."""

    name: str
    slot: str
    old: NestedField | None
    new: NestedField | None
    use: Literal["key", "compared", "condition"]
    tolerance: Tolerance | None = None

    @property
    def known_field(self) -> NestedField:
        """The new side's field, else the old side's; at least one side has the column."""
        return cast(NestedField, self.new or self.old)

    @property
    def kind(self) -> Literal["number", "category", "other"]:
        """The kind of distribution that describes the column."""
        types = [field.field_type for field in (self.old, self.new) if field is not None]
        if all(isinstance(each, NUMBER_TYPES) for each in types):
            return "number"
        texts = all(isinstance(each, (StringType, BooleanType)) for each in types)
        return "category" if texts else "other"

    @property
    def is_integer(self) -> bool:
        """Whether the values of both sides are whole numbers."""
        fields = [field for field in (self.old, self.new) if field is not None]
        return all(isinstance(field.field_type, (IntegerType, LongType)) for field in fields)

    @property
    def is_floating(self) -> bool:
        """Whether a side's values may be NaN or infinite."""
        fields = [field for field in (self.old, self.new) if field is not None]
        return any(isinstance(field.field_type, (FloatType, DoubleType)) for field in fields)

    def field(self, side: Literal["old", "new"]) -> NestedField | None:
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


def _check_key_columns(sides: list[dict[str, NestedField]], key: tuple[str, ...]) -> None:
    for name in key:
        fields = [side.get(name) for side in sides]
        types = [field.field_type for field in fields if field is not None]
        if len(types) < len(fields):
            known = sorted(set.intersection(*(set(side) for side in sides)))
            raise ConfigError(
                f"key column {name} is not on both sides",
                fix=f"choose key columns from: {', '.join(known)}",
            )
        if any(not each.is_primitive for each in types) or not all(
            _are_comparable(types[0], each) for each in types
        ):
            raise Unsupported(
                f"key column {name} has types that cannot be matched: "
                + ", ".join(str(each) for each in types),
                fix="choose key columns of one simple type",
            )


def _are_comparable(own: IcebergType, other: IcebergType) -> bool:
    if isinstance(own, (StructType, ListType, MapType)):
        return type(own) is type(other)
    return own == other or any(
        isinstance(own, family) and isinstance(other, family) for family in _FAMILIES
    )


def _comparable_sql(sql: str, own: IcebergType, other: IcebergType, depth: int) -> str:
    if not _must_be_rewritten(own, other):
        return sql
    item = f"e{depth}"
    if isinstance(own, StructType) and isinstance(other, StructType):
        return _struct_sql(sql, own, other, depth)
    if isinstance(own, ListType) and isinstance(other, ListType):
        inner = _comparable_sql(item, own.element_type, other.element_type, depth + 1)
        return f"list_transform({sql}, lambda {item}: {inner})"
    if isinstance(own, MapType) and isinstance(other, MapType):
        key = _comparable_sql(f"{item}.key", own.key_type, other.key_type, depth + 1)
        value = _comparable_sql(f"{item}.value", own.value_type, other.value_type, depth + 1)
        entry = f"struct_pack(key := {key}, value := {value})"
        entries = f"list_transform(map_entries({sql}), lambda {item}: {entry})"
        return f"CASE WHEN {sql} IS NOT NULL THEN list_sort({entries}) END"
    # Values of different types are never equal; the type's name is part of the text.
    tag = _sql_literal(f"{own}: ")
    return f"CASE WHEN {sql} IS NOT NULL THEN {tag} || CAST({sql} AS VARCHAR) END"


def _struct_sql(sql: str, own: StructType, other: StructType, depth: int) -> str:
    own_types = {field.name: field.field_type for field in own.fields}
    other_types = {field.name: field.field_type for field in other.fields}
    parts = []
    for name in sorted({*own_types, *other_types}):
        if name in own_types:
            value = f"struct_extract({sql}, {_sql_literal(name)})"
            value = _comparable_sql(
                value, own_types[name], other_types.get(name, own_types[name]), depth + 1
            )
        else:
            value = "NULL"
        parts.append(f"{_quoted_identifier(name)} := {value}")
    return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"


def _must_be_rewritten(own: IcebergType, other: IcebergType) -> bool:
    if not _are_comparable(own, other) or isinstance(own, MapType):
        return True
    if isinstance(own, ListType) and isinstance(other, ListType):
        return _must_be_rewritten(own.element_type, other.element_type)
    if isinstance(own, StructType) and isinstance(other, StructType):
        if [field.name for field in own.fields] != [field.name for field in other.fields]:
            return True
        return any(
            _must_be_rewritten(a.field_type, b.field_type)
            for a, b in zip(own.fields, other.fields, strict=True)
        )
    return False


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
