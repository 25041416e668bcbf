"""Turns row ranges into Spark conditions that Iceberg can push down to files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.domain.scope import Bound, RowRange

if TYPE_CHECKING:
    from pyspark.sql import Column


def typed_literal(value: Bound) -> Column:
    """Give the typed literal of a bound; instants do not depend on this process's time zone."""
    from pyspark.sql import functions as F

    if isinstance(value, datetime):
        # F.lit would read a naive datetime in the local zone of the Python process.
        kind = "timestamp" if value.tzinfo else "timestamp_ntz"
        return F.lit(value.isoformat(sep=" ")).cast(kind)
    if isinstance(value, date):
        return F.lit(value)
    return F.lit(value).cast("bigint") if isinstance(value, int) else F.lit(value)


def range_filter(ranges: Sequence[RowRange]) -> Column:
    """Give the rows of any of the ranges; null (never true) where a column is null.

    Raises ValueError for no ranges: an empty condition would mean everything or nothing.
    """
    if not ranges:
        raise ValueError("no ranges: the condition would not be bounded")
    parts = [_single_range_filter(rows) for rows in ranges if rows.equals is None]
    for name in dict.fromkeys(rows.column for rows in ranges if rows.equals is not None):
        values = [rows.equals for rows in ranges if rows.column == name and rows.equals is not None]
        parts.append(_equals(name, values))
    return _balanced_or(parts)


def is_in_ranges(ranges: Sequence[RowRange]) -> Column:
    """Give true or false, never null, for whether a row lies in any of the ranges."""
    from pyspark.sql import functions as F

    return F.coalesce(range_filter(ranges), F.lit(False))  # noqa: FBT003 (a Spark literal)


def label_by_range(pairs: Iterable[tuple[str, RowRange]]) -> Column:
    """Give the label whose range holds the row, null when none does."""
    from pyspark.sql import functions as F

    choices = [F.when(is_in_ranges((rows,)), F.lit(label)) for label, rows in pairs]
    return F.coalesce(*choices, F.lit(None).cast("string"))


def _single_range_filter(rows: RowRange) -> Column:
    name = quoted_column(rows.column)
    if rows.is_null:
        return name.isNull()
    if rows.lower is None:
        if rows.upper is None:
            raise ValueError(f"range of {rows.column} has no bounds")
        return name < typed_literal(rows.upper)
    from_lower = name >= typed_literal(rows.lower)
    return from_lower if rows.upper is None else from_lower & (name < typed_literal(rows.upper))


def _equals(name: str, values: list[Bound]) -> Column:
    if len(values) == 1:
        return quoted_column(name) == typed_literal(values[0])
    return quoted_column(name).isin([typed_literal(value) for value in values])


def _balanced_or(parts: list[Column]) -> Column:
    """Join by OR as a balanced tree: a chain of thousands overflows Spark's stack."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else pair[0] | pair[1] for pair in pairs]
    return parts[0]
