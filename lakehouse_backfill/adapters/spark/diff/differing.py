"""Every row that differs between two snapshots, for changes that do not fit one machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.diff import comparing
from lakehouse_backfill.adapters.spark.diff.diff_columns import DiffColumn
from lakehouse_backfill.adapters.spark.diff.diff_sides import DiffSides
from lakehouse_backfill.domain.plain import to_json_value
from lakehouse_backfill.domain.rollout import DifferingRow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OLD, _NEW = "lhb_old", "lhb_new"


def differing(sides: DiffSides) -> Iterator[DifferingRow]:
    """Yield changed, added and removed rows; those of one partition are here at a time.

    A key that a side holds more than once is not paired, as in the local engine.
    """
    keys = [column for column in sides.columns if column.use == "key"]
    values = [column for column in sides.columns if column.use == "compared"]
    by = [comparing.LABEL, *(key.slot for key in keys)]
    slots = [*by, *(value.slot for value in values)]
    old, new = sides.wide("old").select(*slots), sides.wide("new").select(*slots)
    found = (_paired(old, new, by) if keys else _single(old, new)).persist()
    try:
        for raw in _labels(found):
            for row in _ordered(found, raw, keys):
                before, after = (_named(row[side], [*keys, *values]) for side in (_OLD, _NEW))
                whole = before or after or {}
                key = {column.name: whole[column.name] for column in keys} if keys else whole
                yield DifferingRow(sides.layout.label(raw), key, before, after)
    finally:
        found.unpersist()


def _labels(found: DataFrame) -> list[Any]:
    rows = found.select(comparing.LABEL).distinct().orderBy(comparing.LABEL).collect()
    return [row[comparing.LABEL] for row in rows]


def _ordered(found: DataFrame, raw: Any, keys: list[DiffColumn]) -> list[dict[str, Any]]:
    """Give one partition's rows by Arrow, whose values are those of the local engine."""
    from pyspark.sql import functions as F

    one = found.where(F.col(comparing.LABEL).eqNullSafe(F.lit(raw)))
    order = [
        F.coalesce(F.col(f"{_OLD}.{key.slot}"), F.col(f"{_NEW}.{key.slot}")).asc_nulls_first()
        for key in keys
    ]
    rows: list[dict[str, Any]] = (one.orderBy(*order) if order else one).toArrow().to_pylist()
    return rows


def _single(old: DataFrame, new: DataFrame) -> DataFrame:
    """Rows of one side that the other lacks, as multisets: each is a row of its own."""
    from pyspark.sql import functions as F

    removed, added = old.exceptAll(new), new.exceptAll(old)
    row = F.struct(*old.columns)
    none = F.when(F.lit(False), row)  # noqa: FBT003 (a null of the rows' type)
    label = F.col(comparing.LABEL)
    gone = removed.select(label, row.alias(_OLD), none.alias(_NEW))
    return gone.unionByName(added.select(label, none.alias(_OLD), row.alias(_NEW)))


def _paired(old: DataFrame, new: DataFrame, by: list[str]) -> DataFrame:
    """Rows with one key on both sides stand together; those of a repeated key stand alone."""
    from pyspark.sql import functions as F

    twice = _repeated(old, by).union(_repeated(new, by)).distinct()
    bags = _single(_within(old, twice, by, "left_semi"), _within(new, twice, by, "left_semi"))
    removed = _within(old, twice, by, "left_anti").exceptAll(new)
    added = _within(new, twice, by, "left_anti").exceptAll(old)
    o = removed.select(*(F.col(name).alias(f"o_{name}") for name in by), _struct(removed, _OLD))
    n = added.select(*(F.col(name).alias(f"n_{name}") for name in by), _struct(added, _NEW))
    condition = _all([F.col(f"o_{name}").eqNullSafe(F.col(f"n_{name}")) for name in by])
    label = F.when(F.col(_OLD).isNotNull(), F.col(f"o_{by[0]}")).otherwise(F.col(f"n_{by[0]}"))
    pairs = o.join(n, condition, "full_outer").select(
        label.alias(comparing.LABEL), F.col(_OLD), F.col(_NEW)
    )
    return pairs.unionByName(bags)


def _repeated(side: DataFrame, by: list[str]) -> DataFrame:
    from pyspark.sql import functions as F

    return side.groupBy(*by).agg(F.count(F.lit(1)).alias("n")).where("n > 1").select(*by)


def _within(side: DataFrame, keys: DataFrame, by: list[str], how: str) -> DataFrame:
    named = keys.toDF(*(f"k_{name}" for name in by))
    condition = _all([side[name].eqNullSafe(named[f"k_{name}"]) for name in by])
    return side.join(named, condition, how)


def _struct(side: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F

    return F.struct(*side.columns).alias(name)


def _all(conditions: list[Column]) -> Column:
    first, *others = conditions
    for condition in others:
        first = first & condition
    return first


def _named(row: Any, columns: list[DiffColumn]) -> dict[str, Any] | None:
    if row is None:
        return None
    return {column.name: to_json_value(row[column.slot]) for column in columns}
