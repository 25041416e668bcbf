"""When two values differ: exactly, or by more than a column's tolerance."""

from __future__ import annotations

from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn
from lakehouse_backfill.core.comparison.tolerances import EXACT_DIGITS, format_decimal

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
