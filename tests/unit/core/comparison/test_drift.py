"""Distribution shift: exact numbers, and None where nothing can be said."""

from __future__ import annotations

import math

import pytest

from lakehouse_backfill.core.comparison.distributions import (
    Moments,
    describe_numbers,
    mean_shift,
    population_shift,
)


def moments(*values: float, nulls: int = 0) -> Moments:
    squares = sum(value * value for value in values)
    low, high = (min(values), max(values)) if values else (None, None)
    return Moments(nulls, len(values), low, high, sum(values), squares)


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
    assert moments(1, 2, nulls=1) + moments(0.5, nulls=2) == moments(1, 2, 0.5, nulls=3)
    assert moments() + moments() == moments()


@pytest.mark.req("Q5")
def test_numbers_are_described_by_nulls_bounds_and_mean() -> None:
    expected = {"nulls": 1, "min": 1, "max": 2, "mean": 1.33333333}
    assert describe_numbers(moments(1, 1, 2, nulls=1)) == expected
    assert describe_numbers(moments()) == {"nulls": 0, "min": None, "max": None, "mean": None}


@pytest.mark.req("Q5")
def test_population_shift_is_the_stability_index() -> None:
    expected = (0.25 - 0.5) * math.log(0.25 / 0.5) + (0.75 - 0.5) * math.log(0.75 / 0.5)
    assert population_shift({"a": 2, "b": 2}, {"a": 1, "b": 3}) == round(expected, 6)


@pytest.mark.req("Q5")
def test_population_shift_counts_an_empty_share_as_a_small_one() -> None:
    expected = (0.0001 - 1) * math.log(0.0001) + (1 - 0.0001) * math.log(1 / 0.0001)
    assert population_shift({"a": 5}, {"b": 5}) == round(expected, 6)


@pytest.mark.req("Q5")
def test_rare_categories_are_one() -> None:
    top = {f"top{n:02d}": 100 for n in range(20)}
    assert population_shift({**top, "x": 1, "y": 0}, {**top, "x": 0, "y": 1}) == 0.0


@pytest.mark.req("Q5")
def test_a_side_without_rows_has_no_shift() -> None:
    assert population_shift({}, {"a": 1}) is None
