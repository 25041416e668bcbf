"""Counts rows of pinned inputs and of single chunks: the Inspecting port.

Counts with Spark the rows that break rules: one aggregate, and one for each unique column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import (
    SparkTables,
    aliased_key,
    key_aliases,
    quoted_column,
)
from lakehouse_backfill.adapters.spark.pinned_inputs import PinnedInputs, find_pin
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.domain.checks import (
    Greater,
    Matches,
    NotNull,
    OneOf,
    RowRule,
    Unique,
    Within,
)
from lakehouse_backfill.domain.partitions import Chunk, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkFacts, Period
from lakehouse_backfill.errors import ConfigError, NotFound

_LABEL, _ROWS, _TWICE, _NULLS = "lhb_label", "lhb_rows", "lhb_twice", "lhb_nulls_"


class SparkInspecting:
    """Aggregates about many rows; nothing large is collected or cached."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables
        self._inputs = PinnedInputs(tables)

    def periods(self, plan: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Return the labels of hours, days or months with a row, in the part that the run reads.

        The cost is one aggregate over one column. Raises NotFound for an input without a range,
        ConfigError for hours of a date column.
        """
        pin = find_pin(plan, name)
        if pin.range is None:
            raise NotFound(f"{name} is read whole: it has no range that could have gaps")
        frame = self._inputs.read_for_scope(pin, plan.resolved.scope)
        kind = dataframes.iceberg_type(frame.schema, pin.range.column)
        if kind == "date" and unit == "hour":
            raise ConfigError(
                f"sources.{name}.complete is hour, but {pin.range.column} holds dates",
                fix="write day or month",
            )
        field = ScopeField.model_validate(
            {"column": pin.range.column, "transform": unit, "type": kind}
        )
        with spark_errors(f"looking for gaps in {name}"):
            labels = frame.select(dataframes.raw_label(field).alias(_LABEL)).distinct().collect()
        return tuple(sorted(dataframes.format_label(field, row[_LABEL]) for row in labels))

    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...] = ()
    ) -> ChunkFacts:
        """Count a chunk's rows in the shadow, null keys, duplicate keys, and broken rules.

        Only key columns are read, in one pass when the key contains the partition column; and those
        of the rules, in another.
        """
        field = plan.resolved.scope.field
        frame = self._tables.read_chunk(plan, chunk, snapshot_id)
        key = plan.resolved.contract.key
        with spark_errors(f"checking chunk {chunk.chunk_id}"):
            if not key or field.column in key:
                by_partition = _key_facts_by_partition(frame, field, key)
                duplicates = sum(row[_TWICE] for row in by_partition)
            else:
                by_partition = _key_facts_by_partition(frame, field, key, keys_lie_inside=False)
                duplicates = _duplicates(frame, key)
        nulls = {
            name: sum(row[f"{_NULLS}{at}"] for row in by_partition) for at, name in enumerate(key)
        }
        return ChunkFacts(
            rows={dataframes.format_label(field, row[_LABEL]): row[_ROWS] for row in by_partition},
            null_keys={name: count for name, count in nulls.items() if count},
            duplicate_keys=duplicates,
            broken=self.broken(plan, chunk, snapshot_id, rules),
        )

    def broken(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...]
    ) -> tuple[int, ...]:
        """Count the rows of a chunk in the shadow that break each rule."""
        if not rules:
            return ()
        frame = self._tables.read_chunk(plan, chunk, snapshot_id)
        with spark_errors(f"checking chunk {chunk.chunk_id}"):
            return count_rows_breaking(frame, rules)[1]

    def breaking(self, frame: DataFrame, rules: tuple[RowRule, ...]) -> tuple[int, tuple[int, ...]]:
        """Count the rows of a frame, and those that break each of the rules."""
        with spark_errors("counting what the suites say of rows"):
            return count_rows_breaking(frame, rules)


def _key_facts_by_partition(
    frame: DataFrame, field: ScopeField, key: tuple[str, ...], *, keys_lie_inside: bool = True
) -> list[Any]:
    """Return one row per partition: its rows, nulls by key column, duplicate keys.

    With `keys_lie_inside`, no key spans two partitions: the rows are counted by key first, and
    duplicates are exact.
    """
    rows = frame.select(dataframes.raw_label(field).alias(_LABEL), *aliased_key(key))
    count = F.lit(1)
    if keys_lie_inside and key:
        rows = rows.groupBy(*rows.columns).agg(F.count(F.lit(1)).alias(_ROWS))
        count = quoted_column(_ROWS)
    nulls = [
        F.sum(F.when(quoted_column(alias).isNull(), count).otherwise(0)).alias(f"{_NULLS}{at}")
        for at, alias in enumerate(key_aliases(key))
    ]
    duplicates = F.sum(F.when(count > 1, 1).otherwise(0)).alias(_TWICE)
    return rows.groupBy(_LABEL).agg(F.sum(count).alias(_ROWS), duplicates, *nulls).collect()


def _duplicates(frame: DataFrame, key: tuple[str, ...]) -> int:
    counted = frame.groupBy(*(quoted_column(name) for name in key)).agg(
        F.count(F.lit(1)).alias(_ROWS)
    )
    return int(counted.where(quoted_column(_ROWS) > 1).count())


_RULE_ROWS, _VALUES = "lhb_rows", "lhb_values"


def count_rows_breaking(frame: DataFrame, rules: Sequence[RowRule]) -> tuple[int, tuple[int, ...]]:
    """Return the number of rows, and for each rule how many rows break it."""
    simple = [rule for rule in rules if not isinstance(rule, Unique)]
    counts = [
        F.count_if(~_condition(rule)).alias(f"lhb_broken_{at}") for at, rule in enumerate(simple)
    ]
    found = frame.agg(F.count(F.lit(1)).alias(_RULE_ROWS), *counts).collect()[0]
    broken: dict[RowRule, int] = {rule: int(found[at]) for at, rule in enumerate(simple, start=1)}
    for rule in rules:
        if isinstance(rule, Unique) and rule not in broken:
            broken[rule] = _count_repeated(frame, rule.column)
    return int(found[_RULE_ROWS]), tuple(broken[rule] for rule in rules)


def _condition(rule: RowRule) -> Column:
    """Return what the rows meet; null where the rule says nothing."""
    value = quoted_column(rule.column)
    match rule:
        case NotNull():
            return value.isNotNull()
        case OneOf():
            found = value.isin(list(rule.values))
            return ~found if rule.is_excluded else found
        case Matches():
            found = value.rlike(rule.pattern)
            return ~found if rule.is_excluded else found
        case Greater():
            other = quoted_column(rule.other)
            return value >= other if rule.or_equal else value > other
        case Within():
            return _within(F.length(value) if rule.of_length else value, rule)
        case _:
            raise TypeError(f"no condition of single rows: {rule}")


def _within(value: Column, rule: Within) -> Column:
    conditions = []
    if rule.low is not None:
        low = F.lit(rule.low)
        conditions.append(value > low if rule.is_low_excluded else value >= low)
    if rule.high is not None:
        high = F.lit(rule.high)
        conditions.append(value < high if rule.is_high_excluded else value <= high)
    return reduce(and_, conditions)


def _count_repeated(frame: DataFrame, column: str) -> int:
    value = quoted_column(column)
    by_value = frame.where(value.isNotNull()).groupBy(value.alias(_VALUES))
    counts = by_value.agg(F.count(F.lit(1)).alias(_RULE_ROWS)).where(quoted_column(_RULE_ROWS) > 1)
    return int(counts.agg(F.sum(_RULE_ROWS)).collect()[0][0] or 0)
