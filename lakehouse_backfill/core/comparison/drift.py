"""How far a column's distribution moved between the old and the new side of a diff.

Both engines hand in the same exact counts and moments, so both report the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.domain.plain import to_json_value

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
        """The mean, None without values."""
        return self.total / self.values if self.values else None

    @property
    def deviation(self) -> float | None:
        """The population standard deviation, None without values."""
        if self.mean is None:
            return None
        return math.sqrt(max(0.0, self.squares / self.values - self.mean * self.mean))


def describe_numbers(moments: Moments) -> dict[str, Any]:
    """Give `nulls`, `min`, `max` and `mean` (nine significant digits) of a number column."""
    mean = moments.mean
    return {
        "nulls": moments.nulls,
        "min": to_json_value(moments.minimum),
        "max": to_json_value(moments.maximum),
        "mean": None if mean is None else to_json_value(float(f"{mean:.9g}")),
    }


def mean_shift(old: Moments, new: Moments) -> float | None:
    """Give |mean_new - mean_old| in standard deviations of the old side, six decimals.

    None where it is undefined: a side without values, infinities, or a constant old side whose
    mean moved.
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
    """Give the population stability index over the categories, six decimals.

    The 20 most frequent categories of both sides together stand alone, the rest are one; an empty
    share counts as 0.0001. None when a side has no rows.
    """
    if not sum(old.values()) or not sum(new.values()):
        return None
    return stability_index(group_categories(old, new))


def group_categories(old: Mapping[str, int], new: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Give name and rows of the most frequent categories, and of all others together."""
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
    """Give the population stability index of groups of rows, six decimals."""
    old_rows, new_rows = sum(one for _, one, _ in groups), sum(one for _, _, one in groups)
    index = 0.0
    for _, old_count, new_count in groups:
        before = max(old_count / old_rows, _EPSILON)
        after = max(new_count / new_rows, _EPSILON)
        index += (after - before) * math.log(after / before)
    return round(index, 6)
