"""Thresholds: a total, the rows of each state, and each partition by itself (Q6)."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.validation.gates import check_thresholds
from lakehouse_backfill.domain.checks import MeasurePoint, MeasureTotal
from lakehouse_backfill.domain.contract import Threshold
from lakehouse_backfill.domain.serialization import canonical_json

pytestmark = pytest.mark.req("Q6", "Q4")


def total(name: str, *points: tuple[Any, Any], of: str | None = None) -> MeasureTotal:
    series = tuple(
        MeasurePoint(partition=f"p{at}", old=old, new=new) for at, (old, new) in enumerate(points)
    )
    sums = [sum(float(pair[side] or 0) for pair in points) for side in (0, 1)]
    return MeasureTotal(name=name, old=sums[0], new=sums[1], series=series, of=of)


AMOUNT = total("amount", (100, 110), (100, 90))
STATES = (
    total("orders: open", (10, 5), (10, 10), of="orders"),
    total("orders: paid", (90, 95), (90, 90), of="orders"),
)
CASES = [
    pytest.param({"measure": "amount", "max_change": 0.05}, True, 0.0,
                 "200.0 -> 200.0 (+0.00%)", id="together they are the same"),
    pytest.param({"measure": "amount", "max_change": 0.05, "each_partition": True}, False, 0.1,
                 "p0: 100 -> 110 (+10.00%); 2 of 2 change by more", id="each one differs"),
    pytest.param({"measure": "orders", "max_change": 0.2}, False, 0.25,
                 "orders: open: 20.0 -> 15.0 (-25.00%)", id="a state"),
    pytest.param({"measure": "orders", "max_change": 0.3}, True, 0.25,
                 "orders: open: 20.0 -> 15.0 (-25.00%)", id="within"),
    pytest.param({"measure": "orders", "max_change": 0.3, "each_partition": True}, False, 0.5,
                 "p0, orders: open: 10 -> 5 (-50.00%)", id="a state of a partition"),
    pytest.param({"measure": "orders: paid", "max_change": 0}, False, 5 / 180,
                 "orders: paid: 180.0 -> 185.0 (+2.78%)", id="one state by name, no change"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "passed", "share", "detail"), CASES)
def test_the_worst_change_is_judged(declared, passed, share, detail) -> None:
    wanted = Threshold.model_construct(**({"each_partition": False} | declared))
    (check,) = check_thresholds((wanted,), (AMOUNT, *STATES), 200)
    assert (check.passed, check.detail) == (passed, detail)
    assert check.observed == pytest.approx(share)
    assert check.group == "business"
    assert check.name.endswith("in each partition") is wanted.each_partition


def test_a_partition_that_held_nothing_changes_nothing_that_readers_know() -> None:
    new = total("amount", (None, 50), (100, 100))
    wanted = Threshold(measure="amount", max_change=0, each_partition=True)
    (check,) = check_thresholds((wanted,), (new,), 100)
    assert check.passed


def test_a_first_load_passes() -> None:
    (check,) = check_thresholds((Threshold(measure="amount", max_change=0.1),), (AMOUNT,), 0)
    assert check.passed


@pytest.mark.parametrize("limit", [0.0, 1.0, 50.0])
def test_from_nothing_any_total_is_beyond_every_limit(limit: float) -> None:
    wanted = Threshold(measure="amount", max_change=limit)
    (check,) = check_thresholds((wanted,), (total("amount", (0, 5)),), 100)
    assert (check.passed, check.detail) == (False, "0.0 -> 5.0 (no share of the old)")
    assert check.observed == "Infinity"
    canonical_json(check)
    (still,) = check_thresholds((wanted,), (total("amount", (0, 0)),), 100)
    assert (still.passed, still.observed) == (True, 0.0)
