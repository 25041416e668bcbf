"""Comparison by key and row hash, shared by the diff and the edge check; differing rows, samples.

Wide rows are never shuffled: only partition, key and one 64-bit hash. Rows of a repeated key are
compared as a multiset within the key, so a join never multiplies them. Whole rows are only joined
back for rows without an equal on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.adapters.spark import row_hash
from lakehouse_backfill.adapters.spark.dataframes import quote_identifier, quoted_column
from lakehouse_backfill.adapters.spark.diff import sides
from lakehouse_backfill.adapters.spark.diff.sides import HASH, LABEL, SparkDiffColumn, common_type
from lakehouse_backfill.core.comparison.conditions import EXACT_DIGITS, format_decimal
from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.domain.serialization import to_json_value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


OLD, NEW = "lhb_old", "lhb_new"
_SAME = "lhb_same"
ADDED, REMOVED, CHANGED, UNCHANGED = "lhb_added", "lhb_removed", "lhb_changed", "lhb_unchanged"
_KEY = "lhb_key_"


def key_names(key: Sequence[object]) -> list[str]:
    """Return the names under which the key's columns stand in compared frames."""
    return [f"{_KEY}{place}" for place in range(len(key))]


def narrow(frame: DataFrame, label: Column, key: Sequence[str], hashed: Column) -> DataFrame:
    """Reduce rows to partition label, key and row hash."""
    named = [
        quoted_column(name).alias(short) for name, short in zip(key, key_names(key), strict=True)
    ]
    return frame.select(label.alias(LABEL), *named, hashed.alias(HASH))


def compared(old: DataFrame, new: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return one row per partition and key (without a key: per distinct row) with four counts."""
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
    """Return each distinct row (label, key, hash) with how often each side holds it."""
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


#: How often a side holds the row more than the other.
TIMES = "lhb_times"
_SIDE = "lhb_side"
#: So many keys, hashes and counts are sent to where the whole rows are read; more are joined.
_SENT_ROWS = 500_000


@dataclass(frozen=True)
class Wide:
    """Both sides' whole rows: label, short names of all columns, row hash."""

    old: DataFrame
    new: DataFrame
    columns: tuple[SparkDiffColumn, ...]

    @property
    def key(self) -> list[SparkDiffColumn]:
        """The key's columns."""
        return [each for each in self.columns if each.use == "key"]

    @property
    def compared(self) -> list[SparkDiffColumn]:
        """The compared columns."""
        return [each for each in self.columns if each.use == "compared"]


@dataclass(frozen=True)
class Found:
    """Whole rows that one side holds more often, kept from the first use until `let_go`.

    Each stands once, with how often in `TIMES`, and with `comparing.CHANGED`: whether the other
    side has another row of its key. `many` are the rows of both sides.
    """

    rows: DataFrame
    many: int

    def of(self, side: Literal["old", "new"]) -> DataFrame:
        """Return the rows of one side."""
        from pyspark.sql import functions as F

        return self.rows.where(F.col(_SIDE) == side)

    def let_go(self) -> None:
        """Free the memory."""
        self.rows.unpersist()


def find(wide: Wide, rows: DataFrame, counted: DataFrame, many: int, *, are_once: bool) -> Found:
    """Join the whole rows back to what `distinct_rows` and `classified` gave.

    `many` is how many rows that are, `are_once` whether no key and no row repeats.
    """
    more = _more(wide, rows, counted)
    sides = [
        _whole(wide, side, name, more, many, are_once=are_once)
        for side, name in ((wide.old, "old"), (wide.new, "new"))
    ]
    return Found(sides[0].unionByName(sides[1]).persist(), many)


def _more(wide: Wide, rows: DataFrame, counted: DataFrame) -> DataFrame:
    """Return label, key, hash of rows that one side has more often, and whether the key changed."""
    from pyspark.sql import functions as F

    surplus = F.col(OLD) - F.col(NEW)
    more = rows.where(surplus != 0).withColumns(
        {_SIDE: F.when(surplus > 0, "old").otherwise("new"), TIMES: F.abs(surplus)}
    )
    names = [sides.LABEL, *key_names(wide.key)]
    if not wide.key:
        return more.withColumn(CHANGED, F.lit(0))
    changes = counted.select(*names, CHANGED)
    same = same_keys("m", "c", names)
    return more.alias("m").join(changes.alias("c"), same).select("m.*", CHANGED)


def _whole(
    wide: Wide, side: DataFrame, name: str, more: DataFrame, many: int, *, are_once: bool
) -> DataFrame:
    from pyspark.sql import functions as F

    own = more.where(F.col(_SIDE) == name)
    own = F.broadcast(own) if many <= _SENT_ROWS else own
    on = same_keys("w", "f", [sides.LABEL, sides.HASH])
    for each, short in zip(wide.key, key_names(wide.key), strict=True):
        on = on & F.col(f"w.{each.slot}").eqNullSafe(F.col(f"f.{short}"))
    told = [f"f.{column}" for column in (_SIDE, TIMES, CHANGED)]
    found = side.alias("w").join(own.alias("f"), on).select("w.*", *told)
    if are_once:
        return found
    slots = [each.slot for each in wide.key]
    return found.dropDuplicates([sides.LABEL, sides.HASH, *slots])


_WHOLE = ("byte", "short", "integer", "long")


def differs(column: SparkDiffColumn, old: Column, new: Column) -> Column:
    """Return whether the values of a pair differ; null differs from any value."""
    from pyspark.sql import functions as F

    tolerance = column.tolerance
    exactly = ~old.eqNullSafe(new)
    if tolerance is None:
        return exactly
    limit, exact = format_decimal(tolerance.limit), _exact(column)
    if tolerance.is_relative or exact is None:
        one, other = old.cast("double"), new.cast("double")
        bound = F.lit(limit).cast("double")
        if tolerance.is_relative:
            bound = bound * F.greatest(F.abs(one), F.abs(other))
        within = _is_finite(one) & _is_finite(other) & (F.abs(one - other) <= bound)
    else:
        distance = F.abs(old.cast(exact) - new.cast(exact))
        within = distance <= F.lit(limit).cast(f"decimal(38, {len(limit.partition('.')[2])})")
    return exactly & ~F.coalesce(within, F.lit(False))  # noqa: FBT003 (a Spark literal)


def _is_finite(value: Column) -> Column:
    from pyspark.sql import functions as F

    return ~F.isnan(value) & (F.abs(value) < F.lit(float("inf")))


def _exact(column: SparkDiffColumn) -> str | None:
    """Return the type in which both sides' values are subtracted without loss; None: there is none.

    A difference of decimals needs a digit more than they have.
    """
    kinds: list[DataType] = [each for each in (column.old, column.new) if each is not None]
    if all(kind.typeName() in _WHOLE for kind in kinds):
        return "decimal(20, 0)"
    shapes = [
        (kind.precision, kind.scale)  # type: ignore[attr-defined]  # of a decimal type
        for kind in kinds
        if kind.typeName() == "decimal"
    ]
    if len(shapes) < len(kinds) or len({scale for _, scale in shapes}) > 1:
        return None
    digits = max(precision for precision, _ in shapes)
    return f"decimal({digits}, {shapes[0][1]})" if digits <= EXACT_DIGITS else None


ANY = "lhb_any"
_SIDES: tuple[tuple[Literal["old", "new"], str], ...] = (("old", "o_"), ("new", "n_"))


def changed_counts(wide: Wide, found: Found) -> dict[Any, dict[str, int]]:
    """Count, by raw label and for each compared column, the changed keys whose value differs.

    Under `ANY` the keys of which any does: with tolerances, rows of other hashes may be equal.
    """
    from pyspark.sql import functions as F

    if not wide.key or not wide.compared:
        return {}
    tests = {each.slot: _differs(each) for each in wide.compared}
    tests[ANY] = reduce(or_, tests.values())
    sums = [F.count(F.when(test, F.lit(1))).alias(slot) for slot, test in tests.items()]
    counted = _changed(wide, found).groupBy(sides.LABEL).agg(*sums).collect()
    return {row[sides.LABEL]: {slot: row[slot] for slot in tests} for row in counted}


def samples(wide: Wide, found: Found, limit: int) -> tuple[DiffSample, ...]:
    """Return up to `limit` rows of each kind: the first by partition, then key, nulls first."""
    if limit <= 0:
        return ()
    added = _sample_whole_rows(wide, found.of("new"), "added", limit)
    removed = _sample_whole_rows(wide, found.of("old"), "removed", limit)
    return (*added, *removed, *(_changed_samples(wide, found, limit) if wide.key else ()))


def _sample_whole_rows(
    wide: Wide, rows: DataFrame, kind: Literal["added", "removed"], limit: int
) -> list[DiffSample]:
    """Rows that one side has more often; of a key that changed, none."""
    from pyspark.sql import functions as F

    slots = [each.slot for each in (*wide.key, *wide.compared)]
    others = rows.where(F.col(CHANGED) == 0)
    ordered = others.orderBy(*_order([sides.LABEL, *_sortable(wide, slots)])).limit(limit)
    return _as_samples(wide, kind, ordered.toArrow().to_pylist(), limit)


def _as_samples(
    wide: Wide, kind: Literal["added", "removed"], rows: list[dict[str, Any]], limit: int
) -> list[DiffSample]:
    found: list[DiffSample] = []
    for row in rows:
        values = to_json_value({each.name: row[each.slot] for each in wide.compared})
        sample = DiffSample(
            kind=kind,
            key=to_json_value({each.name: row[each.slot] for each in wide.key}),
            old=None if kind == "added" else values,
            new=values if kind == "added" else None,
        )
        found += [sample] * min(int(row[TIMES]), limit)
    return found[:limit]


def _changed_samples(wide: Wide, found: Found, limit: int) -> list[DiffSample]:
    pairs = _changed(wide, found)
    names = [sides.LABEL, *key_names(wide.key)]
    flags = [_differs(each).alias(f"d_{each.slot}") for each in wide.compared]
    any_differs = " OR ".join(f"d_{each.slot}" for each in wide.compared) or "false"
    first = pairs.select("*", *flags).where(any_differs).orderBy(*_order(names)).limit(limit)
    shown = []
    for row in first.toArrow().to_pylist():
        differing = [each for each in wide.compared if row[f"d_{each.slot}"]]
        keys = zip(wide.key, key_names(wide.key), strict=True)
        shown.append(
            DiffSample(
                kind="changed",
                key=to_json_value({each.name: row[short] for each, short in keys}),
                old=to_json_value({each.name: row[f"o_{each.slot}"] for each in differing}),
                new=to_json_value({each.name: row[f"n_{each.slot}"] for each in differing}),
            )
        )
    return shown


def _changed(wide: Wide, found: Found) -> DataFrame:
    """Pair the rows of changed keys: label, key, and `o_`/`n_` of each column."""
    from pyspark.sql import functions as F

    names = [sides.LABEL, *key_names(wide.key)]
    old, new = (
        _renamed(wide, found.of(side).where(F.col(CHANGED) > 0), prefix) for side, prefix in _SIDES
    )
    both = old.alias("o").join(new.alias("n"), same_keys("o", "n", names))
    return both.select("o.*", *(f"n.n_{each.slot}" for each in wide.compared))


def _renamed(wide: Wide, side: DataFrame, prefix: str) -> DataFrame:
    from pyspark.sql import functions as F

    keys = zip(wide.key, key_names(wide.key), strict=True)
    return side.select(
        sides.LABEL,
        *(F.col(each.slot).alias(short) for each, short in keys),
        *(F.col(each.slot).alias(f"{prefix}{each.slot}") for each in wide.compared),
    )


def _differs(column: SparkDiffColumn) -> Column:
    """Return whether a pair's values differ; nested ones are compared by canonical hash.

    As JSON, moments would lose their microseconds, and -0.0 would not be 0.0.
    """
    from pyspark.sql import functions as F

    old, new = F.col(f"o_{column.slot}"), F.col(f"n_{column.slot}")
    if column.tolerance is not None:
        return differs(column, old, new)
    if column.is_nested:
        old, new = (_hashed(column, f"{side}_{column.slot}") for side in ("o", "n"))
    return ~old.eqNullSafe(new)


def _hashed(column: SparkDiffColumn, name: str) -> Column:
    """Hash one side's value in the type that both sides are compared in."""
    from pyspark.sql import types as T

    kind = common_type(column.old, column.new) or T.StringType()
    return row_hash.row_hash_column(T.StructType([T.StructField(name, kind)]))


def _order(names: Sequence[str]) -> list[Column]:
    """Order by partition, then by the rest, nulls first."""
    from pyspark.sql import functions as F

    return [F.col(name).asc_nulls_first() for name in names]


def _sortable(wide: Wide, slots: Sequence[str]) -> list[str]:
    nested = {each.slot for each in wide.columns if each.is_nested}
    return [slot for slot in slots if slot not in nested]
