"""Compares accepted and computed rows of partitions beyond the publish range (Q10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.adapters.spark.measuring.partition_sums import sum_partitions
from lakehouse_backfill.adapters.spark.session.write_guard import run_concurrently
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import EdgePartition, EdgeSide
from lakehouse_backfill.domain.contract import Contract, Measure
from lakehouse_backfill.domain.partitions import Scope

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ACCEPTED = "accepted"
_LABEL, _HASH = "lhb_label", "lhb_hash"
_OLD, _NEW, _SAME = "lhb_old", "lhb_new", "lhb_same"
_COUNTS = _ADDED, _REMOVED, _CHANGED = "lhb_added", "lhb_removed", "lhb_changed"
RowChanges = dict[str, tuple[int, int, int]]
MeasureShifts = dict[tuple[str, str], tuple[int, int]]


@dataclass(frozen=True)
class Edge:
    """The partitions beyond one side of the scope, and the rows that the run computes for them."""

    side: EdgeSide
    scope: Scope
    computed: DataFrame


def compare_edges(
    accepted: DataFrame, found: Sequence[Edge], contract: Contract
) -> tuple[EdgePartition, ...]:
    """Compare by key; return one result per partition, in the order of the edges and their scopes.

    `accepted` holds the accepted rows of all partitions. One job computes all checksums. Partitions
    with equal checksums are equal and are not compared by key; this is the usual case. For a
    declared measure, an amount that is accepted but no longer computed there would be counted twice
    after the range is published; an amount that is computed but not accepted would be lost.
    """
    if not found:
        return ()
    frames: dict[str, DataFrame] = {_ACCEPTED: accepted}
    frames.update({edge.side: edge.computed for edge in found})
    sums = sum_partitions(frames, found[0].scope.field)
    old = sums[_ACCEPTED].checksums
    results: list[EdgePartition] = []
    for edge in found:
        new = sums[edge.side].checksums
        differing = tuple(each for each in edge.scope.partitions if old.get(each) != new.get(each))
        results += _edge_partitions(
            edge, *_edge_differences(accepted, edge, contract, differing), contract
        )
    return tuple(results)


def _edge_differences(
    accepted: DataFrame, edge: Edge, contract: Contract, labels: tuple[str, ...]
) -> tuple[RowChanges, MeasureShifts]:
    if not labels:
        return {}, {}
    scope = Scope(field=edge.scope.field, partitions=labels)
    where = dataframes.is_in_ranges(partitions.scope_row_ranges(scope))
    old, new = accepted.where(where), edge.computed.where(where)
    with run_concurrently(lambda: _measure_differences(old, new, contract, scope)) as measuring:
        rows = _row_differences(old, new, contract.key, scope)
    return rows, measuring.result()


def _edge_partitions(
    edge: Edge, rows: RowChanges, moved: MeasureShifts, contract: Contract
) -> list[EdgePartition]:
    none = (0, 0, 0)
    return [
        EdgePartition(
            partition=label,
            side=edge.side,
            added=rows.get(label, none)[0],
            removed=rows.get(label, none)[1],
            changed=rows.get(label, none)[2],
            counted_twice={
                m.name: moved.get((label, m.name), (0, 0))[0] for m in contract.measures
            },
            lost={m.name: moved.get((label, m.name), (0, 0))[1] for m in contract.measures},
        )
        for label in edge.scope.partitions
    ]


def _row_differences(
    accepted: DataFrame, computed: DataFrame, key: tuple[str, ...], scope: Scope
) -> RowChanges:
    from pyspark.sql import functions as F

    sides = [
        frame.select(
            dataframes.raw_label(scope.field).alias(_LABEL),
            *_short_keys(key),
            row_hash.row_hash_column(frame.schema).alias(_HASH),
        )
        for frame in (accepted, computed)
    ]
    counted = (
        _count_changes(sides[0], sides[1], key)
        .groupBy(_LABEL)
        .agg(*(F.sum(name).alias(name) for name in _COUNTS))
        .collect()
    )
    return {
        dataframes.format_label(scope.field, row[_LABEL]): (
            row[_ADDED],
            row[_REMOVED],
            row[_CHANGED],
        )
        for row in counted
    }


def _count_changes(old: DataFrame, new: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return added, removed and changed rows by partition and key, or by row without a key.

    Only partition, key and one 64-bit hash of each row are shuffled. Rows of a key that a side
    holds more than once are compared as a multiset, and are added or removed, never changed.
    """
    from pyspark.sql import functions as F

    by_key = [_LABEL, *_key_names(key)]
    one, none = F.lit(1).cast("bigint"), F.lit(0).cast("bigint")
    rows = old.select("*", one.alias(_OLD), none.alias(_NEW)).unionByName(
        new.select("*", none.alias(_OLD), one.alias(_NEW))
    )
    if key:  # So that grouping by key afterwards moves no row again.
        rows = rows.repartition(*by_key)
    rows = rows.groupBy(*by_key, _HASH).agg(F.sum(_OLD).alias(_OLD), F.sum(_NEW).alias(_NEW))
    rows = rows.withColumn(_SAME, F.least(_OLD, _NEW))
    changed = none
    if key:
        rows = rows.groupBy(*by_key).agg(*(F.sum(n).alias(n) for n in (_OLD, _NEW, _SAME)))
        is_unique = (F.col(_OLD) <= 1) & (F.col(_NEW) <= 1)
        only = F.least(F.col(_OLD) - F.col(_SAME), F.col(_NEW) - F.col(_SAME))
        changed = F.when(is_unique, only).otherwise(none)
    return rows.select(
        _LABEL,
        (F.col(_NEW) - F.col(_SAME) - changed).alias(_ADDED),
        (F.col(_OLD) - F.col(_SAME) - changed).alias(_REMOVED),
        changed.alias(_CHANGED),
    )


def _key_names(key: tuple[str, ...]) -> list[str]:
    return [f"lhb_key_{place}" for place in range(len(key))]


def _short_keys(key: tuple[str, ...]) -> list[Column]:
    """Return the key's columns under names that need no quoting."""
    return [
        quoted_column(name).alias(short) for name, short in zip(key, _key_names(key), strict=True)
    ]


def _measure_differences(
    accepted: DataFrame, computed: DataFrame, contract: Contract, scope: Scope
) -> MeasureShifts:
    """Return (counted twice, lost) per partition label and measure."""
    from pyspark.sql import functions as F

    if not contract.measures:
        return {}
    keys = [_LABEL, *_key_names(contract.key)]
    sides = [
        _signed_measures(frame, sign, contract, scope)
        for frame, sign in ((accepted, 1), (computed, -1))
    ]
    by_key = sides[0].unionByName(sides[1]).groupBy(*keys)
    names = [f"lhb_measure_{place}" for place in range(len(contract.measures))]
    surplus = by_key.agg(*(F.sum(name).alias(name) for name in names))
    totals = surplus.groupBy(_LABEL).agg(
        *(F.sum(F.greatest(F.col(name), F.lit(0))).alias(f"{name}_twice") for name in names),
        *(F.sum(F.greatest(-F.col(name), F.lit(0))).alias(f"{name}_lost") for name in names),
    )
    return {
        (dataframes.format_label(scope.field, row[_LABEL]), measure.name): (
            _rounded_up(row[f"{name}_twice"]),
            _rounded_up(row[f"{name}_lost"]),
        )
        for row in totals.collect()
        for name, measure in zip(names, contract.measures, strict=True)
    }


def _signed_measures(frame: DataFrame, sign: int, contract: Contract, scope: Scope) -> DataFrame:
    """Return per row its label, key, and contribution to each measure, signed by side."""
    values = [
        (measure_contribution(measure) * sign).alias(f"lhb_measure_{place}")
        for place, measure in enumerate(contract.measures)
    ]
    label = dataframes.raw_label(scope.field).alias(_LABEL)
    return frame.select(label, *_short_keys(contract.key), *values)


def measure_contribution(measure: Measure) -> Column:
    """Build a column with the amount that one row adds to the measure; null adds 0."""
    from pyspark.sql import functions as F

    if measure.sum is not None:
        return F.coalesce(quoted_column(measure.sum), F.lit(0))
    if measure.counts_by is not None:
        return F.lit(1)  # Each row has one value.
    return F.when(quoted_column(measure.count or "").isNotNull(), F.lit(1)).otherwise(F.lit(0))


def _rounded_up(value: Any) -> int:
    """Round up, so that a difference never becomes 0."""
    if value is None:
        return 0
    return math.ceil(value) if isinstance(value, (float, Decimal)) else int(value)
