"""How columns are spread on both sides of a diff: two passes over the new side, one of the old."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.diff.diff_columns import DiffColumn
from lakehouse_backfill.adapters.spark.diff.diff_counting import (
    Counting,
    Spread,
    moved_counts,
    text_of,
)
from lakehouse_backfill.adapters.spark.diff.diff_found import TIMES, Found, Wide
from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.core.comparison.drift import (
    MAX_CATEGORIES,
    Moments,
    describe_numbers,
    mean_shift,
    population_shift,
)
from lakehouse_backfill.domain.checks import ColumnDiff
from lakehouse_backfill.domain.watched import Distribution

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Approximate counts err by 5 %: above this a column surely has too many values to count.
_SURELY_WIDE = 2 * MAX_CATEGORIES


@dataclass(frozen=True)
class Moved:
    """Whether it is told how values are spread, and whether rows were added or removed."""

    is_asked: bool
    has_other_rows: bool


ALL_MOVED = Moved(is_asked=True, has_other_rows=True)


def column_diffs(
    wide: Wide, changed: Mapping[str, int], moved: Moved = ALL_MOVED, found: Found | None = None
) -> tuple[ColumnDiff, ...]:
    """Describe the compared columns, in table order; `changed` counts rows by column name.

    With the rows that differ, the counts of the old side follow from those of the new one.
    """
    if not wide.compared:
        return ()
    sides = _Measuring(wide, moved, found).run()
    described = tuple(
        _described(each, sides[0][each.slot], sides[1][each.slot], changed.get(each.name, 0), moved)
        for each in wide.compared
    )
    return distributions.limit_columns_with_bars(described)


def _described(
    column: DiffColumn, old: Spread, new: Spread, changed: int, moved: Moved
) -> ColumnDiff:
    shift = None
    if column.kind == "number":
        shift = mean_shift(old.moments, new.moments)
        shown = [describe_numbers(side.moments) for side in (old, new)]
    else:
        shown = [
            {"nulls": side.nulls, "distinct": None if side.counts is None else len(side.counts)}
            for side in (old, new)
        ]
    if column.kind == "category" and old.counts is not None and new.counts is not None:
        shift = population_shift(old.categories, new.categories)
    distribution = None
    if moved.is_asked:
        draw = bool(changed or moved.has_other_rows)
        distribution = _distribution(column, old, new, draw=draw)
    return ColumnDiff(
        name=column.name,
        changed=changed,
        old=shown[0],
        new=shown[1],
        shift=shift,
        distribution=distribution,
    )


def _distribution(
    column: DiffColumn, old: Spread, new: Spread, *, draw: bool
) -> Distribution | None:
    if column.kind == "number":
        return distributions.number_distribution(
            old.histogram, new.histogram, draw=draw, whole=column.is_whole
        )
    if column.kind == "category" and old.counts is not None and new.counts is not None:
        return distributions.category_distribution(old.categories, new.categories, draw=draw)
    return None


class _Measuring:
    """Both sides of the compared columns: first their moments, then the counts of their values."""

    def __init__(self, wide: Wide, moved: Moved, found: Found | None) -> None:
        self._wide = wide
        self._moved = moved
        self._found = found

    def run(self) -> list[dict[str, Spread]]:
        """Give the spreads of the old and the new side by slot."""
        columns = self._wide.compared
        rows = [_aggregated(frame, columns) for frame in (self._wide.old, self._wide.new)]
        sides = [{each.slot: _of_row(each, row) for each in columns} for row in rows]
        countable = [
            [each for each in columns if each.kind != "number" and _is_narrow(each, row)]
            for row in rows
        ]
        ranges = self._ranges(sides)
        new = Counting(countable[1], ranges)
        counted = new.count(self._wide.new)
        new.tell(counted, sides[1])
        if self._found is None:
            old = Counting(countable[0], ranges)
            old.tell(old.count(self._wide.old), sides[0])
            return sides
        # Equal rows are counted alike; but nested values are, as texts, of more than one kind.
        narrow = [each for each in countable[1] if each in countable[0]]
        plain = [each for each in narrow if not each.is_nested]
        alike = Counting(plain, ranges)
        gone, come = (alike.count(self._found.of(side), TIMES) for side in ("new", "old"))
        alike.tell(moved_counts(counted, gone, come), sides[0])
        others = Counting([each for each in countable[0] if each not in plain], {})
        others.tell(others.count(self._wide.old), sides[0])
        return sides

    def _ranges(self, sides: list[dict[str, Spread]]) -> dict[str, tuple[Any, Any]]:
        """Tell from where to where the numbers of both sides reach."""
        found = {}
        for slot in (each.slot for each in self._wide.compared if each.kind == "number"):
            known = [side[slot].moments for side in sides if side[slot].moments.values]
            if known and self._moved.is_asked:
                lows, highs = ([getattr(m, end) for m in known] for end in ("minimum", "maximum"))
                found[slot] = min(lows), max(highs)
        return found


def _aggregated(frame: DataFrame, columns: list[DiffColumn]) -> dict[str, Any]:
    wanted = [aggregate for each in columns for aggregate in _aggregates(each)]
    return dict(frame.agg(*wanted).collect()[0].asDict())


def _is_narrow(column: DiffColumn, row: dict[str, Any]) -> bool:
    return (row[f"{column.slot}_distinct"] or 0) <= _SURELY_WIDE


def _aggregates(column: DiffColumn) -> list[Column]:
    from pyspark.sql import functions as F

    slot = column.slot
    value = F.col(slot)
    nulls = F.count(F.when(value.isNull(), F.lit(1))).alias(f"{slot}_nulls")
    if column.kind != "number":
        plain = text_of(column) if column.is_nested else value
        return [nulls, F.approx_count_distinct(plain).alias(f"{slot}_distinct")]
    double = value.cast("double")
    limit = F.lit(float("inf"))
    finite = ~F.isnan(double) & (F.abs(double) < limit)
    kept = F.when(finite, value)
    squares = F.when(finite, double * double)
    return [
        nulls,
        F.count(kept).alias(f"{slot}_values"),
        F.min(kept).alias(f"{slot}_min"),
        F.max(kept).alias(f"{slot}_max"),
        F.sum(F.when(finite, double)).alias(f"{slot}_total"),
        F.sum(squares).alias(f"{slot}_squares"),
    ]


def _of_row(column: DiffColumn, row: dict[str, Any]) -> Spread:
    slot = column.slot
    nulls = row[f"{slot}_nulls"]
    if column.kind != "number":
        return Spread(nulls=nulls)
    moments = Moments(
        nulls=nulls,
        values=row[f"{slot}_values"],
        minimum=row[f"{slot}_min"],
        maximum=row[f"{slot}_max"],
        total=row[f"{slot}_total"] or 0.0,
        squares=row[f"{slot}_squares"] or 0.0,
    )
    return Spread(nulls=nulls, moments=moments)
