"""Histograms, moments, and the PSI and KS distances of columns.

They measure how far a column's values moved between the old and the new side of a diff: the
population stability index (PSI) for categories, the Kolmogorov-Smirnov distance (KS) for numbers.
Both engines supply the same exact counts and moments, so both report the same numbers.

Numbers are counted in two kinds of bins. Equal-width bins are as wide as a power of two: such bins
nest, so counts of disjoint rows can be added whatever range each part has, and no value is kept.
One value far away makes them so wide that all other values share one bin. Therefore numbers are
counted in scaled bins too, and the greater of the two distances counts.

A scaled bin follows from the number alone: it is as narrow as the number is small, so one number
far from all others does not widen the bins of the others. There are 256 from each power of two to
the next, on both sides of zero; everything below 2^-64 counts as zero. In a double's bits, a bin is
the exponent and the first 8 digits after it.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, repeat
from typing import Any, Literal

from lakehouse_backfill.domain.checks import CheckResult, ColumnDiff, Distribution, DistributionBar
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

    nulls: int = 0
    values: int = 0
    minimum: Any = None
    maximum: Any = None
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        lows = [each for each in (self.minimum, other.minimum) if each is not None]
        highs = [each for each in (self.maximum, other.maximum) if each is not None]
        return Moments(
            nulls=self.nulls + other.nulls,
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


def describe_numbers(moments: Moments) -> dict[str, Any]:
    """Return `nulls`, `min`, `max` and `mean` (nine significant digits) of a number column."""
    mean = moments.mean
    return {
        "nulls": moments.nulls,
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


def population_shift(old: Mapping[str, int], new: Mapping[str, int]) -> float | None:
    """Return the population stability index over the categories, six decimals.

    The 20 most frequent categories of both sides together are separate groups, the rest is one
    group; an empty share counts as 0.0001. None when a side has no rows.
    """
    if not sum(old.values()) or not sum(new.values()):
        return None
    return stability_index(group_categories(old, new))


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
MIN_SCALED_EXPONENT = -64
#: The digits of a double that a bin drops, and the offset subtracted from the rest.
DROPPED_BITS = 52 - BIN_DIGITS
#: Entries of the cache: the bins of several number columns, looked up batch after batch.
BIN_CACHE_SIZE = 16_384
SCALED_BIN_OFFSET = (1023 + MIN_SCALED_EXPONENT) * BINS_PER_POWER - 1


def scaled_bin(value: float) -> int:
    """Return the bin of a finite number: 0 for zero, and negative for negative numbers."""
    mantissa, power = math.frexp(abs(value))
    if power - 1 < MIN_SCALED_EXPONENT or not value:
        return 0
    number = (
        (power - 1 - MIN_SCALED_EXPONENT) * BINS_PER_POWER
        + math.floor(mantissa * 2 * BINS_PER_POWER)
        - BINS_PER_POWER
        + 1
    )
    return number if value > 0 else -number


def scaled_bin_start(number: int) -> float:
    """Return where a bin begins; it ends where the next one begins."""
    if number < 0:
        return -scaled_bin_start(1 - number)
    if not number:
        return 0.0
    power, digits = divmod(number - 1, BINS_PER_POWER)
    if power + MIN_SCALED_EXPONENT >= sys.float_info.max_exp:
        return sys.float_info.max
    return math.ldexp(1 + digits / BINS_PER_POWER, power + MIN_SCALED_EXPONENT)


def are_scaled_bins_finer(exponent: int, low: Any, high: Any) -> bool:
    """Return whether each scaled bin from low to high is inside one bin of width 2^exponent.

    Both kinds begin at multiples of powers of two, so a bin that is no wider is inside. Bins of
    negative numbers end where equal-width bins begin, so they are not.
    """
    if low < 0 or exponent < MIN_SCALED_EXPONENT:
        return False
    return exponent >= math.frexp(float(high))[1] - 1 - BIN_DIGITS


@lru_cache(maxsize=BIN_CACHE_SIZE)
def equal_width_bin(number: int, exponent: int) -> int:
    """Return the bin of width 2^exponent that holds a scaled bin of non-negative numbers.

    The scaled bin must be no wider. Both begin at multiples of powers of two, so it is inside as a
    whole.
    """
    if not number:
        return 0
    power, digits = divmod(number - 1, BINS_PER_POWER)
    return (BINS_PER_POWER + digits) >> (exponent + BIN_DIGITS - MIN_SCALED_EXPONENT - power)


#: From this index on, categories count as shifted (a PSI above 0.2 is regarded as significant).
PSI_LIMIT = 0.2
#: Up to this distance of cumulative shares numbers count as unchanged, however many rows.
KS_LIMIT = 0.1
#: Quantiles that chance alone exceeds once in a thousand times.
_KS_CHANCE, _NORMAL_CHANCE = 1.949, 3.09
#: Maximum bins in which numbers of one column are counted, and bars in which they are drawn.
MAX_BINS, MAX_BARS = 256, 32
#: Columns of one diff whose bars are kept.
MAX_COLUMNS_WITH_BARS = 24
#: The widest range of doubles needs 2^1018.
_MIN_EXPONENT, _MAX_EXPONENT = -1000, 1020
_EXACT_BITS = 52


@dataclass
class Histogram:
    """Numbers counted in bins: `bins[n]` are those in `[n * 2^exponent, (n + 1) * 2^exponent)`.

    The exponent follows from the range of the numbers, `low` to `high`. `scaled` holds the same
    numbers in scaled bins.
    """

    low: float = math.inf
    high: float = -math.inf
    bins: Counter[int] = field(default_factory=Counter)
    scaled: Counter[int] = field(default_factory=Counter)

    @property
    def exponent(self) -> int:
        """Return the exponent of the bin width."""
        return bin_exponent(self.low, self.high) if self.bins else _MIN_EXPONENT

    def add(
        self, low: Any, high: Any, counted: Mapping[int, int], scaled: Mapping[int, int]
    ) -> None:
        """Add other rows with numbers from low to high, counted in the bins of that range."""
        if not counted:
            return
        own_exponent, other_exponent = self.exponent, bin_exponent(low, high)
        first, last = min(self.low, float(low)), max(self.high, float(high))
        exponent = bin_exponent(first, last)
        self.bins = Counter(coarsen_bins(self.bins, exponent - own_exponent))
        self.bins.update(coarsen_bins(counted, exponent - other_exponent))
        self.scaled.update(scaled)
        self.low, self.high = first, last

    def counts_at(self, exponent: int) -> Counter[int]:
        """Return the counts in bins that are at least as wide as its own."""
        return Counter(coarsen_bins(self.bins, exponent - self.exponent))


@dataclass(frozen=True)
class _BinnedSides:
    """Both sides counted in the same bins; `bin_start` returns where a bin begins."""

    old: Counter[int]
    new: Counter[int]
    bin_start: Callable[[int], float]

    @cached_property
    def distance(self) -> float:
        """Return the greatest distance of the cumulative shares."""
        if dict(self.old) == dict(self.new):
            return 0.0
        old_rows, new_rows = self.old.total(), self.new.total()
        numbers = sorted(self.old.keys() | self.new.keys())
        sides = (accumulate(map(side.get, numbers, repeat(0))) for side in (self.old, self.new))
        pairs = zip(*sides, strict=True)
        return float(max(abs(old / old_rows - new / new_rows) for old, new in pairs))

    def is_concentrated(self, *, whole: bool) -> bool:
        """Return whether one of several bins, of many values, holds nearly all of both sides."""
        fullest, rows = self.old.most_common(1)[0]
        if len({*self.old, *self.new}) == 1:
            return False
        min_share = min(rows / self.old.total(), self.new[fullest] / self.new.total())
        low, high = self.bin_start(fullest), self.bin_start(fullest + 1)
        is_one_value = not low and high <= 2.0**MIN_SCALED_EXPONENT
        return min_share > 1 - KS_LIMIT and not is_one_value and not (whole and high - low <= 1)

    def bars(self) -> tuple[DistributionBar, ...]:
        """Return the shares of both sides in a few wider bins, from the lowest to the highest."""
        shift, numbers_seen = 0, {*self.old, *self.new}
        first, last = min(numbers_seen), max(numbers_seen)
        while (last >> shift) - (first >> shift) >= MAX_BARS:
            shift += 1
        old, new = coarsen_bins(self.old, shift), coarsen_bins(self.new, shift)
        sizes = self.old.total(), self.new.total()
        numbers = range(first >> shift, (last >> shift) + 1)
        return tuple(
            DistributionBar(
                name=f"{self.bin_start(number << shift):.6g}",
                low=self.bin_start(number << shift), high=self.bin_start((number + 1) << shift),
                old=_share(old.get(number, 0), sizes[0]),
                new=_share(new.get(number, 0), sizes[1]),
            )
            for number in numbers
        )  # fmt: skip


def bin_exponent(low: Any, high: Any) -> int:
    """Return the exponent of the narrowest bins of which numbers from low to high fill 256."""
    first, last = float(low), float(high)
    biggest = max(abs(first), abs(last))
    lowest = max(_MIN_EXPONENT, math.frexp(biggest)[1] - _EXACT_BITS) if biggest else _MIN_EXPONENT
    spread = last / 2 - first / 2
    exponent = max(lowest, math.frexp(spread)[1] - 10 if spread else _MIN_EXPONENT)
    while (
        exponent < _MAX_EXPONENT
        and _equal_bin_number(last, exponent) - _equal_bin_number(first, exponent) >= MAX_BINS
    ):
        exponent += 1
    return exponent


def coarsen_bins(counted: Mapping[int, int], by: int) -> dict[int, int]:
    """Return counts in bins that are 2^by times as wide."""
    if by <= 0:
        return dict(counted)
    coarse: dict[int, int] = {}
    by = min(by, 4096)
    for number, rows in counted.items():
        wide = number >> by
        coarse[wide] = coarse.get(wide, 0) + rows
    return coarse


def number_distribution(
    old: Histogram, new: Histogram, *, draw: bool = True, whole: bool = False
) -> Distribution | None:
    """Return the two-sample Kolmogorov-Smirnov distance over the bins; None without numbers.

    It never exceeds that of the values themselves; it is smaller at most by the share of rows in
    the fullest bin. Where that bin holds nearly all of both sides, the result is marked as
    unjudged. Exceptions: bins of `whole` numbers no wider than 1 hold one value, and a column that
    is not drawn did not move.
    """
    if not old.bins or not new.bins:
        return None
    exponent = bin_exponent(min(old.low, new.low), max(old.high, new.high))
    equal = _BinnedSides(
        old.counts_at(exponent),
        new.counts_at(exponent),
        lambda number: _equal_bin_start(number, exponent),
    )
    scales = (equal, _BinnedSides(old.scaled, new.scaled, scaled_bin_start))
    chosen = max(scales, key=lambda scale: scale.distance)
    by_chance = _KS_CHANCE * math.sqrt(1 / old.bins.total() + 1 / new.bins.total())
    distribution = Distribution(
        test="ks",
        value=round(chosen.distance, 6),
        limit=round(min(1.0, max(KS_LIMIT, by_chance)), 6),
        bars=chosen.bars() if draw else (),
    )
    is_blind = (
        draw
        and not distribution.is_shifted
        and all(scale.is_concentrated(whole=whole) for scale in scales)
    )
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
    )


def _equal_bin_number(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


def _share(rows: int, of: int) -> float:
    return round(rows / of, 6)


def _equal_bin_start(number: int, exponent: int) -> float:
    return number * 2.0**exponent


def _chi_square(freedom: int) -> float:
    """Return what a chi-square variable exceeds once in a thousand times.

    Source: Wilson and Hilferty, 1931.
    """
    if freedom < 1:
        return 0.0
    step = 2 / (9 * freedom)
    return float(freedom * (1 - step + _NORMAL_CHANCE * math.sqrt(step)) ** 3)
