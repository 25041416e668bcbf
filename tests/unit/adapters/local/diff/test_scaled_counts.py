"""Counting doubles by their bits gives the bins that the rule names."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.adapters.local.diff.counts import count_scaled_bins
from lakehouse_backfill.core.comparison.distributions import scaled_bin

pytestmark = pytest.mark.req("Q5")
EDGES = [
    math.nextafter(sign * 2.0**power, side)
    for power in (-65, -64, -1, 0, 1, 10, 1023)
    for sign in (1, -1)
    for side in (0.0, sign * 2.0**power, sign * math.inf)
]


@settings(deadline=None)  # The first call loads numpy.
@example([*EDGES, 0.0, -0.0, 5e-324, 1.7976931348623157e308])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_bits_and_rule_count_alike(values: list[float]) -> None:
    cut = len(values) // 2
    parts = [np.array(some, np.float64) for some in (values[:cut], values[cut:])]
    assert count_scaled_bins(parts).as_dict() == Counter(map(scaled_bin, values))
