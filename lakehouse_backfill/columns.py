"""Columns for job code that come out the same in each run: ids, money, ordered lists.

A job imports them beside the decorator::

    from lakehouse_backfill.columns import deterministic_id, money, ordered_list

They are plain expressions of Spark and run through Spark Connect, too. PySpark is imported when
one is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

    ColumnOrName = Column | str

__all__ = ["deterministic_id", "money", "ordered_list"]

#: Instants as text, whatever the session's time zone is, to the microsecond.
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


def deterministic_id(*columns: ColumnOrName) -> Column:
    """Return an id made of the columns' values alone: 64 hex digits, a SHA-256.

    Equal values give equal ids in each run, on any number of partitions; a null differs from an
    empty text, and `("a", "bc")` from `("ab", "c")`. The types count: 1 and 1.0 give other ids.
    Name the columns that identify a row. Maps have no order: pass their sorted entries.

    Raises ValueError without a column.
    """
    from pyspark.sql import functions as F

    if not columns:
        raise ValueError("deterministic_id needs the columns that identify a row")
    named = [_column(column).alias(str(number)) for number, column in enumerate(columns)]
    return F.sha2(F.to_json(F.struct(*named), _JSON_OPTIONS), 256)


def money(column: ColumnOrName, scale: int = 2, precision: int = 18) -> Column:
    """Return an amount as an exact decimal, halves rounded away from zero.

    Sums of decimals do not depend on the order of rows; sums of doubles do. An amount that does not
    fit is an error in ANSI mode, which is Spark's default.
    """
    return _column(column).cast(f"decimal({int(precision)},{int(scale)})")


def ordered_list(value: ColumnOrName, *order: ColumnOrName) -> Column:
    """Return an aggregate: the values of a group as an array, by `order`, then by value.

    Rows that are equal in both are equal, so the array is the same in each run. A null value is
    kept. Raises ValueError without an order.
    """
    from pyspark.sql import functions as F

    if not order:
        raise ValueError("ordered_list needs at least one column to order by")
    keys = [_column(column).alias(f"order_{number}") for number, column in enumerate(order)]
    pairs = F.collect_list(F.struct(*keys, _column(value).alias("value")))
    return F.transform(F.sort_array(pairs), lambda pair: pair["value"])


def _column(column: ColumnOrName) -> Column:
    from pyspark.sql import functions as F

    return F.col(column) if isinstance(column, str) else column
