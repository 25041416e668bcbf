"""Checksums and sums of the partitions of frames, in one pass over the rows of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.model.checksum import Checksum
from lakehouse_backfill.model.contract import Measure
from lakehouse_backfill.model.scope import ScopeField
from lakehouse_backfill.spark import labels, rowhash
from lakehouse_backfill.spark.names import column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SIDE = "lhb_side"
_LABEL = "lhb_label"
_HASH = "lhb_hash"
_VALUE = "lhb_value_"


@dataclass(frozen=True)
class Sums:
    """What one frame holds: by label the checksum, and the measures in the order asked for.

    Partitions without rows are left out.
    """

    checksums: dict[str, Checksum] = field(default_factory=dict)
    measures: dict[str, tuple[Any, ...]] = field(default_factory=dict)


def partition_sums(
    frames: Mapping[str, DataFrame],
    by: ScopeField,
    ignore: Sequence[str] = (),
    measures: Sequence[Measure] = (),
) -> dict[str, Sums]:
    """Give checksums and measures by partition, of each named frame, in one job.

    `ignore` names columns that take no part in checksums. A column that a frame lacks has no value
    in it.
    """
    if not frames:
        return {}
    shapes = {name: rowhash.shape(frame.schema, ignore) for name, frame in frames.items()}
    narrow = [_narrow(name, frame, by, ignore, measures) for name, frame in frames.items()]
    rows = reduce(lambda one, other: one.unionAll(other), narrow)
    sums = [_sum(measure, at) for at, measure in enumerate(measures)]
    grouped = rows.groupBy(_SIDE, _LABEL).agg(*rowhash.sums(column(_HASH)), *sums)
    found = {name: Sums() for name in frames}
    for row in grouped.collect():
        one, label = found[row[_SIDE]], labels.label(by, row[_LABEL])
        one.checksums[label] = rowhash.to_checksum(row.asDict(), shapes[row[_SIDE]])
        one.measures[label] = tuple(row[f"{_VALUE}{at}"] for at in range(len(measures)))
    return found


def _narrow(
    name: str, frame: DataFrame, by: ScopeField, ignore: Sequence[str], measures: Sequence[Measure]
) -> DataFrame:
    """Reduce rows to what is grouped: hashed here, or each aggregate would carry the hash."""
    from pyspark.sql import functions as F

    values = [_value(frame, each).alias(f"{_VALUE}{at}") for at, each in enumerate(measures)]
    hashed = rowhash.row_hash(frame.schema, ignore).alias(_HASH)
    return frame.select(
        F.lit(name).alias(_SIDE), labels.raw_label(by).alias(_LABEL), hashed, *values
    )


def _value(frame: DataFrame, measure: Measure) -> Column:
    from pyspark.sql import functions as F

    name = measure.sum or measure.count or ""
    value = column(name) if name in frame.columns else F.lit(None)
    return value if measure.sum else value.isNotNull()


def _sum(measure: Measure, at: int) -> Column:
    from pyspark.sql import functions as F

    value = column(f"{_VALUE}{at}")
    return (F.sum(value) if measure.sum else F.count_if(value)).alias(f"{_VALUE}{at}")
