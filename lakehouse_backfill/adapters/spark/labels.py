"""Partition labels of rows: a cheap value where the rows are, the label's text where it is shown.

Formatting a date for every row costs as much as hashing the row.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.domain.partitions import partition_label
from lakehouse_backfill.domain.scope import NULL_LABEL, ScopeField

if TYPE_CHECKING:
    from pyspark.sql import Column

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def raw_label(field: ScopeField) -> Column:
    """Give a value for each row that `label` turns into its partition's label; null for null.

    It sorts as the partitions do. Days and hours are UTC: the session's time zone is.
    """
    from pyspark.sql import functions as F

    value = quoted_column(field.column)
    if field.type == "string":
        return value
    if field.transform in ("year", "month"):
        return (F.year(value) * 12 + F.month(value) - 1).cast("bigint")
    if raw_type(field) == "date":
        return value.cast("date")
    if field.type in ("int", "long"):
        return value.cast("bigint")
    instant = value.cast("timestamp")
    whole = F.date_trunc("hour", instant) if field.transform == "hour" else instant
    return F.unix_micros(whole)


def raw_type(field: ScopeField) -> str:
    """Give the Spark type of `raw_label`."""
    if field.type == "string":
        return "string"
    is_day = field.transform == "day" or (field.transform == "identity" and field.type == "date")
    return "date" if is_day else "bigint"


def format_label(field: ScopeField, raw: Any) -> str:
    """Give the partition's label for what `raw_label` gave."""
    if raw is None:
        return NULL_LABEL
    if field.transform in ("year", "month"):
        return partition_label(field, datetime(raw // 12, raw % 12 + 1, 1, tzinfo=timezone.utc))
    if raw_type(field) == "bigint" and field.type not in ("int", "long"):
        moment = _UNIX_EPOCH + timedelta(microseconds=raw)
        return partition_label(
            field, moment.replace(tzinfo=None) if field.type == "timestamp" else moment
        )
    return partition_label(field, raw)
