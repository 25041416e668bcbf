"""Partition labels of rows, computed where the rows are."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from lakehouse_backfill.model.scope import NULL_LABEL, ScopeField
from lakehouse_backfill.rules.partitions import label_of
from lakehouse_backfill.spark.names import column

if TYPE_CHECKING:
    from pyspark.sql import Column

_FORMATS = {"hour": "yyyy-MM-dd'T'HH", "day": "yyyy-MM-dd", "month": "yyyy-MM", "year": "yyyy"}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def raw_label(field: ScopeField) -> Column:
    """Give a text for each row that `label` turns into its partition's label; null for null.

    Days and hours are UTC: the session's time zone is.
    """
    from pyspark.sql import functions as F

    value = column(field.column)
    if field.type in ("timestamp", "timestamptz") and field.transform == "identity":
        return F.unix_micros(value.cast("timestamp")).cast("string")
    if field.transform == "identity":
        return value.cast("string")
    return F.date_format(value.cast("timestamp"), _FORMATS[field.transform])


def label(field: ScopeField, raw: str | None) -> str:
    """Give the partition's label for what `raw_label` gave."""
    if raw is None:
        return NULL_LABEL
    if field.type == "string":
        return label_of(field, raw)
    if field.type in ("timestamp", "timestamptz") and field.transform == "identity":
        moment = _EPOCH + timedelta(microseconds=int(raw))
        return label_of(field, moment.replace(tzinfo=None) if field.type == "timestamp" else moment)
    return raw
