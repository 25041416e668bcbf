"""Histograms of the local diff: plain and scaled bins."""

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
from lakehouse_backfill.adapters.local.diff.counts import (
    BinAccumulator,
    bin_numbers,
    count_scaled_bins,
)
from lakehouse_backfill.adapters.local.diff.distributions import ArrowProfiler, BinAccumulators
from lakehouse_backfill.adapters.local.diff.tally import ColumnProfile, Tally
from lakehouse_backfill.core.comparison.distributions import (
    Histogram,
    bin_exponent,
    describe_numbers,
    equal_width_bin,
    mean_shift,
    scaled_bin,
    scaled_bin_start,
)

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
    by_difference, by_itself = _measured(name, raw, found), _measured(name, raw, None)
    assert by_difference == by_itself
    for spread, side in zip(by_itself, raw.values(), strict=True):
        _check(spread, side["c0"].to_pylist())


def test_a_decimal_is_the_double_that_it_is_written_as() -> None:
    values = [Decimal(number).scaleb(-2) for number in range(-5000, 100_000, 7)]
    found = counts.read_numbers(pa.chunked_array([pa.array(values, pa.decimal128(15, 2))]))
    assert found.doubles[0].tolist() == [float(value) for value in values]
    assert (found.low, found.high) == (min(values), max(values))


def test_what_is_pending_stays_small_and_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_PENDING_LIMIT", 500)
    pending, expected = BinAccumulator(), Histogram()
    batches = [[1.0], [-(10.0**at) for at in range(90)], *([[float(at % 7)] for at in range(400)])]
    for values in (*batches, []):
        found = counts.read_numbers(pa.chunked_array([pa.array(values, pa.float64())]))
        low, high = (found.low, found.high) if values else (0.0, 1e9)
        one = bin_numbers(found, low, high)
        pending.add(one)
        expected.add(low, high, one.equal.as_dict(), one.scaled.as_dict())
        assert len(pending.batches) < 40
    histogram = Histogram()
    pending.flush_to(histogram)
    assert histogram == expected
    assert pending == BinAccumulator()


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
    assert describe_numbers(beyond + beyond)["max"] == 1.7e308


@given(st.floats(0.0, 1e30), st.integers(-60, 60))
def test_a_scaled_bin_lies_in_one_equal_bin_that_is_no_narrower(value: float, more: int) -> None:
    number = scaled_bin(value)
    exponent = math.frexp(value)[1] - 9 + abs(more) if value else abs(more)
    begin = math.floor(math.ldexp(scaled_bin_start(number), -exponent))
    assert equal_width_bin(number, exponent) == begin
    if number:
        assert begin == math.floor(math.ldexp(value, -exponent))


def _rows(name: str, values: list[Any]) -> pa.Table:
    return pa.table({"c0": pa.array(values, TYPES[name][1])})


def _measured(
    name: str, raw: dict[SideName, pa.Table], found: dict[SideName, pa.Table] | None
) -> list[ColumnProfile]:
    field = NestedField(1, "v", TYPES[name][0], required=False)
    column = DiffColumn("v", "c0", field, field, "compared")
    tally = Tally([None], (column,), 0)
    pending = BinAccumulators(BinAccumulator)
    spreads = ArrowProfiler(tally, raw, pending)
    spreads.count_values()
    spreads.count_numbers()
    spreads.profile_old_side(found)
    for place, found_bins in pending.items():
        found_bins.flush_to(tally.profiles[place].histogram)
    return [tally.profile_of(column, side) for side in raw]


def _check(spread: ColumnProfile, values: list[Any]) -> None:
    known = [value for value in values if value is not None]
    assert spread.nulls == len(values) - len(known)
    if any(isinstance(value, str) for value in known):
        assert spread.counts == Counter(known)
        return
    finite = [float(value) for value in known if math.isfinite(value)]
    assert spread.moments.values == len(finite)
    if finite:
        found = spread.histogram
        exponent = bin_exponent(found.low, found.high)
        assert found.bins == Counter(math.floor(math.ldexp(each, -exponent)) for each in finite)
        assert found.scaled == Counter(map(scaled_bin, finite))


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
