"""Value comparison: exact or by a column's tolerance, as DuckDB SQL and in Arrow.

DuckDB compares values of every type. For some thousand pairs Arrow is faster, as planning a DuckDB
query takes longer than comparing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types

from lakehouse_backfill.adapters.local.diff.columns import (
    FLOATING_TYPES,
    INTEGER_TYPES,
    ROW_NUMBER_SLOT,
    ChangeKind,
    DiffColumn,
)
from lakehouse_backfill.core.comparison.conditions import EXACT_DIGITS, format_decimal

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
