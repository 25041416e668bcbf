"""Histograms, moments, and the PSI and KS distances of columns.

They measure how far a column's values moved between the old and the new side of a diff: the
population stability index (PSI) for categories, the Kolmogorov-Smirnov distance (KS) for numbers.
Both engines supply the same exact counts and moments, so both report the same numbers.

Numbers are counted in bins by their distance from an origin, which is one number for all rows of a
column. So counts of disjoint rows can be added, and no value is kept. There are 256 bins from each
power of two to the next, on both sides of the origin; a distance below 2^-64 counts as zero. In a
double's bits, a bin is the exponent and the first 8 digits after it.

A bin is as narrow as the distance is small: one number far from all others does not widen the bins
of the others. The origin is the least number of a column above zero, or the greatest below zero. So
no bin is wider than a 256th of the range, wherever the range lies.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.comparison.diff import ColumnDiff, Distribution, DistributionBar
from lakehouse_backfill.domain.serialization import to_json_value

#: Columns with more distinct values than this on a side are not counted value by value.
MAX_CATEGORIES = 1000
TOP_CATEGORIES = 20
_EPSILON = 1e-4


@dataclass(frozen=True)
class Moments:
    """Exact moments of one number column on one side; NaN and nulls are not among `values`.

    Sums may be added over disjoint sets of rows.
    """

    values: int = 0
    minimum: Any = None
    maximum: Any = None
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        lows = [each for each in (self.minimum, other.minimum) if each is not None]
        highs = [each for each in (self.maximum, other.maximum) if each is not None]
        return Moments(
            values=self.values + other.values,
            minimum=min(lows, default=None),
            maximum=max(highs, default=None),
            total=self.total + other.total,
            squares=self.squares + other.squares,
        )

    @property
    def mean(self) -> float | None:
        """Return the mean, None without values."""
        return self.total / self.values if self.values else None

    @property
    def deviation(self) -> float | None:
        """Return the population standard deviation, None without values."""
        if self.mean is None:
            return None
        return math.sqrt(max(0.0, self.squares / self.values - self.mean * self.mean))


def describe_numbers(moments: Moments, nulls: int) -> dict[str, Any]:
    """Return `nulls`, `min`, `max` and `mean` (nine significant digits) of a number column."""
    mean = moments.mean
    return {
        "nulls": nulls,
        "min": to_json_value(moments.minimum),
        "max": to_json_value(moments.maximum),
        "mean": None if mean is None else to_json_value(float(f"{mean:.9g}")),
    }


def mean_shift(old: Moments, new: Moments) -> float | None:
    """Return |mean_new - mean_old| in standard deviations of the old side, six decimals.

    None where it is undefined: a side without values, infinities, or a constant old side whose mean
    moved.
    """
    if old.mean is None or new.mean is None or old.deviation is None:
        return None
    distance = abs(new.mean - old.mean)
    if not math.isfinite(distance) or not math.isfinite(old.deviation):
        return None
    # Sums of squares cancel: a deviation this small against the mean is rounding noise.
    if old.deviation <= 1e-7 * max(1.0, abs(old.mean)):
        return 0.0 if distance <= 1e-9 * max(1.0, abs(old.mean)) else None
    return round(distance / old.deviation, 6)


def group_categories(old: Mapping[str, int], new: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return name and rows of the most frequent categories, and of all others together."""
    both = {name: old.get(name, 0) + new.get(name, 0) for name in {*old, *new}}
    top = sorted(both, key=lambda name: (-both[name], name))[:TOP_CATEGORIES]
    groups = [(name, old.get(name, 0), new.get(name, 0)) for name in top]
    if len(both) > len(top):
        rest = [sum(side.values()) for side in (old, new)]
        groups.append(
            ("others", rest[0] - sum(g[1] for g in groups), rest[1] - sum(g[2] for g in groups))
        )
    return groups


def stability_index(groups: list[tuple[str, int, int]]) -> float:
    """Return the population stability index of groups of rows, six decimals."""
    old_rows, new_rows = sum(one for _, one, _ in groups), sum(one for _, _, one in groups)
    index = 0.0
    for _, old_count, new_count in groups:
        before = max(old_count / old_rows, _EPSILON)
        after = max(new_count / new_rows, _EPSILON)
        index += (after - before) * math.log(after / before)
    return round(index, 6)


#: Binary digits of a double in a bin besides the exponent, and the number of bins they make.
BIN_DIGITS = 8
BINS_PER_POWER = 1 << BIN_DIGITS
#: The least exponent that is distinguished from zero.
MIN_BIN_EXPONENT = -64
#: The digits of a double that a bin drops, and the offset subtracted from the rest.
DROPPED_BITS = 52 - BIN_DIGITS
BIN_OFFSET = (1023 + MIN_BIN_EXPONENT) * BINS_PER_POWER - 1


def bin_of(distance: float) -> int:
    """Return the bin of a distance: 0 for what is next to the origin, negative below it."""
    mantissa, power = math.frexp(abs(distance))
    if not distance or power - 1 < MIN_BIN_EXPONENT:
        return 0
    digits = mantissa * 2 * BINS_PER_POWER
    first = (power - 1 - MIN_BIN_EXPONENT) * BINS_PER_POWER + 1 - BINS_PER_POWER
    # A bin ends before the next one begins, on both sides of the origin.
    return first + math.floor(digits) if distance > 0 else 1 - first - math.ceil(digits)


def bin_start(number: int) -> float:
    """Return the distance at which a bin begins; it ends where the next one begins."""
    if number < 0:
        return -bin_start(1 - number)
    if not number:
        return 0.0
    power, digits = divmod(number - 1, BINS_PER_POWER)
    if power + MIN_BIN_EXPONENT >= sys.float_info.max_exp:
        return sys.float_info.max
    return math.ldexp(1 + digits / BINS_PER_POWER, power + MIN_BIN_EXPONENT)


def _bar_edge(bar: int, exponent: int) -> float:
    """Return where a bar begins; the edge beyond the largest doubles is the largest one."""
    try:
        return math.ldexp(bar, exponent)
    except OverflowError:
        return math.copysign(sys.float_info.max, bar)


def _finite(number: float) -> float:
    return max(-sys.float_info.max, min(number, sys.float_info.max))


#: From this index on, categories count as shifted (a PSI above 0.2 is regarded as significant).
PSI_LIMIT = 0.2
#: Up to this distance of cumulative shares numbers count as unchanged, however many rows.
KS_LIMIT = 0.1
#: Quantiles that chance alone exceeds once in a thousand times.
_KS_CHANCE, _NORMAL_CHANCE = 1.949, 3.09
#: Maximum bars in which the numbers of one column are drawn.
MAX_BARS = 32
#: The share of a side's rows that the outermost bar may hold from beyond its own width.
_TAIL_SHARE = 0.01
#: Columns of one diff whose bars are kept.
MAX_COLUMNS_WITH_BARS = 24


@dataclass(frozen=True)
class _CumulativeBins:
    """The filled bins of both sides in order, and the rows of each side up to each bin."""

    numbers: list[int]
    old: list[int]
    new: list[int]

    def distance(self) -> float:
        """Return the greatest distance of the cumulative shares."""
        old_rows, new_rows = self.old[-1], self.new[-1]
        pairs = zip(self.old, self.new, strict=True)
        return max(abs(old / old_rows - new / new_rows) for old, new in pairs)

    def bars(self, origin: float) -> tuple[DistributionBar, ...]:
        """Return the shares of both sides in bars of one width, from the lowest to the highest.

        The width is a power of two. The outermost bars also hold the few numbers beyond them, so
        that numbers far away do not make the bars of all others too wide.
        """
        exponent, first, last = self._scale()
        edges = [_bar_edge(bar, exponent) for bar in range(first, last + 2)]
        ends = [bisect_left(self.numbers, bin_of(edge)) for edge in edges[1:-1]]
        edges[0] = min(edges[0], bin_start(self.numbers[0]))
        edges[-1] = max(edges[-1], bin_start(self.numbers[-1] + 1))
        sides = []
        for cumulative in (self.old, self.new):
            rows = [0, *(cumulative[end - 1] if end else 0 for end in ends), cumulative[-1]]
            sides.append([_share(high - low, rows[-1]) for low, high in pairwise(rows)])
        return tuple(
            DistributionBar(name=f"{low:.6g}", low=low, high=high, old=old, new=new)
            for (low, high), old, new in zip(
                pairwise(_finite(origin + edge) for edge in edges), *sides, strict=True
            )
        )

    def _scale(self) -> tuple[int, int, int]:
        """Return the exponent of a bar's width, and the first and the last bar."""
        tails = [
            (
                bisect_right(side, _TAIL_SHARE * side[-1]),
                bisect_left(side, (1 - _TAIL_SHARE) * side[-1]),
            )
            for side in (self.old, self.new)
        ]
        lowest = self.numbers[min(low for low, _ in tails)]
        highest = self.numbers[max(high for _, high in tails)]
        # No bar is narrower than a bin, so that each bin is in one bar.
        exponent = math.frexp(max(_bin_width(lowest), _bin_width(highest)))[1] - 1
        while True:
            first, last = (
                math.floor(math.ldexp(bin_start(number), -exponent)) for number in (lowest, highest)
            )
            if last - first < MAX_BARS:
                return exponent, first, last
            exponent += 1


def _bin_width(number: int) -> float:
    return bin_start(number + 1) - bin_start(number)


def _is_concentrated(old: Mapping[int, int], new: Mapping[int, int], *, whole: bool) -> bool:
    """Return whether one of several bins, of many values, holds nearly all of both sides."""
    fullest = max(old, key=lambda number: old[number])
    if len({*old, *new}) == 1:
        return False
    shares = old[fullest] / sum(old.values()), new.get(fullest, 0) / sum(new.values())
    is_one_value = not fullest or (whole and _bin_width(fullest) <= 1)
    return min(shares) > 1 - KS_LIMIT and not is_one_value


def number_distribution(
    old: Mapping[int, int],
    new: Mapping[int, int],
    *,
    origin: float = 0.0,
    draw: bool = True,
    whole: bool = False,
) -> Distribution | None:
    """Return the two-sample Kolmogorov-Smirnov distance over the bins; None without numbers.

    It never exceeds that of the values themselves; it is smaller at most by the share of rows in
    the fullest bin. Where that bin holds nearly all of both sides, the result is marked as
    unjudged. Exceptions: bins of `whole` numbers no wider than 1 hold one value, and a column that
    is not drawn did not move.
    """
    if not old or not new:
        return None
    numbers = sorted(old.keys() | new.keys())
    sides = (list(accumulate(side.get(each, 0) for each in numbers)) for side in (old, new))
    bins = _CumulativeBins(numbers, *sides)
    by_chance = _KS_CHANCE * math.sqrt(1 / bins.old[-1] + 1 / bins.new[-1])
    distribution = Distribution(
        test="ks",
        value=round(bins.distance(), 6),
        limit=round(min(1.0, max(KS_LIMIT, by_chance)), 6),
        bars=bins.bars(origin) if draw else (),
    )
    is_blind = draw and not distribution.is_shifted and _is_concentrated(old, new, whole=whole)
    return distribution.model_copy(update={"is_unjudged": True}) if is_blind else distribution


def category_distribution(
    old: Mapping[str, int], new: Mapping[str, int], *, draw: bool = True
) -> Distribution | None:
    """Return the population stability index; None when a side has no rows.

    With few rows, chance alone gives an index of about bins times (1/old + 1/new). The limit is
    never below what chance exceeds once in a thousand times.
    """
    rows = sum(old.values()), sum(new.values())
    if not all(rows):
        return None
    groups = group_categories(old, new)
    by_chance = (1 / rows[0] + 1 / rows[1]) * _chi_square(len(groups) - 1)
    bars = (
        DistributionBar(
            name=name.removeprefix("="), old=_share(one, rows[0]), new=_share(other, rows[1])
        )
        for name, one, other in groups
    )
    return Distribution(
        test="psi",
        value=stability_index(groups),
        limit=round(max(PSI_LIMIT, by_chance), 6),
        bars=tuple(bars) if draw else (),
    )


def limit_columns_with_bars(columns: tuple[ColumnDiff, ...]) -> tuple[ColumnDiff, ...]:
    """Keep the bars of the columns that moved most.

    The bars of all columns of a wide table would be megabytes.
    """
    moved = [
        (-found.value / found.limit, column.name)
        for column in columns
        if (found := column.distribution) is not None and found.bars
    ]
    kept = {name for _, name in sorted(moved)[:MAX_COLUMNS_WITH_BARS]}
    return tuple(
        column
        if column.distribution is None or column.name in kept
        else column.model_copy(
            update={"distribution": column.distribution.model_copy(update={"bars": ()})}
        )
        for column in columns
    )


def check_distributions(
    columns: Iterable[ColumnDiff], gate: Literal["report", "block"]
) -> CheckResult:
    """Check the distributions of columns; the detail names those that shifted."""
    known = [
        (column.name, column.distribution) for column in columns if column.distribution is not None
    ]
    moved = [(name, found) for name, found in known if found.is_shifted]
    moved.sort(key=lambda each: each[1].limit / each[1].value)
    shifted = [
        f"{name} ({shift.test.upper()} {shift.value:.3g} over {shift.limit:.3g})"
        for name, shift in moved
    ]
    unjudged = [name for name, found in known if found.is_unjudged]
    text = f"{len(moved)} of {len(known)} columns shifted"
    text += f": {', '.join(shifted)}" if shifted else ""
    if unjudged:
        text += f"; not judged: {', '.join(unjudged)} (one range holds nearly all values)"
    return CheckResult(
        name="values are spread as before",
        group="distribution",
        passed=not moved,
        detail=text if known else "nothing to compare",
        observed=len(moved),
        limit=0,
        blocking=gate == "block",
        judged=len(unjudged) < len(known),
    )


def _share(rows: int, of: int) -> float:
    return round(rows / of, 6)


def _chi_square(freedom: int) -> float:
    """Return what a chi-square variable exceeds once in a thousand times.

    Source: Wilson and Hilferty, 1931.
    """
    if freedom < 1:
        return 0.0
    step = 2 / (9 * freedom)
    return float(freedom * (1 - step + _NORMAL_CHANCE * math.sqrt(step)) ** 3)
