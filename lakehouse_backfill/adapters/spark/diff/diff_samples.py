"""Differing rows as examples, and how many rows each column changed in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.adapters.spark import rowhash
from lakehouse_backfill.adapters.spark.diff import comparing, tolerating
from lakehouse_backfill.adapters.spark.diff.diff_columns import DiffColumn, common_type
from lakehouse_backfill.adapters.spark.diff.diff_found import TIMES, Found, Wide
from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.domain.plain import to_json_value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    counted = _changed(wide, found).groupBy(comparing.LABEL).agg(*sums).collect()
    return {row[comparing.LABEL]: {slot: row[slot] for slot in tests} for row in counted}


def samples(wide: Wide, found: Found, limit: int) -> tuple[DiffSample, ...]:
    """Give up to `limit` rows of each kind: the first by partition, then key, nulls first."""
    if limit <= 0:
        return ()
    added = _whole(wide, found.of("new"), "added", limit)
    removed = _whole(wide, found.of("old"), "removed", limit)
    return (*added, *removed, *(_changed_samples(wide, found, limit) if wide.key else ()))


def _whole(
    wide: Wide, rows: DataFrame, kind: Literal["added", "removed"], limit: int
) -> list[DiffSample]:
    """Rows that one side has more often; of a key that changed, none."""
    from pyspark.sql import functions as F

    slots = [each.slot for each in (*wide.key, *wide.compared)]
    others = rows.where(F.col(comparing.CHANGED) == 0)
    ordered = others.orderBy(*_order([comparing.LABEL, *_sortable(wide, slots)])).limit(limit)
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
    names = [comparing.LABEL, *comparing.key_names(wide.key)]
    flags = [_differs(each).alias(f"d_{each.slot}") for each in wide.compared]
    any_differs = " OR ".join(f"d_{each.slot}" for each in wide.compared) or "false"
    first = pairs.select("*", *flags).where(any_differs).orderBy(*_order(names)).limit(limit)
    shown = []
    for row in first.toArrow().to_pylist():
        differing = [each for each in wide.compared if row[f"d_{each.slot}"]]
        keys = zip(wide.key, comparing.key_names(wide.key), strict=True)
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

    names = [comparing.LABEL, *comparing.key_names(wide.key)]
    old, new = (
        _renamed(wide, found.of(side).where(F.col(comparing.CHANGED) > 0), prefix)
        for side, prefix in _SIDES
    )
    both = old.alias("o").join(new.alias("n"), comparing.same_keys("o", "n", names))
    return both.select("o.*", *(f"n.n_{each.slot}" for each in wide.compared))


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
    return rowhash.row_hash_column(T.StructType([T.StructField(name, kind)]))


def _order(names: Sequence[str]) -> list[Column]:
    """Order by partition, then by the rest, nulls first."""
    from pyspark.sql import functions as F

    return [F.col(name).asc_nulls_first() for name in names]


def _sortable(wide: Wide, slots: Sequence[str]) -> list[str]:
    nested = {each.slot for each in wide.columns if each.is_nested}
    return [slot for slot in slots if slot not in nested]
