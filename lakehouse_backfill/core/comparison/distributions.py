"""Whether the values of a column are spread as they were: PSI for categories, KS for numbers.

Both engines hand in the same exact counts, so both report the same numbers. Numbers are counted in
bins as wide as a power of two: such bins nest, so counts of parts of the rows can be added up
whatever range each part has, and no value has to be kept. One value far away would make them
so wide that all others share one: so numbers are counted in `scaled_bins`, too, and the greater
distance counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, repeat
from typing import Any, Literal

from lakehouse_backfill.core.comparison import scaled_bins
from lakehouse_backfill.core.comparison.drift import group_categories, stability_index
from lakehouse_backfill.domain.checks import CheckResult, ColumnDiff
from lakehouse_backfill.domain.watched import Distribution, DistributionBar

#: From this index on, categories count as shifted (with PSI, above 0.2 is taken as significant).
PSI_LIMIT = 0.2
#: Numbers whose cumulative shares are never farther apart are spread as before, however many.
KS_LIMIT = 0.1
#: One in a thousand: what chance alone may exceed.
_KS_CHANCE, _NORMAL_CHANCE = 1.949, 3.09
#: Numbers of one column are counted in at most so many bins, and drawn in so many.
MAX_BINS, MAX_BARS = 256, 32
#: Columns of one diff whose bars are kept.
MAX_COLUMNS_WITH_BARS = 24
#: The widest numbers there are need 2^1018.
_MIN_EXPONENT, _MAX_EXPONENT = -1000, 1020
_EXACT_BITS = 52


@dataclass
class Histogram:
    """Numbers counted in bins: `bins[n]` are those in `[n * 2^exponent, (n + 1) * 2^exponent)`.

    The exponent is that of the numbers' range, from `low` to `high`. `scaled` are the same numbers
    in `scaled_bins`.
    """

    low: float = math.inf
    high: float = -math.inf
    bins: Counter[int] = field(default_factory=Counter)
    scaled: Counter[int] = field(default_factory=Counter)

    @property
    def exponent(self) -> int:
        """How wide its bins are."""
        return bin_exponent(self.low, self.high) if self.bins else _MIN_EXPONENT

    def add(
        self, low: Any, high: Any, counted: Mapping[int, int], scaled: Mapping[int, int]
    ) -> None:
        """Add other rows with numbers from low to high, counted in the bins of that range."""
        if not counted:
            return
        before, theirs = self.exponent, bin_exponent(low, high)
        first, last = min(self.low, float(low)), max(self.high, float(high))
        wide = bin_exponent(first, last)
        self.bins = Counter(coarsen_bins(self.bins, wide - before))
        self.bins.update(coarsen_bins(counted, wide - theirs))
        self.scaled.update(scaled)
        self.low, self.high = first, last

    def at(self, exponent: int) -> Counter[int]:
        """Give the counts in bins that are at least as wide as its own."""
        return Counter(coarsen_bins(self.bins, exponent - self.exponent))


@dataclass(frozen=True)
class _BinnedSides:
    """Both sides counted in the same bins; `low` tells where a bin begins."""

    old: Counter[int]
    new: Counter[int]
    low: Callable[[int], float]

    @cached_property
    def distance(self) -> float:
        """The greatest distance of the cumulative shares."""
        if dict(self.old) == dict(self.new):
            return 0.0
        old_rows, new_rows = self.old.total(), self.new.total()
        numbers = sorted(self.old.keys() | self.new.keys())
        sides = (accumulate(map(side.get, numbers, repeat(0))) for side in (self.old, self.new))
        pairs = zip(*sides, strict=True)
        return float(max(abs(old / old_rows - new / new_rows) for old, new in pairs))

    def is_blind(self, *, whole: bool) -> bool:
        """Tell whether one bin of many values, not the only one, holds nearly all of both sides."""
        fullest, rows = self.old.most_common(1)[0]
        if len({*self.old, *self.new}) == 1:
            return False
        least = min(rows / self.old.total(), self.new[fullest] / self.new.total())
        low, high = self.low(fullest), self.low(fullest + 1)
        is_one_value = not low and high <= 2.0**scaled_bins.MIN_SCALED_EXPONENT
        return least > 1 - KS_LIMIT and not is_one_value and not (whole and high - low <= 1)

    def bars(self) -> tuple[DistributionBar, ...]:
        """Give the shares of both sides in a few wider bins, from the lowest to the highest."""
        by, every = 0, {*self.old, *self.new}
        first, last = min(every), max(every)
        while (last >> by) - (first >> by) >= MAX_BARS:
            by += 1
        old, new = coarsen_bins(self.old, by), coarsen_bins(self.new, by)
        sizes = self.old.total(), self.new.total()
        numbers = range(first >> by, (last >> by) + 1)
        return tuple(
            DistributionBar(
                name=f"{self.low(number << by):.6g}",
                low=self.low(number << by), high=self.low((number + 1) << by),
                old=_share(old.get(number, 0), sizes[0]),
                new=_share(new.get(number, 0), sizes[1]),
            )
            for number in numbers
        )  # fmt: skip


def bin_exponent(low: Any, high: Any) -> int:
    """Give the exponent of the narrowest bins of which the numbers from low to high fill 256."""
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
    """Give counts in bins that are 2^by times as wide."""
    if by <= 0:
        return dict(counted)
    found: dict[int, int] = {}
    by = min(by, 4096)
    for number, rows in counted.items():
        wide = number >> by
        found[wide] = found.get(wide, 0) + rows
    return found


def number_distribution(
    old: Histogram, new: Histogram, *, draw: bool = True, whole: bool = False
) -> Distribution | None:
    """Give the two-sample Kolmogorov-Smirnov distance over the bins; None without numbers.

    It never exceeds that of the values themselves; it is smaller at most by the share of rows in
    the fullest bin. Where that is nearly all of both sides, it is said that nothing is judged
    (bins of `whole` numbers no wider than 1 hold one value; of a column that is not drawn nothing
    moved).
    """
    if not old.bins or not new.bins:
        return None
    exponent = bin_exponent(min(old.low, new.low), max(old.high, new.high))
    equal = _BinnedSides(
        old.at(exponent), new.at(exponent), lambda number: _equal_bin_start(number, exponent)
    )
    scales = (equal, _BinnedSides(old.scaled, new.scaled, scaled_bins.scaled_bin_start))
    chosen = max(scales, key=lambda scale: scale.distance)
    by_chance = _KS_CHANCE * math.sqrt(1 / old.bins.total() + 1 / new.bins.total())
    found = Distribution(
        test="ks",
        value=round(chosen.distance, 6),
        limit=round(min(1.0, max(KS_LIMIT, by_chance)), 6),
        bars=chosen.bars() if draw else (),
    )
    is_blind = (
        draw and not found.is_shifted and all(scale.is_blind(whole=whole) for scale in scales)
    )
    return found.model_copy(update={"is_unjudged": True}) if is_blind else found


def category_distribution(
    old: Mapping[str, int], new: Mapping[str, int], *, draw: bool = True
) -> Distribution | None:
    """Give the population stability index; None when a side has no rows.

    With few rows chance alone gives an index of about bins times (1/old + 1/new): the limit is
    never below what it exceeds once in a thousand times.
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
    """Keep the bars of the columns that moved most: those of a wide table would be megabytes."""
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
    """Name the columns whose values are spread otherwise than before."""
    known = [(one.name, one.distribution) for one in columns if one.distribution is not None]
    moved = [(name, found) for name, found in known if found.is_shifted]
    moved.sort(key=lambda each: each[1].limit / each[1].value)
    said = [f"{name} ({f.test.upper()} {f.value:.3g} over {f.limit:.3g})" for name, f in moved]
    unjudged = [name for name, found in known if found.is_unjudged]
    text = f"{len(moved)} of {len(known)} columns shifted"
    text += f": {', '.join(said)}" if said else ""
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
    """What a chi-square variable exceeds once in a thousand times (Wilson and Hilferty, 1931)."""
    if freedom < 1:
        return 0.0
    step = 2 / (9 * freedom)
    return float(freedom * (1 - step + _NORMAL_CHANCE * math.sqrt(step)) ** 3)
