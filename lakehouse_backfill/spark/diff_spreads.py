"""How the columns of both sides of a diff are distributed, in two passes over the rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.model.checks import ColumnDiff
from lakehouse_backfill.model.watched import Distribution
from lakehouse_backfill.rules import distributions, scaled_bins
from lakehouse_backfill.rules.distributions import Histogram, bin_exponent
from lakehouse_backfill.rules.drift import (
    MAX_CATEGORIES,
    Moments,
    describe_numbers,
    mean_shift,
    population_shift,
)
from lakehouse_backfill.spark.diff_columns import DiffColumn

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


def column_diffs(
    old: DataFrame,
    new: DataFrame,
    columns: tuple[DiffColumn, ...],
    changed: Mapping[str, int],
    moved: Moved = ALL_MOVED,
) -> tuple[ColumnDiff, ...]:
    """Describe the compared columns, in table order; `changed` counts rows by column name."""
    compared = [each for each in columns if each.use == "compared"]
    if not compared:
        return ()
    sides = [_spreads(frame, compared, moved) for frame in (old, new)]
    found = tuple(
        _described(each, sides[0][each.slot], sides[1][each.slot], changed.get(each.name, 0), moved)
        for each in compared
    )
    return distributions.drawn(found)


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
        return distributions.of_numbers(
            old.histogram, new.histogram, draw=draw, whole=column.is_whole
        )
    if column.kind == "category" and old.counts is not None and new.counts is not None:
        return distributions.of_categories(old.categories, new.categories, draw=draw)
    return None


def _spreads(frame: DataFrame, columns: list[DiffColumn], moved: Moved) -> dict[str, Spread]:
    wanted = [aggregate for each in columns for aggregate in _aggregates(each)]
    row = frame.agg(*wanted).collect()[0].asDict()
    found = {each.slot: _of_row(each, row) for each in columns}
    countable = [
        each.slot
        for each in columns
        if each.kind != "number" and (row[f"{each.slot}_distinct"] or 0) <= _SURELY_WIDE
    ]
    exponents = {
        each.slot: bin_exponent(known.minimum, known.maximum)
        for each in columns
        if each.kind == "number" and (known := found[each.slot].moments).values and moved.is_asked
    }
    if countable or exponents:
        texts = {each.slot: _text(each) for each in columns if each.slot in countable}
        _count_values(frame, texts, exponents, found)
    return found


def _bin(slot: str, exponent: int) -> Column:
    """Give both bins of a finite number as a text; a product with a power of two is exact."""
    from pyspark.sql import functions as F

    double = F.col(slot).cast("double")
    finite = ~F.isnan(double) & (F.abs(double) < F.lit(float("inf")))
    equal = F.floor(double * F.lit(2.0**-exponent)).cast("string")
    return F.when(finite, F.concat_ws(",", equal, _scaled(double).cast("string")))


def _scaled(double: Column) -> Column:
    """Give the bin of `rules.scaled_bins`.

    Beside a power of two the logarithm may be rounded to the wrong exponent: the digits then are
    one power more or less, so the bin is the same.
    """
    from pyspark.sql import functions as F

    size, least, per_power = F.abs(double), scaled_bins.LEAST, scaled_bins.PER_POWER
    power = F.least(F.floor(F.log2(size)), F.lit(sys.float_info.max_exp - 1)).cast("double")
    digits = F.floor(size / F.pow(F.lit(2.0), power) * per_power)
    number = (power.cast("bigint") - least) * per_power + digits - per_power + 1
    signed = F.when(double < 0, -number).otherwise(number)
    return F.when(size < 2.0**least, F.lit(0).cast("bigint")).otherwise(signed)


def _count_values(
    frame: DataFrame,
    texts: dict[str, Column],
    exponents: dict[str, int],
    found: dict[str, Spread],
) -> None:
    """Count the values of all countable columns, and the numbers by bins, in one shuffle."""
    from pyspark.sql import functions as F

    bins = {slot: _bin(slot, exponent) for slot, exponent in exponents.items()}
    pairs = [
        F.struct(F.lit(slot).alias("slot"), text.alias("v"))
        for slot, text in {**texts, **bins}.items()
    ]
    values = frame.select(F.explode(F.array(*pairs)).alias("p")).select("p.slot", "p.v")
    counted = values.where("v IS NOT NULL").groupBy("slot", "v").count().collect()
    for slot in texts:
        found[slot].counts = {}
    numbers: dict[str, list[tuple[int, ...]]] = {slot: [] for slot in exponents}
    for row in counted:
        counts = found[row["slot"]].counts
        if row["slot"] in numbers:
            numbers[row["slot"]].append((*map(int, row["v"].split(",")), row["count"]))
        elif counts is not None:
            counts[row["v"]] = row["count"]
    for slot, cells in numbers.items():
        _add_bins(found[slot], cells)
    for slot in texts:
        counts = found[slot].counts
        if counts is not None and len(counts) > MAX_CATEGORIES:
            found[slot].counts = None


def _add_bins(spread: Spread, cells: list[tuple[int, ...]]) -> None:
    """Add counts by pairs of bins: equal ones, and scaled ones."""
    equal, scaled = Counter[int](), Counter[int]()
    for one, other, rows in cells:
        equal[one] += rows
        scaled[other] += rows
    spread.histogram.add(spread.moments.minimum, spread.moments.maximum, equal, scaled)


def _aggregates(column: DiffColumn) -> list[Column]:
    from pyspark.sql import functions as F

    slot = column.slot
    value = F.col(slot)
    nulls = F.count(F.when(value.isNull(), F.lit(1))).alias(f"{slot}_nulls")
    if column.kind != "number":
        return [nulls, F.approx_count_distinct(_text(column)).alias(f"{slot}_distinct")]
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


def _text(column: DiffColumn) -> Column:
    """Give a text that is different for different values."""
    from pyspark.sql import functions as F

    value = F.col(column.slot)
    kinds = {each.typeName() for each in (column.old, column.new) if each is not None}
    if column.is_nested:
        return F.when(value.isNotNull(), F.to_json(F.struct(value)))
    return F.base64(value) if "binary" in kinds else value.cast("string")
