"""Counting the values of a diff's columns: texts as they are, numbers by bins, in one shuffle."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.diff.diff_columns import DiffColumn
from lakehouse_backfill.core.comparison import scaled_bins
from lakehouse_backfill.core.comparison.distributions import Histogram, bin_exponent
from lakehouse_backfill.core.comparison.drift import MAX_CATEGORIES, Moments

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
        """Give the number, the factor, and the text of a row."""
        from pyspark.sql import functions as F

        number = F.unix_date(self.slot) if self.is_date else F.col(self.slot)
        number = number if self.text is None else F.lit(None)
        text = F.lit(None) if self.text is None else self.text
        return [number.cast("double"), F.lit(self.factor).cast("double"), text.cast("string")]


class Counting:
    """Counts texts by value and numbers by bins, all columns in one shuffle."""

    def __init__(self, texts: list[DiffColumn], ranges: dict[str, tuple[Any, Any]]) -> None:
        self._texts = [each.slot for each in texts]
        self._ranges = ranges
        self._exponents = {slot: bin_exponent(*ends) for slot, ends in ranges.items()}
        self._cells = [_values_of(each) for each in texts]
        for slot, ends in ranges.items():
            exponent = self._exponents[slot]
            self._cells.append(_Cell(slot, _SCALED))
            if not scaled_bins.are_scaled_bins_finer(exponent, *ends):
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
        """Give the spreads their counts; too many values are not told."""
        for slot in self._texts:
            counts = counted.get((slot, _VALUES), Counter())
            spreads[slot].counts = dict(counts) if len(counts) <= MAX_CATEGORIES else None
        for slot, ends in self._ranges.items():
            scaled = counted.get((slot, _SCALED), Counter())
            equal = counted.get((slot, _EQUAL))
            if equal is None:
                equal = Counter(scaled_bins.equal_width_counts(scaled, self._exponents[slot]))
            spreads[slot].histogram.add(*ends, equal, scaled)


def _values_of(column: DiffColumn) -> _Cell:
    if {each.typeName() for each in (column.old, column.new) if each is not None} == {"date"}:
        # Numbers are counted faster than texts.
        return _Cell(column.slot, _VALUES, factor=1.0, is_date=True)
    return _Cell(column.slot, _VALUES, text=text_of(column))


def moved_counts(counted: Counts, gone: Counts, come: Counts) -> Counts:
    """Give counts without some of the rows, and with others."""
    found = {}
    for cell in {*counted, *come}:
        some = Counter(counted.get(cell, Counter()))
        some.update(come.get(cell, Counter()))
        some.subtract(gone.get(cell, Counter()))
        found[cell] = +some
    return found


def _scaled(double: Column) -> Column:
    """Give the bin of `rules.scaled_bins`.

    Beside a power of two the logarithm may be rounded to the wrong exponent: the digits then are
    one power more or less, so the bin is the same.
    """
    from pyspark.sql import functions as F

    size, least, per_power = (
        F.abs(double),
        scaled_bins.MIN_SCALED_EXPONENT,
        scaled_bins.BINS_PER_POWER,
    )
    power = F.least(F.floor(F.log2(size)), F.lit(sys.float_info.max_exp - 1)).cast("double")
    digits = F.floor(size / F.pow(F.lit(2.0), power) * per_power)
    number = (power.cast("bigint") - least) * per_power + digits - per_power + 1
    signed = F.when(double < 0, -number).otherwise(number)
    return F.when(size < 2.0**least, F.lit(0).cast("bigint")).otherwise(signed)


def text_of(column: DiffColumn) -> Column:
    """Give a text that is different for different values."""
    from pyspark.sql import functions as F

    value = F.col(column.slot)
    kinds = {each.typeName() for each in (column.old, column.new) if each is not None}
    if column.is_nested:
        return F.when(value.isNotNull(), F.to_json(F.struct(value)))
    return F.base64(value) if "binary" in kinds else value.cast("string")
