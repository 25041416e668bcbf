"""Checksums of the partitions of a frame, in one pass over its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.model.checksum import Checksum
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.spark import labels, rowhash
from lakehouse_backfill.spark.names import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LABEL = "lhb_label"
_HASH = "lhb_hash"


def partition_checksums(
    frame: DataFrame, scope: Scope, ignore: tuple[str, ...] = ()
) -> dict[str, Checksum]:
    """Give the checksum of each partition by label; partitions without rows are left out."""
    shape = rowhash.shape(frame.schema, ignore)
    label = labels.raw_label(scope.field).alias(_LABEL)
    # Hashed before they are aggregated: else each aggregate carries the whole expression.
    rows = frame.select(label, rowhash.row_hash(frame.schema, ignore).alias(_HASH))
    found = rows.groupBy(_LABEL).agg(*rowhash.sums(column(_HASH))).collect()
    return {
        labels.label(scope.field, row[_LABEL]): rowhash.to_checksum(row.asDict(), shape)
        for row in found
    }
