"""Bins on a scale of their own: from the number alone, in order, and without gaps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.comparison.distributions import (
    BINS_PER_POWER,
    scaled_bin,
    scaled_bin_start,
)

pytestmark = pytest.mark.req("Q5")
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE)
def test_bins_are_in_the_order_of_the_numbers(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert scaled_bin(low) <= scaled_bin(high)


@given(st.floats(2.0**-63, 1e308), st.sampled_from([1, -1]))
def test_a_number_lies_within_its_bin(size: float, sign: int) -> None:
    number = scaled_bin(sign * size)
    assert scaled_bin_start(number) <= sign * size <= scaled_bin_start(number + 1)
    assert (
        scaled_bin_start(number + 1) - scaled_bin_start(number) <= size / BINS_PER_POWER * 1.000_001
    )


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, -(2.0**-65), math.nextafter(2.0**-64, 0)])
def test_what_is_next_to_zero_is_zero(value: float) -> None:
    assert scaled_bin(value) == 0


@given(st.integers(-64, 1023))
def test_a_power_of_two_begins_a_bin(power: int) -> None:
    value = math.ldexp(1.0, power)
    assert scaled_bin_start(scaled_bin(value)) == value
    assert scaled_bin(math.nextafter(value, 0)) == (scaled_bin(value) - 1 if power > -64 else 0)
