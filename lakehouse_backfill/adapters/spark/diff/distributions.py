"""Distributions of a diff's columns: two passes over the new side, one over the old side.

Texts are counted by value, numbers by bins, all columns in one shuffle.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.diff.rows import TIMES, Found, Wide
from lakehouse_backfill.adapters.spark.diff.sides import SparkDiffColumn
from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.core.comparison.distributions import (
    MAX_CATEGORIES,
    Histogram,
    Moments,
    bin_exponent,
    describe_numbers,
    mean_shift,
    population_shift,
)
from lakehouse_backfill.domain.checks import ColumnDiff, Distribution

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass
class Spread:
    """One column on one side; `counts` is None above the limit."""

    nulls: int = 0
    moments: Moments = field(default_factory=Moments)
    counts: dict[str, int] | None = None
    histogram: Histogram = field(default_factory=Histogram)

    @property
    def categories(self) -> dict[str, int]:
        """Counts by category, null being one."""
        named = {f"={value}": rows for value, rows in (self.counts or {}).items()}
        return {**named, "null": self.nulls} if self.nulls else named


#: Rows by slot and by what is counted of it.
Counts = dict[tuple[str, str], Counter[Any]]
_VALUES, _SCALED, _EQUAL = "values", "scaled", "equal"


@dataclass(frozen=True)
class _Cell:
    """What is counted of a column: a text, or a number.

    A number is counted in bins as wide as one by the factor; without factor in scaled ones.
    """

    slot: str
    what: str
    factor: float | None = None
    text: Column | None = None
    is_date: bool = False

    def columns(self) -> list[Column]:
        """Return the number, the factor, and the text of a row."""
        from pyspark.sql import functions as F

        number = F.unix_date(self.slot) if self.is_date else F.col(self.slot)
        number = number if self.text is None else F.lit(None)
        text = F.lit(None) if self.text is None else self.text
        return [number.cast("double"), F.lit(self.factor).cast("double"), text.cast("string")]


class Counting:
    """Counts texts by value and numbers by bins, all columns in one shuffle."""

    def __init__(self, texts: list[SparkDiffColumn], ranges: dict[str, tuple[Any, Any]]) -> None:
        self._texts = [each.slot for each in texts]
        self._ranges = ranges
        self._exponents = {slot: bin_exponent(*ends) for slot, ends in ranges.items()}
        self._cells = [_values_of(each) for each in texts]
        for slot, ends in ranges.items():
            exponent = self._exponents[slot]
            self._cells.append(_Cell(slot, _SCALED))
            if not distributions.are_scaled_bins_finer(exponent, *ends):
                # A product with a power of two is exact.
                self._cells.append(_Cell(slot, _EQUAL, factor=2.0**-exponent))

    def count(self, frame: DataFrame, times: str | None = None) -> Counts:
        """Count the rows of a frame, or add up how many each stands for."""
        from pyspark.sql import functions as F

        if not self._cells:
            return {}
        stacked = [F.lit(len(self._cells))]
        for number, cell in enumerate(self._cells):
            stacked += [F.lit(number), *cell.columns()]
        each = F.stack(*stacked).alias("cell", "d", "factor", "s")
        rows = frame.select(*([times] if times else []), each)
        # Once for all cells: the code of a row would be too long for the JVM to compile.
        finite = ~F.isnan("d") & (F.abs("d") < F.lit(float("inf")))
        equal = F.floor(F.col("d") * F.col("factor")).cast("bigint")
        bins = F.when(F.col("factor").isNull(), _scaled(F.col("d"))).otherwise(equal)
        rows = rows.withColumn("n", F.when(finite, bins)).where("n IS NOT NULL OR s IS NOT NULL")
        total = F.sum(times) if times else F.count(F.lit(1))
        found: Counts = {}
        for row in rows.groupBy("cell", "n", "s").agg(total.alias("rows")).collect():
            cell = self._cells[row["cell"]]
            value = row["n"] if row["s"] is None else row["s"]
            found.setdefault((cell.slot, cell.what), Counter())[value] = row["rows"]
        return found

    def tell(self, counted: Counts, spreads: dict[str, Spread]) -> None:
        """Return the spreads their counts; too many values are not told."""
        for slot in self._texts:
            counts = counted.get((slot, _VALUES), Counter())
            spreads[slot].counts = dict(counts) if len(counts) <= MAX_CATEGORIES else None
        for slot, ends in self._ranges.items():
            scaled = counted.get((slot, _SCALED), Counter())
            equal = counted.get((slot, _EQUAL))
            if equal is None:
                equal = Counter(distributions.equal_width_counts(scaled, self._exponents[slot]))
            spreads[slot].histogram.add(*ends, equal, scaled)


def _values_of(column: SparkDiffColumn) -> _Cell:
    if {each.typeName() for each in (column.old, column.new) if each is not None} == {"date"}:
        # Numbers are counted faster than texts.
        return _Cell(column.slot, _VALUES, factor=1.0, is_date=True)
    return _Cell(column.slot, _VALUES, text=text_of(column))


def moved_counts(counted: Counts, gone: Counts, come: Counts) -> Counts:
    """Return counts without some of the rows, and with others."""
    found = {}
    for cell in {*counted, *come}:
        some = Counter(counted.get(cell, Counter()))
        some.update(come.get(cell, Counter()))
        some.subtract(gone.get(cell, Counter()))
        found[cell] = +some
    return found


def _scaled(double: Column) -> Column:
    """Return the bin of `rules.scaled_bins`.

    Beside a power of two the logarithm may be rounded to the wrong exponent: the digits then are
    one power more or less, so the bin is the same.
    """
    from pyspark.sql import functions as F

    size, least, per_power = (
        F.abs(double),
        distributions.MIN_SCALED_EXPONENT,
        distributions.BINS_PER_POWER,
    )
    power = F.least(F.floor(F.log2(size)), F.lit(sys.float_info.max_exp - 1)).cast("double")
    digits = F.floor(size / F.pow(F.lit(2.0), power) * per_power)
    number = (power.cast("bigint") - least) * per_power + digits - per_power + 1
    signed = F.when(double < 0, -number).otherwise(number)
    return F.when(size < 2.0**least, F.lit(0).cast("bigint")).otherwise(signed)


def text_of(column: SparkDiffColumn) -> Column:
    """Return a text that is different for different values."""
    from pyspark.sql import functions as F

    value = F.col(column.slot)
    kinds = {each.typeName() for each in (column.old, column.new) if each is not None}
    if column.is_nested:
        return F.when(value.isNotNull(), F.to_json(F.struct(value)))
    return F.base64(value) if "binary" in kinds else value.cast("string")


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
    column: SparkDiffColumn, old: Spread, new: Spread, changed: int, moved: Moved
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
    column: SparkDiffColumn, old: Spread, new: Spread, *, draw: bool
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
        """Return the spreads of the old and the new side by slot."""
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
        """Return the range of the numbers of both sides."""
        found = {}
        for slot in (each.slot for each in self._wide.compared if each.kind == "number"):
            known = [side[slot].moments for side in sides if side[slot].moments.values]
            if known and self._moved.is_asked:
                lows, highs = ([getattr(m, end) for m in known] for end in ("minimum", "maximum"))
                found[slot] = min(lows), max(highs)
        return found


def _aggregated(frame: DataFrame, columns: list[SparkDiffColumn]) -> dict[str, Any]:
    wanted = [aggregate for each in columns for aggregate in _aggregates(each)]
    return dict(frame.agg(*wanted).collect()[0].asDict())


def _is_narrow(column: SparkDiffColumn, row: dict[str, Any]) -> bool:
    return (row[f"{column.slot}_distinct"] or 0) <= _SURELY_WIDE


def _aggregates(column: SparkDiffColumn) -> list[Column]:
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


def _of_row(column: SparkDiffColumn, row: dict[str, Any]) -> Spread:
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
