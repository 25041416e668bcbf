"""Bins, distances and shifts of columns."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.comparison import distributions
from lakehouse_backfill.core.comparison.distributions import (
    BINS_PER_POWER,
    Moments,
    bin_of,
    bin_start,
    describe_numbers,
    mean_shift,
)
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.comparison.diff import ColumnDiff, Distribution, DistributionBar

pytestmark = pytest.mark.req("Q5")
NUMBERS = st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=60)


def distance(old: list[float], new: list[float], origin: float = 0.0, **options: bool) -> Any:
    bins = [Counter(bin_of(value - origin) for value in side) for side in (old, new)]
    return distributions.number_distribution(*bins, origin=origin, **options)


def exact(old: list[float], new: list[float]) -> float:
    """The two-sample distance over the values themselves."""
    return max(
        abs(sum(v <= x for v in old) / len(old) - sum(v <= x for v in new) / len(new))
        for x in [*old, *new]
    )


@given(NUMBERS, st.integers(0, 60))
def test_no_bin_is_wider_than_a_256th_of_the_range(values: list[float], place: int) -> None:
    values = [abs(value) + 1 for value in values]
    origin, value = min(values), values[place % len(values)]
    number = bin_of(value - origin)
    width = bin_start(number + 1) - bin_start(number)
    assert value == origin or width <= (max(values) - origin) / BINS_PER_POWER


@given(NUMBERS, NUMBERS, st.floats(-1e9, 1e9))
def test_the_distance_never_exceeds_that_of_the_values(old, new, origin) -> None:
    found = distance(old, new, origin)
    assert found.value <= exact(old, new) + 1e-6


def test_numbers_in_bins_of_their_own_give_the_exact_distance() -> None:
    chance = random.Random(7)
    old = [float(chance.randrange(100)) for _ in range(500)]
    new = [float(chance.randrange(20, 120)) for _ in range(400)]
    found = distance(old, new)
    assert found.value == pytest.approx(exact(old, new), abs=1e-6)
    assert found.is_shifted


@pytest.mark.parametrize("seed", range(10))
def test_samples_of_one_distribution_are_not_shifted(seed: int) -> None:
    chance = random.Random(seed)
    sides = [[chance.gauss(0, 1) for _ in range(300)] for _ in range(2)]
    found = distance(*sides)
    assert not found.is_shifted


@pytest.mark.parametrize("far", [999_999_999.0, -999_999_999.0, 1.7e308])
def test_one_value_far_away_hides_no_shift(far: float) -> None:
    old = [float(n % 100) for n in range(10_000)]
    near = distance(old, [3 * v for v in old])
    found = distance(old, [*(3 * v for v in old), far])
    assert found.value == pytest.approx(near.value, abs=1e-2)
    assert (near.is_shifted, found.is_shifted, found.is_unjudged) == (True, True, False)


def test_what_one_range_holds_beside_a_value_far_away_is_named_as_not_judged() -> None:
    """Moments within a day, beside one 0: no bin tells them apart."""
    old = [1.7e9 + n for n in range(10_000)]
    new = [*(v + 5000 for v in old), 0.0]
    found = distance(old, new)
    assert (found.is_shifted, found.is_unjudged) == (False, True)
    column = ColumnDiff(name="at", changed=1, old={}, new={}, distribution=found)
    said = distributions.check_distributions([column], "block")
    assert said.detail == (
        "0 of 1 columns shifted; not judged: at (one range holds nearly all values)"
    )
    still = distance(old, old, draw=False)
    assert not still.is_unjudged


@pytest.mark.parametrize(
    ("value", "whole", "is_unjudged"), [(1.0, True, False), (0.0, False, False), (1.0, False, True)]
)
def test_a_bin_that_holds_one_value_is_judged(value: float, whole: bool, is_unjudged: bool) -> None:
    sides = [[value] * 9_900 + [float(n % 7) for n in range(100 + more)] for more in (0, 1)]
    found = distance(*sides, whole=whole)
    assert found.is_unjudged is is_unjudged


def test_a_shift_is_found_far_from_zero() -> None:
    """Moments within three hours, two hours later."""
    old = [1.7e9 + n for n in range(10_000)]
    found = distance(old, [value + 7200 for value in old], min(old))
    assert (found.value, found.is_shifted) == (pytest.approx(0.72, abs=0.01), True)


def test_few_rows_need_a_greater_distance() -> None:
    few = distance([1.0, 2, 3], [2.0, 3, 4])
    assert (few.limit, few.is_shifted) == (1.0, False)


def test_a_side_without_numbers_has_no_distance() -> None:
    assert distributions.number_distribution({bin_of(1.0): 1}, {}) is None
    assert distributions.category_distribution({}, {"=a": 1}) is None


@pytest.mark.parametrize("origin", [0.0, -100.0, 7.0])
def test_bars_are_shares_of_both_sides(origin: float) -> None:
    sides = [[origin + value for value in side] for side in ([0.0, 1, 1, 3], [1.0, 1])]
    found = distance(*sides, origin)
    shares = {bar.low: (bar.old, bar.new) for bar in found.bars if bar.old or bar.new}
    low, middle, high = (origin + value for value in (0.0, 1.0, 3.0))
    assert shares == {low: (0.25, 0.0), middle: (0.5, 1.0), high: (0.25, 0.0)}
    assert len(found.bars) <= distributions.MAX_BARS


def test_whole_numbers_below_zero_have_bars_that_begin_at_them() -> None:
    found = distance([-3.0, -2, -2, 2], [-3.0, 1, 1, 1])
    shares = {bar.low: (bar.old, bar.new) for bar in found.bars if bar.old or bar.new}
    assert shares == {-3.0: (0.25, 0.25), -2.0: (0.5, 0.0), 1.0: (0.0, 0.75), 2.0: (0.25, 0.0)}


@pytest.mark.parametrize("far", [1e12, -1e12])
def test_the_outermost_bars_hold_the_few_numbers_beyond_them(far: float) -> None:
    old = [float(n % 100) for n in range(10_000)]
    bars = distance(old, [*old[1:], far]).bars
    assert len(bars) >= 16
    assert sum(bar.new for bar in bars) == pytest.approx(1.0, abs=1e-4)
    assert bars[0].low <= min(far, 0.0)
    assert bars[-1].high >= max(far, 99.0)


def test_categories_are_compared_by_their_index() -> None:
    old, new = {"=a": 900, "=b": 100}, {"=a": 500, "=b": 500}
    found = distributions.category_distribution(old, new)
    index = round(0.4 * math.log(5) + 0.4 * math.log(9 / 5), 6)
    assert found == Distribution(
        test="psi", value=index, limit=0.2,
        bars=(
            DistributionBar(name="a", old=0.9, new=0.5),
            DistributionBar(name="b", old=0.1, new=0.5),
        ),
    )  # fmt: skip


def test_an_empty_share_counts_as_a_small_one() -> None:
    found = distributions.category_distribution({"=a": 5}, {"=b": 5})
    expected = (0.0001 - 1) * math.log(0.0001) + (1 - 0.0001) * math.log(1 / 0.0001)
    assert found.value == round(expected, 6)


def test_rare_categories_are_one_group() -> None:
    old = {f"={n}": 1000 for n in range(20)} | {f"=rare {n}": 1 for n in range(500)}
    new = {f"={n}": 1000 for n in range(20)} | {f"=other {n}": 1 for n in range(500)}
    found = distributions.category_distribution(old, new)
    assert (found.value, len(found.bars), found.bars[-1].name) == (0.0, 21, "others")


def test_an_index_that_chance_gives_with_few_rows_does_not_count() -> None:
    chance = random.Random(3)
    sides = [Counter(f"={chance.randrange(12)}" for _ in range(40)) for _ in range(2)]
    found = distributions.category_distribution(*sides)
    assert found.value > distributions.PSI_LIMIT
    assert not found.is_shifted


@pytest.mark.parametrize("gate", ["report", "block"])
def test_the_check_names_the_columns_that_moved_most_first(gate: str) -> None:
    columns = [
        ColumnDiff(name=name, changed=1, old={}, new={},
                   distribution=Distribution(test="ks", value=value, limit=0.1))
        for name, value in (("a", 0.05), ("b", 0.2), ("c", 0.9))
    ]  # fmt: skip
    assert distributions.check_distributions(columns, gate) == CheckResult(  # type: ignore[arg-type]
        name="values are spread as before", group="distribution", passed=False,
        detail="2 of 3 columns shifted: c (KS 0.9 over 0.1), b (KS 0.2 over 0.1)",
        observed=2, limit=0, blocking=gate == "block",
    )  # fmt: skip


def test_without_rows_on_a_side_nothing_is_said() -> None:
    found = distributions.check_distributions(
        [ColumnDiff(name="a", changed=0, old={}, new={})], "block"
    )
    assert (found.passed, found.detail) == (True, "nothing to compare")


def test_only_the_bars_of_the_columns_that_moved_most_are_kept() -> None:
    bars = (DistributionBar(name="a", old=1.0, new=1.0),)
    columns = tuple(
        ColumnDiff(name=f"c{n}", changed=1, old={}, new={},
                   distribution=Distribution(test="ks", value=n / 100, limit=0.1, bars=bars))
        for n in range(distributions.MAX_COLUMNS_WITH_BARS + 3)
    )  # fmt: skip
    found = distributions.limit_columns_with_bars(columns)
    bare = [c.name for c in found if c.distribution and not c.distribution.bars]
    assert bare == ["c0", "c1", "c2"]
    assert [c.distribution and c.distribution.value for c in found] == [
        c.distribution and c.distribution.value for c in columns
    ]


def moments(*values: float) -> Moments:
    squares = sum(value * value for value in values)
    low, high = (min(values), max(values)) if values else (None, None)
    return Moments(len(values), low, high, sum(values), squares)


@pytest.mark.req("Q5")
@pytest.mark.parametrize(
    ("old", "new", "shift"),
    [
        pytest.param(moments(1, 3), moments(2, 4), 1.0, id="one deviation"),
        pytest.param(moments(1, 3), moments(3, 1), 0.0, id="same values"),
        pytest.param(moments(5, 5), moments(5), 0.0, id="constant, same"),
        pytest.param(moments(5, 5), moments(6), None, id="constant, moved"),
        pytest.param(moments(), moments(6), None, id="no old values"),
        pytest.param(moments(1, 3), moments(), None, id="no new values"),
        pytest.param(moments(1e300, -1e300), moments(1e300), None, id="beyond doubles"),
    ],
)
def test_the_mean_moves_in_old_deviations(old: Moments, new: Moments, shift: float | None) -> None:
    assert mean_shift(old, new) == shift


@pytest.mark.req("Q5")
def test_moments_add_up_over_disjoint_rows() -> None:
    assert moments(1, 2) + moments(0.5) == moments(1, 2, 0.5)
    assert moments() + moments() == moments()


@pytest.mark.req("Q5")
def test_numbers_are_described_by_nulls_bounds_and_mean() -> None:
    expected = {"nulls": 1, "min": 1, "max": 2, "mean": 1.33333333}
    assert describe_numbers(moments(1, 1, 2), nulls=1) == expected
    assert describe_numbers(moments(), nulls=0) == {
        "nulls": 0,
        "min": None,
        "max": None,
        "mean": None,
    }


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE)
def test_bins_are_in_the_order_of_the_numbers(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert bin_of(low) <= bin_of(high)


@given(st.floats(2.0**-63, 1e308), st.sampled_from([1, -1]))
def test_a_number_lies_within_its_bin(size: float, sign: int) -> None:
    number = bin_of(sign * size)
    assert bin_start(number) <= sign * size < bin_start(number + 1)
    assert bin_start(number + 1) - bin_start(number) <= size / BINS_PER_POWER * 1.000_001


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, -(2.0**-65), math.nextafter(2.0**-64, 0)])
def test_what_is_next_to_zero_is_zero(value: float) -> None:
    assert bin_of(value) == 0


@given(st.integers(-64, 1023))
def test_a_power_of_two_begins_a_bin(power: int) -> None:
    value = math.ldexp(1.0, power)
    assert bin_start(bin_of(value)) == value
    assert bin_of(math.nextafter(value, 0)) == (bin_of(value) - 1 if power > -64 else 0)


@pytest.mark.parametrize("ends", [(1.0, 1.75e308), (-1.79e308, 1.79e308), (-1.79e308, 3.0)])
def test_bars_reach_the_largest_doubles(ends: tuple[float, float]) -> None:
    side = Counter({bin_of(end): 50 for end in ends})
    found = distributions.number_distribution(side, side)
    assert found is not None
    bars = found.bars
    assert sum(bar.new for bar in bars) == pytest.approx(1.0)
    assert all(math.isfinite(edge) for bar in bars for edge in (bar.low, bar.high))
    assert bars[0].low <= ends[0]
    assert bars[-1].high >= ends[1]
