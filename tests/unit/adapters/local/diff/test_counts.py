"""Counts and distributions of the local diff."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from lakehouse_backfill.adapters.local.diff import counts
from lakehouse_backfill.adapters.local.diff.columns import DiffColumn, SideName
from lakehouse_backfill.adapters.local.diff.counts import count_bins
from lakehouse_backfill.adapters.local.diff.distributions import ArrowProfiler
from lakehouse_backfill.adapters.local.diff.tally import ColumnProfile, Tally
from lakehouse_backfill.core.comparison.distributions import bin_of, describe_numbers, mean_shift

pytestmark = pytest.mark.req("Q5")
TYPES: dict[str, tuple[IcebergType, pa.DataType]] = {
    "int": (IntegerType(), pa.int32()),
    "long": (LongType(), pa.int64()),
    "double": (DoubleType(), pa.float64()),
    "decimal": (DecimalType(15, 2), pa.decimal128(15, 2)),
    "string": (StringType(), pa.string()),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 5),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5),
    "double": st.floats(width=64) | st.sampled_from([0.0, -0.0, 5e-324, 1e300, 1.0, 3.0]),
    "decimal": st.decimals(-(10**12), 10**12, places=2, allow_nan=False),
    "string": st.sampled_from("abc") | st.text(max_size=3),
}


@st.composite
def sides(draw: st.DrawFn) -> tuple[str, list[Any], list[Any], list[Any]]:
    """Give a type, the values that both sides share, and those of one side each."""
    name = draw(st.sampled_from(sorted(TYPES)))
    values = st.lists(st.none() | VALUES[name], max_size=8)
    return name, draw(values), draw(values), draw(values)


@settings(deadline=None)  # The first call loads pyarrow.
@example(("double", [1.0, 2.0], [1e300], [3.0]))
@example(("double", [-1.0, math.nan], [math.inf], [-0.0, None]))
@example(("decimal", [Decimal("0.07"), Decimal("8.21")], [], [Decimal("0.29")]))
@given(sides())
def test_the_old_side_follows_from_the_new_one_and_from_what_differs(case) -> None:
    name, shared, gone, come = case
    old, new = _rows(name, [*shared, *gone]), _rows(name, [*shared, *come])
    found: dict[SideName, pa.Table] = {"old": old.slice(len(shared)), "new": new.slice(len(shared))}
    raw: dict[SideName, pa.Table] = {"old": old, "new": new}
    for profiles in (_measured(name, raw, found), _measured(name, raw, None)):
        for profile, side in zip(profiles, raw.values(), strict=True):
            _check(profile, side["c0"].to_pylist())


def test_a_decimal_is_the_double_that_it_is_written_as() -> None:
    values = [Decimal(number).scaleb(-2) for number in range(-5000, 100_000, 7)]
    found = counts.read_numbers(pa.chunked_array([pa.array(values, pa.decimal128(15, 2))]))
    assert found.doubles[0].tolist() == [float(value) for value in values]
    assert (found.low, found.high) == (min(values), max(values))


@pytest.mark.parametrize("value", [1234.56, 0.1, 99_999.99, 1e15 / 3])
def test_a_constant_column_that_moves_has_no_shift_in_deviations(value: float) -> None:
    """Squares are added so that what is left of them is rounding, which the rule knows."""
    old, new = (
        counts.read_numbers(pa.chunked_array([np.full(32_768, each)] * 15)).moments
        for each in (value, value * 1.01)
    )
    assert mean_shift(old, new) is None


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_sums_beyond_all_numbers_warn_nobody_and_give_no_shift() -> None:
    huge = [np.full(5, sign * 1.7e308) for sign in (1.0, -1.0)]
    beyond = counts.read_numbers(pa.chunked_array(huge)).moments
    assert mean_shift(beyond, counts.read_numbers(pa.chunked_array([[1.0, 2.0]])).moments) is None
    assert describe_numbers(beyond + beyond, 0)["max"] == 1.7e308


def _rows(name: str, values: list[Any]) -> pa.Table:
    return pa.table({"c0": pa.array(values, TYPES[name][1])})


def _measured(
    name: str, raw: dict[SideName, pa.Table], found: dict[SideName, pa.Table] | None
) -> list[ColumnProfile]:
    field = NestedField(1, "v", TYPES[name][0], required=False)
    column = DiffColumn("v", "c0", field, field, "compared")
    tally = Tally([None], (column,), 0)
    profiler = ArrowProfiler(tally, raw)
    profiler.profile_new_side()
    profiler.profile_old_side(found)
    return [tally.profile_of(column, side) for side in raw]


def _check(spread: ColumnProfile, values: list[Any]) -> None:
    known = [value for value in values if value is not None]
    assert spread.nulls == len(values) - len(known)
    if any(isinstance(value, str) for value in known):
        assert spread.counts == Counter(known)
        return
    finite = [float(value) for value in known if math.isfinite(value)]
    assert spread.moments.values == len(finite)
    assert spread.histogram.as_dict() == Counter(map(bin_of, finite))


EDGES = [
    math.nextafter(sign * 2.0**power, side)
    for power in (-65, -64, -1, 0, 1, 10, 1023)
    for sign in (1, -1)
    for side in (0.0, sign * 2.0**power, sign * math.inf)
]


@settings(deadline=None)  # The first call loads numpy.
@example([*EDGES, 0.0, -0.0, 5e-324, 1.7976931348623157e308], 0.0)
@given(
    st.lists(st.floats(-1e300, 1e300)), st.just(0.0) | st.floats(-1e300, 1e300) | st.integers(1, 9)
)
def test_bits_and_rule_count_alike(values: list[float], origin: float) -> None:
    cut = len(values) // 2
    parts = [pa.array(some, pa.float64()) for some in (values[:cut], values[cut:])]
    found = count_bins(counts.read_numbers(pa.chunked_array(parts, pa.float64())), origin)
    assert found.as_dict() == Counter(bin_of(value - origin) for value in values)
