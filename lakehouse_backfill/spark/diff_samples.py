"""Differing rows as examples, and how many rows each column changed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.model.checks import DiffSample
from lakehouse_backfill.rules.plain import plain_value
from lakehouse_backfill.spark import comparing, rowhash, tolerating
from lakehouse_backfill.spark.diff_columns import DiffColumn, common_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ANY = "lhb_any"
_TIMES = "lhb_times"
#: Rows of one key that are ordered among each other by their values.
_ROWS_PER_KEY = 100


@dataclass(frozen=True)
class Wide:
    """Both sides' whole rows: label, short names of all columns, row hash."""

    old: DataFrame
    new: DataFrame
    columns: tuple[DiffColumn, ...]

    @property
    def key(self) -> list[DiffColumn]:
        """The key's columns."""
        return [each for each in self.columns if each.use == "key"]

    @property
    def compared(self) -> list[DiffColumn]:
        """The compared columns."""
        return [each for each in self.columns if each.use == "compared"]


def changed_counts(wide: Wide, counted: DataFrame) -> dict[Any, dict[str, int]]:
    """Count, by raw label and for each compared column, the changed keys whose value differs.

    Under `ANY` the keys of which any does: with tolerances, rows of other hashes may be equal.
    """
    from pyspark.sql import functions as F

    if not wide.key or not wide.compared:
        return {}
    pairs = _changed(wide, counted)
    tests = {each.slot: _differs(each) for each in wide.compared}
    tests[ANY] = reduce(or_, tests.values())
    sums = [F.count(F.when(test, F.lit(1))).alias(slot) for slot, test in tests.items()]
    found = pairs.groupBy(comparing.LABEL).agg(*sums).collect()
    return {row[comparing.LABEL]: {slot: row[slot] for slot in tests} for row in found}


def samples(wide: Wide, rows: DataFrame, counted: DataFrame, limit: int) -> tuple[DiffSample, ...]:
    """Give up to `limit` rows of each kind: the first by partition, then key, nulls first."""
    if limit <= 0:
        return ()
    added = _whole(wide, rows, counted, "added", limit)
    removed = _whole(wide, rows, counted, "removed", limit)
    return (*added, *removed, *(_changed_samples(wide, counted, limit) if wide.key else ()))


def _whole(
    wide: Wide, rows: DataFrame, counted: DataFrame, kind: Literal["added", "removed"], limit: int
) -> list[DiffSample]:
    """Rows that one side has more often; of a key that changed, none."""
    from pyspark.sql import functions as F

    mine, theirs = (
        (comparing.NEW, comparing.OLD) if kind == "added" else (comparing.OLD, comparing.NEW)
    )
    names = [comparing.LABEL, *comparing.key_names(wide.key)]
    more = rows.withColumn(_TIMES, F.col(mine) - F.col(theirs)).where(F.col(_TIMES) > 0)
    if wide.key:
        unchanged = counted.where(F.col(comparing.CHANGED) == 0)
        same = comparing.same_keys("m", "u", names)
        more = more.alias("m").join(unchanged.alias("u"), same, "left_semi")
    # Without a key, the order among rows is only known once the whole rows are joined back.
    first = more.orderBy(*_order(names)).limit(_ROWS_PER_KEY * limit) if wide.key else more
    side = wide.new if kind == "added" else wide.old
    on = comparing.same_keys("w", "f", [comparing.LABEL, comparing.HASH])
    for each, short in zip(wide.key, comparing.key_names(wide.key), strict=True):
        on = on & F.col(f"w.{each.slot}").eqNullSafe(F.col(f"f.{short}"))
    joined = side.alias("w").join(first.alias("f"), on)
    slots = [each.slot for each in (*wide.key, *wide.compared)]
    shown = joined.select("w.*", f"f.{_TIMES}").dropDuplicates(
        [comparing.LABEL, comparing.HASH, *(each.slot for each in wide.key)]
    )
    ordered = shown.orderBy(*_order([comparing.LABEL, *_sortable(wide, slots)])).limit(limit)
    return _as_samples(wide, kind, ordered.toArrow().to_pylist(), limit)


def _as_samples(
    wide: Wide, kind: Literal["added", "removed"], rows: list[dict[str, Any]], limit: int
) -> list[DiffSample]:
    found: list[DiffSample] = []
    for row in rows:
        values = plain_value({each.name: row[each.slot] for each in wide.compared})
        sample = DiffSample(
            kind=kind,
            key=plain_value({each.name: row[each.slot] for each in wide.key}),
            old=None if kind == "added" else values,
            new=values if kind == "added" else None,
        )
        found += [sample] * min(int(row[_TIMES]), limit)
    return found[:limit]


def _changed_samples(wide: Wide, counted: DataFrame, limit: int) -> list[DiffSample]:
    pairs = _changed(wide, counted)
    names = [comparing.LABEL, *comparing.key_names(wide.key)]
    flags = [_differs(each).alias(f"d_{each.slot}") for each in wide.compared]
    any_differs = " OR ".join(f"d_{each.slot}" for each in wide.compared) or "false"
    first = pairs.select("*", *flags).where(any_differs).orderBy(*_order(names)).limit(limit)
    found = []
    for row in first.toArrow().to_pylist():
        differing = [each for each in wide.compared if row[f"d_{each.slot}"]]
        keys = zip(wide.key, comparing.key_names(wide.key), strict=True)
        found.append(
            DiffSample(
                kind="changed",
                key=plain_value({each.name: row[short] for each, short in keys}),
                old=plain_value({each.name: row[f"o_{each.slot}"] for each in differing}),
                new=plain_value({each.name: row[f"n_{each.slot}"] for each in differing}),
            )
        )
    return found


def _changed(wide: Wide, counted: DataFrame) -> DataFrame:
    """Join the whole rows of changed keys only: label, key, and `o_`/`n_` of each column."""
    from pyspark.sql import functions as F

    names = [comparing.LABEL, *comparing.key_names(wide.key)]
    keys = counted.where(F.col(comparing.CHANGED) > 0).select(*names)
    old, new = (
        _renamed(wide, side, prefix) for side, prefix in ((wide.old, "o_"), (wide.new, "n_"))
    )
    found = keys.alias("k").join(old.alias("o"), comparing.same_keys("k", "o", names))
    found = found.select("k.*", *(f"o.o_{each.slot}" for each in wide.compared))
    both = found.alias("k").join(new.alias("n"), comparing.same_keys("k", "n", names))
    return both.select("k.*", *(f"n.n_{each.slot}" for each in wide.compared))


def _renamed(wide: Wide, side: DataFrame, prefix: str) -> DataFrame:
    from pyspark.sql import functions as F

    keys = zip(wide.key, comparing.key_names(wide.key), strict=True)
    return side.select(
        comparing.LABEL,
        *(F.col(each.slot).alias(short) for each, short in keys),
        *(F.col(each.slot).alias(f"{prefix}{each.slot}") for each in wide.compared),
    )


def _differs(column: DiffColumn) -> Column:
    """Tell whether a pair's values differ; nested ones by their canonical hash, as whole rows are.

    As JSON, moments would lose their microseconds, and -0.0 would not be 0.0.
    """
    from pyspark.sql import functions as F

    old, new = F.col(f"o_{column.slot}"), F.col(f"n_{column.slot}")
    if column.tolerance is not None:
        return tolerating.differs(column, old, new)
    if column.is_nested:
        old, new = (_hashed(column, f"{side}_{column.slot}") for side in ("o", "n"))
    return ~old.eqNullSafe(new)


def _hashed(column: DiffColumn, name: str) -> Column:
    """Hash one side's value in the type that both sides are compared in."""
    from pyspark.sql import types as T

    kind = common_type(column.old, column.new) or T.StringType()
    return rowhash.row_hash(T.StructType([T.StructField(name, kind)]))


def _order(names: Sequence[str]) -> list[Column]:
    """Order by partition, then by the rest, nulls first."""
    from pyspark.sql import functions as F

    return [F.col(name).asc_nulls_first() for name in names]


def _sortable(wide: Wide, slots: Sequence[str]) -> list[str]:
    nested = {each.slot for each in wide.columns if each.is_nested}
    return [slot for slot in slots if slot not in nested]
