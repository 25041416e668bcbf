"""Computes partitions beyond the publish range and compares them with accepted rows (Q10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import (
    SparkTables,
    aliased_key,
    key_aliases,
    quoted_column,
)
from lakehouse_backfill.adapters.spark.measuring.partition_sums import sum_partitions
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging import column_scope, merge
from lakehouse_backfill.adapters.spark.staging.compose import DeletedRowFilter
from lakehouse_backfill.adapters.spark.staging.transform import TransformRunner
from lakehouse_backfill.core.planning.target import catch_up, publish_modes
from lakehouse_backfill.domain.checks import EdgePartition, EdgeSide
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Contract, Measure
from lakehouse_backfill.domain.partitions import Scope, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan, declared_schema_change

_ACCEPTED = "accepted"
_LABEL, _HASH = "lhb_label", "lhb_hash"
_OLD, _NEW, _SAME = "lhb_old", "lhb_new", "lhb_same"
_COUNTS = _ADDED, _REMOVED, _CHANGED = "lhb_added", "lhb_removed", "lhb_changed"
_SIDE, _COUNT = "lhb_side", "lhb_count"
RowChanges = dict[str, tuple[int, int, int]]
#: Reads the accepted and the staged rows of the run's own partitions.
InsideRows = Callable[[], tuple["DataFrame", "DataFrame"]]


@dataclass(frozen=True)
class OneSided:
    """Rows that one side of an edge alone has: their number and amounts by label and side.

    `known`: only rows that moved across the edge are counted; else all of them are.
    """

    rows: Mapping[tuple[str, str], tuple[int, tuple[int, ...]]]
    known: bool

    def moved(self, label: str, side: str) -> int | None:
        """Return how many rows of the side moved across the edge; None when nothing tells."""
        return self.rows.get((label, side), (0, ()))[0] if self.known else None

    def amounts(self, label: str, side: str, contract: Contract) -> dict[str, int]:
        """Return the amount of each measure in these rows."""
        none = (0,) * len(contract.measures)
        amounts = self.rows.get((label, side), (0, none))[1]
        return {m.name: amount for m, amount in zip(contract.measures, amounts, strict=True)}


@dataclass(frozen=True)
class Edge:
    """The partitions beyond one side of the scope, and the rows that the run computes for them."""

    side: EdgeSide
    scope: Scope
    computed: DataFrame


class EdgeComputer:
    """Computes partitions beyond the scope of a run; writes nothing."""

    def __init__(
        self,
        tables: SparkTables,
        runner: TransformRunner,
        deleted_rows: DeletedRowFilter,
        calling_code: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Use `calling_code` around calls of the job's code: one thread at a time may make them."""
        self._tables, self._runner, self._filter = tables, runner, deleted_rows
        self._calling_code = calling_code

    def compare(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> tuple[EdgePartition, ...]:
        """Compute partitions beyond the scope and compare them with the target's base.

        All sides are compared together, but each is computed from its own input: input between the
        sides is not read.
        """
        scopes = _scopes(plan, around)
        if not scopes:
            return ()
        labels = tuple(label for scope in scopes.values() for label in scope.partitions)
        field = plan.resolved.scope.field
        accepted = self._accepted_rows(plan, Scope(field=field, partitions=labels))
        added_columns = column_scope.columns_of_no_base_row(plan, accepted)
        target = self._tables.schema(plan.shadow_table) if added_columns else accepted.schema

        def inside_rows() -> tuple[DataFrame, DataFrame]:
            own = plan.resolved.scope
            staged = self._tables.read_scope(plan.shadow_table, None, own)
            return self._accepted_rows(plan, own), _rows_in_predicate(plan, staged)

        with spark_errors("checking the edges"):
            compared = partial(column_scope.compared_rows, plan, added_columns)
            accepted = compared(accepted)
            edges = [
                Edge(side, scope, compared(self._computed_rows(plan, scope, target)))
                for side, scope in scopes.items()
            ]
            contract = column_scope.contract_of_edges(plan, accepted)
            return compare_edges(accepted, edges, contract, inside_rows)

    def checksums(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> dict[str, Checksum]:
        """Compute partitions beyond the scope, return their checksums; empty ones are omitted."""
        scopes, base = _scopes(plan, around), plan.resolved.target
        target = self._tables.schema(base.table, base.snapshot_id)
        with spark_errors("checking the edges"):
            with self._calling_code():
                computed = {
                    str(side): self._computed_rows(plan, scopes[side], target) for side in scopes
                }
            sums = sum_partitions(computed, plan.resolved.scope.field)
        return {
            label: checksum for side in sums.values() for label, checksum in side.checksums.items()
        }

    def _accepted_rows(self, plan: Plan, scope: Scope) -> DataFrame:
        base = plan.resolved.target
        if base.snapshot_id is None:
            return self._tables.empty_frame(self._tables.schema(plan.shadow_table))
        read = self._tables.read_scope(base.table, base.snapshot_id, scope)
        rows = dataframes.apply_schema_change(
            _rows_in_predicate(plan, read), declared_schema_change(plan)
        )
        return self._filter.drop_excluded(rows, catch_up.excluded_rows(plan.resolved))

    def _computed_rows(self, plan: Plan, scope: Scope, target: StructType) -> DataFrame:
        sources = plan.resolved.sources
        rows = _rows_in_predicate(
            plan, self._runner.compute_partitions(plan, scope, target, sources)
        )
        if publish_modes.restates_columns(plan):
            return column_scope.keep_rows_of(self._accepted_rows(plan, scope), rows, plan)
        return self._filter.drop_excluded(rows, catch_up.excluded_rows(plan.resolved))


def _rows_in_predicate(plan: Plan, frame: DataFrame) -> DataFrame:
    """Keep the rows that match the run's row predicate; all rows when it has none."""
    predicate = merge.typed_row_predicate(plan, frame.schema)
    return frame if predicate is None else frame.where(merge.matches_predicate(predicate))


def _scopes(plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]) -> dict[EdgeSide, Scope]:
    field = plan.resolved.scope.field
    return {
        side: Scope(field=field, partitions=labels) for side, labels in around.items() if labels
    }


def compare_edges(
    accepted: DataFrame, found: Sequence[Edge], contract: Contract, inside: InsideRows
) -> tuple[EdgePartition, ...]:
    """Compare by key; return one result per partition, in the order of the edges and their scopes.

    `accepted` holds the accepted rows of all partitions. One job computes all checksums. Partitions
    with equal checksums are equal and are not compared by key; this is the usual case. `inside` is
    only called when rows are added or removed beyond an edge. An accepted row that is computed in
    the run's partitions instead would be counted twice after publication; a row of the run's
    partitions that is computed beyond the edge instead would be lost.
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
        differences = _edge_differences(accepted, edge, contract, differing, inside)
        results += _edge_partitions(edge, *differences, contract)
    return tuple(results)


def _edge_differences(
    accepted: DataFrame,
    edge: Edge,
    contract: Contract,
    labels: tuple[str, ...],
    inside: InsideRows,
) -> tuple[RowChanges, OneSided]:
    nothing = OneSided({}, known=bool(_identity_names(contract.key, edge.scope)))
    if not labels:
        return {}, nothing
    scope = Scope(field=edge.scope.field, partitions=labels)
    where = dataframes.is_in_ranges(scope_row_ranges(scope))
    old, new = accepted.where(where), edge.computed.where(where)
    rows = _row_differences(old, new, contract.key, scope)
    if not any(added or removed for added, removed, _ in rows.values()):
        return rows, nothing
    return rows, _one_sided_rows(old, new, contract, scope, inside)


def _edge_partitions(
    edge: Edge, rows: RowChanges, one_sided: OneSided, contract: Contract
) -> list[EdgePartition]:
    results = []
    for label in edge.scope.partitions:
        added, removed, changed = rows.get(label, (0, 0, 0))
        results.append(
            EdgePartition(
                partition=label,
                side=edge.side,
                added=added,
                removed=removed,
                changed=changed,
                moved_in=one_sided.moved(label, _OLD),
                moved_out=one_sided.moved(label, _NEW),
                counted_twice=one_sided.amounts(label, _OLD, contract),
                lost=one_sided.amounts(label, _NEW, contract),
            )
        )
    return results


def _row_differences(
    accepted: DataFrame, computed: DataFrame, key: tuple[str, ...], scope: Scope
) -> RowChanges:
    sides = [
        frame.select(
            dataframes.raw_label(scope.field).alias(_LABEL),
            *aliased_key(key),
            row_hash.row_hash_column(frame.schema).alias(_HASH),
        )
        for frame in (accepted, computed)
    ]
    totals = [F.sum(name).alias(name) for name in _COUNTS]
    counted = _count_changes(sides[0], sides[1], key).groupBy(_LABEL).agg(*totals).collect()
    return {
        dataframes.format_label(scope.field, label): (added, removed, changed)
        for label, added, removed, changed in counted
    }


def _count_changes(old: DataFrame, new: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return added, removed and changed rows by partition and key, or by row without a key.

    Only partition, key and one 64-bit hash of each row are shuffled. Rows of a key that a side
    holds more than once are compared as a multiset, and are added or removed, never changed.
    """
    by_key = [_LABEL, *key_aliases(key)]
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


def _one_sided_rows(
    old: DataFrame, new: DataFrame, contract: Contract, scope: Scope, inside: InsideRows
) -> OneSided:
    """Count the rows that one side alone has, with their measures, per label and side.

    With a key beyond the partition column, a row that the other side of the edge gained has moved
    there, and only such rows are counted. Without one, all rows are, and `known` is False.
    """
    names = key_aliases(contract.key)
    identity = _identity_names(contract.key, scope)
    sides = [_keyed_measures(frame, contract, scope) for frame in (old, new)]
    here = [_LABEL, *(names or [_HASH])]
    gone, come = (_joined(a, b, here, "left_anti") for a, b in (sides, sides[::-1]))
    if identity:
        accepted, staged = (frame.select(*aliased_key(contract.key)) for frame in inside())
        gone = _joined(gone, _joined(staged, accepted, names, "left_anti"), identity, "left_semi")
        come = _joined(come, _joined(accepted, staged, names, "left_anti"), identity, "left_semi")
    measures = [f"lhb_measure_{place}" for place in range(len(contract.measures))]
    totals = (
        gone.withColumn(_SIDE, F.lit(_OLD))
        .unionByName(come.withColumn(_SIDE, F.lit(_NEW)))
        .groupBy(_LABEL, _SIDE)
        .agg(F.count("*").alias(_COUNT), *(F.sum(name).alias(name) for name in measures))
    )
    found = {
        (dataframes.format_label(scope.field, row[_LABEL]), row[_SIDE]): (
            row[_COUNT],
            tuple(_rounded_up(row[name]) for name in measures),
        )
        for row in totals.collect()
    }
    return OneSided(found, known=bool(identity))


def _joined(left: DataFrame, right: DataFrame, names: Sequence[str], how: str) -> DataFrame:
    """Keep the rows of `left` with (`left_semi`) or without (`left_anti`) an equal row."""
    others = [f"{name}_other" for name in names]
    renamed = right.select(*(F.col(name).alias(f"{name}_other") for name in names))
    return left.join(renamed, dataframes.is_same(names, others), how)


def _identity_names(key: tuple[str, ...], scope: Scope) -> list[str]:
    """Return the short names of the key's columns but for the one that decides the partition."""
    names = zip(key, key_aliases(key), strict=True)
    return [short for name, short in names if name != scope.field.column]


def _keyed_measures(frame: DataFrame, contract: Contract, scope: Scope) -> DataFrame:
    """Return per row its label, key, and contribution to each measure; without a key, its hash."""
    values = [
        measure_contribution(measure).alias(f"lhb_measure_{place}")
        for place, measure in enumerate(contract.measures)
    ]
    label = dataframes.raw_label(scope.field).alias(_LABEL)
    key = aliased_key(contract.key) or [row_hash.row_hash_column(frame.schema).alias(_HASH)]
    return frame.select(label, *key, *values)


def measure_contribution(measure: Measure) -> Column:
    """Build a column with the amount that one row adds to the measure; null adds 0."""
    if measure.sum is not None:
        return F.coalesce(quoted_column(measure.sum), F.lit(0))
    if measure.counts_by is not None:
        return F.lit(1)  # Each row has one value.
    return F.when(quoted_column(measure.count or "").isNotNull(), F.lit(1)).otherwise(F.lit(0))


def _rounded_up(value: Any) -> int:
    """Round away from 0, so that an amount never becomes 0."""
    if value is None:
        return 0
    return int(math.ceil(value) if value > 0 else math.floor(value))
