"""Old against new by key and row hash: what the diff and the edge check share.

Wide rows are never shuffled: only partition, key and one 64-bit hash. Rows of a key that stands
more than once are compared as a multiset inside the key, so that a join never multiplies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.names import quote_identifier, quoted_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LABEL = "lhb_label"
HASH = "lhb_hash"
OLD, NEW = "lhb_old", "lhb_new"
_SAME = "lhb_same"
ADDED, REMOVED, CHANGED, UNCHANGED = "lhb_added", "lhb_removed", "lhb_changed", "lhb_unchanged"
_KEY = "lhb_key_"


def key_names(key: Sequence[object]) -> list[str]:
    """Give the names under which the key's columns stand in compared frames."""
    return [f"{_KEY}{place}" for place in range(len(key))]


def narrow(frame: DataFrame, label: Column, key: Sequence[str], hashed: Column) -> DataFrame:
    """Reduce rows to partition label, key and row hash."""
    named = [
        quoted_column(name).alias(short) for name, short in zip(key, key_names(key), strict=True)
    ]
    return frame.select(label.alias(LABEL), *named, hashed.alias(HASH))


def compared(old: DataFrame, new: DataFrame, key: Sequence[str]) -> DataFrame:
    """Give one row per partition and key (per distinct row without a key) with its four counts."""
    return classified(distinct_rows(old, new, key), key)


def classified(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Count per partition and key what `distinct_rows` gave.

    Columns: label, key, rows of each side, added, removed, changed, unchanged. Rows of a key that a
    side holds more than once are added or removed, never changed.
    """
    from pyspark.sql import functions as F

    alike = rows.withColumn(_SAME, F.least(OLD, NEW))
    if key:
        by_key = [LABEL, *key_names(key)]
        alike = alike.groupBy(*map(quoted_column, by_key)).agg(
            *(F.sum(name).alias(name) for name in (OLD, NEW, _SAME))
        )
    return _classified(alike, keyed=bool(key))


def distinct_rows(old: DataFrame, new: DataFrame, key: Sequence[str]) -> DataFrame:
    """Give each distinct row (label, key, hash) with how often each side holds it."""
    from pyspark.sql import functions as F

    sides = _sided(old, 1, 0).unionByName(_sided(new, 0, 1))
    by_key = [LABEL, *key_names(key)]
    # By key already, so that grouping by key afterwards moves no row again.
    rows = sides.repartition(*map(quoted_column, by_key)) if key else sides
    return rows.groupBy(*map(quoted_column, [*by_key, HASH])).agg(
        F.sum(OLD).alias(OLD), F.sum(NEW).alias(NEW)
    )


def _sided(frame: DataFrame, old: int, new: int) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.select(
        "*", F.lit(old).cast("bigint").alias(OLD), F.lit(new).cast("bigint").alias(NEW)
    )


def _classified(alike: DataFrame, *, keyed: bool) -> DataFrame:
    from pyspark.sql import functions as F

    only_old, only_new = F.col(OLD) - F.col(_SAME), F.col(NEW) - F.col(_SAME)
    nothing = F.lit(0).cast("bigint")
    once = (F.col(OLD) <= 1) & (F.col(NEW) <= 1)
    changed = F.when(once, F.least(only_old, only_new)).otherwise(nothing) if keyed else nothing
    return alike.withColumns(
        {
            ADDED: only_new - changed,
            REMOVED: only_old - changed,
            CHANGED: changed,
            UNCHANGED: F.col(_SAME),
        }
    )


def same_keys(left: str, right: str, names: Sequence[str]) -> Column:
    """Join condition on the named columns of two aliased frames; null equals null."""
    from pyspark.sql import functions as F

    condition = F.lit(True)  # noqa: FBT003 (a Spark literal)
    for name in names:
        mine, theirs = (F.col(f"{side}.{quote_identifier(name)}") for side in (left, right))
        condition = condition & mine.eqNullSafe(theirs)
    return condition
