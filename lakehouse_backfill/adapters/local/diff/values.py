"""When two values differ: exactly or by tolerance, in DuckDB and in Arrow.

Telling which values of paired rows differ, as they lie in Arrow.

DuckDB tells the same of all types, but planning its query takes longer than comparing some thousand
pairs here.

When two values differ: exactly, or by more than a column's tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from lakehouse_backfill.adapters.local.diff.columns import ROW_NUMBER_SLOT, ChangeKind, DiffColumn
from lakehouse_backfill.core.comparison.conditions import EXACT_DIGITS, format_decimal

#: The kinds of pairs, in the order in which they are told.
CHANGE_KINDS: tuple[ChangeKind, ...] = ("added", "removed", "changed")
_ADDED, _REMOVED, _CHANGED = range(3)
_EXACT_TYPES = (BooleanType, IntegerType, LongType, DecimalType, StringType, BinaryType)
_TIMES = (DateType, TimeType, TimestampType, TimestamptzType)
_FLOATING = (FloatType, DoubleType)
#: Types of texts and bytes, and those of which more than 2 GiB are taken.
LARGE_TYPES = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def are_arrow_comparable(columns: tuple[DiffColumn, ...]) -> bool:
    """Tell whether Arrow compares the values of all columns as DuckDB does."""
    return all(map(_is_arrow_comparable, columns))


def differing_pairs(
    beside: Mapping[str, Any], by: list[str], compared: list[DiffColumn]
) -> pa.Table:
    """Give those pairs that differ: their kind, partition and key, the values, and which differ.

    `beside` holds what `o_` and `n_` name of both sides; a row without counterpart is null there.
    """
    lacks_old, lacks_new = (
        beside[f"{side}_{ROW_NUMBER_SLOT}"].is_null().to_numpy(zero_copy_only=False)
        for side in ("o", "n")
    )
    kinds = np.where(lacks_old, _ADDED, np.where(lacks_new, _REMOVED, _CHANGED))
    found: dict[str, Any] = {"kind": pa.array(CHANGE_KINDS).take(pa.array(kinds))}
    differing = lacks_old | lacks_new
    for name in by:
        old, new = (as_large_type(beside[f"{side}_{name}"]) for side in ("o", "n"))
        found[name] = pc.coalesce(old, new)
    for column in compared:
        old, new = (as_large_type(beside[f"{side}_{column.slot}"]) for side in ("o", "n"))
        flags = differing_values(old, new)
        found |= {f"o_{column.slot}": old, f"n_{column.slot}": new}
        found[f"d_{column.slot}"] = flags
        differing |= flags.to_numpy(zero_copy_only=False)
    return pa.table(found).filter(pa.array(differing))


def _is_arrow_comparable(column: DiffColumn) -> bool:
    if column.use == "condition":
        return True
    if column.old is None or column.new is None or column.tolerance is not None:
        return False
    kind = column.old.field_type
    known = (
        (*_EXACT_TYPES, *_TIMES) if column.use == "key" else (*_EXACT_TYPES, *_TIMES, *_FLOATING)
    )
    return bool(kind == column.new.field_type) and isinstance(kind, known)


def as_large_type(values: Any) -> Any:
    """Give texts and bytes as one type, dictionary or not, of which more than 2 GiB are taken."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    wide = LARGE_TYPES.get(values.type)
    return values if wide is None else values.cast(wide)


def differing_values(old: Any, new: Any) -> Any:
    """Tell for each pair of one type whether it differs: nulls do not, NaN, or -0.0 and 0.0."""
    same = pc.equal(old, new)
    if pa.types.is_floating(old.type):
        same = pc.or_kleene(same, pc.and_(pc.is_nan(old), pc.is_nan(new)))
    if old.null_count or new.null_count:
        same = pc.coalesce(same, pc.and_(old.is_null(), new.is_null()))
    return pc.invert(same)


_INTEGER_TYPES = (IntegerType, LongType)


def differs_sql(column: DiffColumn, old: str, new: str) -> str:
    """Give the SQL that tells whether the values of a pair differ; null differs from any value."""
    exactly = f"{old} IS DISTINCT FROM {new}"
    tolerance = column.tolerance
    if tolerance is None:
        return exactly
    limit = format_decimal(tolerance.limit)
    if tolerance.is_relative:
        one, other = f"CAST({old} AS DOUBLE)", f"CAST({new} AS DOUBLE)"
        bound = f"CAST('{limit}' AS DOUBLE) * greatest(abs({one}), abs({other}))"
        within = _if_finite_sql(one, other, f"abs({one} - {other}) <= {bound}")
    elif (kind := _exact_difference_type(column)) is not None:
        one, other = (f"CAST({each} AS {kind})" for each in (old, new))
        within = f"abs({one} - {other}) <= CAST('{limit}' AS DECIMAL(38, {_decimal_places(limit)}))"
    else:
        one, other = f"CAST({old} AS DOUBLE)", f"CAST({new} AS DOUBLE)"
        within = _if_finite_sql(one, other, f"abs({one} - {other}) <= CAST('{limit}' AS DOUBLE)")
    return f"({exactly} AND NOT coalesce({within}, false))"


def _if_finite_sql(one: str, other: str, condition: str) -> str:
    return f"(isfinite({one}) AND isfinite({other}) AND {condition})"


def _decimal_places(digits: str) -> int:
    return len(digits.partition(".")[2])


def _exact_difference_type(column: DiffColumn) -> str | None:
    """Give the type in which both sides' values are subtracted without loss; None: there is none.

    A difference of decimals needs a digit more than they have.
    """
    types: list[IcebergType] = [
        field.field_type for field in (column.old, column.new) if field is not None
    ]
    if all(isinstance(each, _INTEGER_TYPES) for each in types):
        return "HUGEINT"
    decimals = [each for each in types if isinstance(each, DecimalType)]
    if len(decimals) < len(types) or len({each.scale for each in decimals}) > 1:
        return None
    digits = max(each.precision for each in decimals)
    return f"DECIMAL({digits}, {decimals[0].scale})" if digits <= EXACT_DIGITS else None
