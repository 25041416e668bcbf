"""When two numbers differ by more than their column's tolerance, as the local engine says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.diff.diff_columns import DiffColumn
from lakehouse_backfill.core.comparison.tolerances import EXACT_DIGITS, format_decimal

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_WHOLE = ("byte", "short", "integer", "long")


def differs(column: DiffColumn, old: Column, new: Column) -> Column:
    """Tell whether the values of a pair differ; null differs from any value."""
    from pyspark.sql import functions as F

    tolerance = column.tolerance
    exactly = ~old.eqNullSafe(new)
    if tolerance is None:
        return exactly
    limit, exact = format_decimal(tolerance.limit), _exact(column)
    if tolerance.is_relative or exact is None:
        one, other = old.cast("double"), new.cast("double")
        bound = F.lit(limit).cast("double")
        if tolerance.is_relative:
            bound = bound * F.greatest(F.abs(one), F.abs(other))
        within = _is_finite(one) & _is_finite(other) & (F.abs(one - other) <= bound)
    else:
        distance = F.abs(old.cast(exact) - new.cast(exact))
        within = distance <= F.lit(limit).cast(f"decimal(38, {len(limit.partition('.')[2])})")
    return exactly & ~F.coalesce(within, F.lit(False))  # noqa: FBT003 (a Spark literal)


def _is_finite(value: Column) -> Column:
    from pyspark.sql import functions as F

    return ~F.isnan(value) & (F.abs(value) < F.lit(float("inf")))


def _exact(column: DiffColumn) -> str | None:
    """Give the type in which both sides' values are subtracted without loss; None: there is none.

    A difference of decimals needs a digit more than they have.
    """
    kinds: list[DataType] = [each for each in (column.old, column.new) if each is not None]
    if all(kind.typeName() in _WHOLE for kind in kinds):
        return "decimal(20, 0)"
    shapes = [
        (kind.precision, kind.scale)  # type: ignore[attr-defined]  # of a decimal type
        for kind in kinds
        if kind.typeName() == "decimal"
    ]
    if len(shapes) < len(kinds) or len({scale for _, scale in shapes}) > 1:
        return None
    digits = max(precision for precision, _ in shapes)
    return f"decimal({digits}, {shapes[0][1]})" if digits <= EXACT_DIGITS else None
