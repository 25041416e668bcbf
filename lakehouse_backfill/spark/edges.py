"""Partitions beyond the publish range: what is accepted there against what is computed (Q10)."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, cast

from lakehouse_backfill.model.checks import EdgePartition
from lakehouse_backfill.model.contract import Contract, Measure
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.rules import partitions
from lakehouse_backfill.spark import comparing, filters, labels, rowhash
from lakehouse_backfill.spark.names import column
from lakehouse_backfill.spark.partition_sums import partition_checksums

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COUNTS = (comparing.ADDED, comparing.REMOVED, comparing.CHANGED)


def compare(
    accepted: DataFrame, computed: DataFrame, contract: Contract, scope: Scope, side: str
) -> tuple[EdgePartition, ...]:
    """Compare both by key, one result per partition of the scope, in its order.

    Partitions whose checksums agree are equal and need no comparison by key, which is the usual
    case. Of a declared measure, what is accepted here but not computed here any more would be
    counted twice once the range is published; what is computed but not accepted would be lost.
    """
    differing = _differing(accepted, computed, scope)
    rows: dict[str, tuple[int, int, int]] = {}
    moved: dict[tuple[str, str], tuple[int, int]] = {}
    if differing is not None:
        where = filters.inside(partitions.ranges(differing))
        old, new = accepted.where(where), computed.where(where)
        rows = _row_differences(old, new, contract.key, differing)
        moved = _measure_differences(old, new, contract, differing)
    return tuple(
        EdgePartition(
            partition=label,
            side=cast('Literal["before", "inside", "after"]', side),
            added=rows.get(label, (0, 0, 0))[0],
            removed=rows.get(label, (0, 0, 0))[1],
            changed=rows.get(label, (0, 0, 0))[2],
            counted_twice={
                m.name: moved.get((label, m.name), (0, 0))[0] for m in contract.measures
            },
            lost={m.name: moved.get((label, m.name), (0, 0))[1] for m in contract.measures},
        )
        for label in scope.partitions
    )


def _differing(accepted: DataFrame, computed: DataFrame, scope: Scope) -> Scope | None:
    old, new = partition_checksums(accepted, scope), partition_checksums(computed, scope)
    labels_left = tuple(label for label in scope.partitions if old.get(label) != new.get(label))
    return Scope(field=scope.field, partitions=labels_left) if labels_left else None


def _row_differences(
    accepted: DataFrame, computed: DataFrame, key: tuple[str, ...], scope: Scope
) -> dict[str, tuple[int, int, int]]:
    from pyspark.sql import functions as F

    label = labels.raw_label(scope.field)
    sides = [
        comparing.narrow(frame, label, key, rowhash.row_hash(frame.schema))
        for frame in (accepted, computed)
    ]
    found = (
        comparing.compared(sides[0], sides[1], key)
        .groupBy(comparing.LABEL)
        .agg(*(F.sum(name).alias(name) for name in _COUNTS))
        .collect()
    )
    return {
        labels.label(scope.field, row[comparing.LABEL]): (
            row[comparing.ADDED],
            row[comparing.REMOVED],
            row[comparing.CHANGED],
        )
        for row in found
    }


def _measure_differences(
    accepted: DataFrame, computed: DataFrame, contract: Contract, scope: Scope
) -> dict[tuple[str, str], tuple[int, int]]:
    """Give (counted twice, lost) per partition label and measure."""
    from pyspark.sql import functions as F

    if not contract.measures:
        return {}
    keys = [comparing.LABEL, *comparing.key_names(contract.key)]
    sides = [
        _measured(frame, sign, contract, scope) for frame, sign in ((accepted, 1), (computed, -1))
    ]
    by_key = sides[0].unionByName(sides[1]).groupBy(*keys)
    names = [f"lhb_measure_{place}" for place in range(len(contract.measures))]
    surplus = by_key.agg(*(F.sum(name).alias(name) for name in names))
    found = surplus.groupBy(comparing.LABEL).agg(
        *(F.sum(F.greatest(F.col(name), F.lit(0))).alias(f"{name}_twice") for name in names),
        *(F.sum(F.greatest(-F.col(name), F.lit(0))).alias(f"{name}_lost") for name in names),
    )
    return {
        (labels.label(scope.field, row[comparing.LABEL]), measure.name): (
            _whole(row[f"{name}_twice"]),
            _whole(row[f"{name}_lost"]),
        )
        for row in found.collect()
        for name, measure in zip(names, contract.measures, strict=True)
    }


def _measured(frame: DataFrame, sign: int, contract: Contract, scope: Scope) -> DataFrame:
    """Give label, key, and each measure's contribution of the row, signed by side."""
    values = [
        (measure_value(measure) * sign).alias(f"lhb_measure_{place}")
        for place, measure in enumerate(contract.measures)
    ]
    named = [
        column(name).alias(short)
        for name, short in zip(contract.key, comparing.key_names(contract.key), strict=True)
    ]
    return frame.select(labels.raw_label(scope.field).alias(comparing.LABEL), *named, *values)


def measure_value(measure: Measure) -> Column:
    """Give what one row adds to the measure; null adds nothing."""
    from pyspark.sql import functions as F

    if measure.sum is not None:
        return F.coalesce(column(measure.sum), F.lit(0))
    return F.when(column(measure.count or "").isNotNull(), F.lit(1)).otherwise(F.lit(0))


def _whole(value: Any) -> int:
    """Round up, so that no difference is ever shown as none."""
    if value is None:
        return 0
    return math.ceil(value) if isinstance(value, (float, Decimal)) else int(value)
