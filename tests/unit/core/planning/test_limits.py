"""Limits of a plan: what is over, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.planning.estimates import check_limits, estimate_from_files
from lakehouse_backfill.domain.contract import Prices
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.table import ScanEstimate
from lakehouse_backfill.errors import LimitExceeded
from tests.support.examples.plans import NOON, a_plan

INPUTS = (ScanEstimate(files=3, rows=10, size_bytes=2_000_000_000),)


def limited(**safety: Any) -> RunManifest:
    manifest = a_plan().resolved.manifest
    return manifest.model_copy(update={"safety": manifest.safety.model_copy(update=safety)})


@pytest.mark.parametrize(
    ("prices", "cost", "problem"),
    [
        (Prices(), None, "the cost of the plan is unknown"),
        (Prices(core_hour=3.0), None, "the cost of the plan is unknown"),
        (Prices(read_gb=0.05), 0.1, ""),
        (Prices(read_gb=5.0), 10.0, "the plan needs 10.0 cost in USD; safety.max_cost_usd allows"),
    ],
    ids=["no prices", "only a price that is not used", "within", "over"],
)
def test_a_limit_of_the_cost_refuses_what_is_over_it_and_what_is_unknown(prices, cost, problem):
    found = estimate_from_files(INPUTS, None, prices)
    assert found.cost_usd == cost
    check_limits(limited(), found, NOON)
    if not problem:
        check_limits(limited(max_cost_usd=1.0), found, NOON)
        return
    with pytest.raises(LimitExceeded, match=problem) as refused:
        check_limits(limited(max_cost_usd=1.0), found, NOON)
    assert refused.value.field == "safety.max_cost_usd"
