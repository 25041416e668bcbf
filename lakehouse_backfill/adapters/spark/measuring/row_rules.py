"""Counts with Spark the rows that break rules: one aggregate, and one for each unique column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.domain.quality.row_rules import (
    Greater,
    Matches,
    NotNull,
    OneOf,
    RowRule,
    Unique,
    Within,
)

_ROWS, _VALUES = "lhb_rows", "lhb_values"


def count_rows_breaking(frame: DataFrame, rules: Sequence[RowRule]) -> tuple[int, tuple[int, ...]]:
    """Return the number of rows, and for each rule how many rows break it."""
    simple = [rule for rule in rules if not isinstance(rule, Unique)]
    counts = [
        F.count_if(~_condition(rule)).alias(f"lhb_broken_{at}") for at, rule in enumerate(simple)
    ]
    found = frame.agg(F.count(F.lit(1)).alias(_ROWS), *counts).collect()[0]
    broken: dict[RowRule, int] = {rule: int(found[at]) for at, rule in enumerate(simple, start=1)}
    for rule in rules:
        if isinstance(rule, Unique) and rule not in broken:
            broken[rule] = _count_repeated(frame, rule.column)
    return int(found[_ROWS]), tuple(broken[rule] for rule in rules)


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
    counts = by_value.agg(F.count(F.lit(1)).alias(_ROWS)).where(quoted_column(_ROWS) > 1)
    return int(counts.agg(F.sum(_ROWS)).collect()[0][0] or 0)
