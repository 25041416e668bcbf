"""Versions of a transform that the contract deprecates or forbids (M7)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.contract import TransformRule
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import Unsupported
from tests.support.fakes import steps
from tests.support.fakes.context import contract, declared

#: The fake clock stands at 2026-01-02.
REASON = "it counts cancelled flights"


def plan_with(**rule: Any) -> Plan:
    """Plan daily 1.0.0 under a contract with one rule."""
    _, found = steps.world()
    rules = [{"name": "daily", "versions": "1.0.0", "reason": REASON} | rule]
    return make_plan(found, declared(contract=contract(transform_versions=rules)), "bob", None)


@pytest.mark.req("M7")
@pytest.mark.parametrize("versions", ["1.0.0", "<=1.0.0", "<1.0.1"])
def test_a_forbidden_version_is_refused_with_its_reason(versions: str) -> None:
    with pytest.raises(Unsupported) as caught:
        plan_with(versions=versions, forbidden=True)
    error = caught.value
    assert error.problem == (f"daily 1.0.0 is forbidden by the contract of silver.daily: {REASON}")
    assert error.field == "transform.version"
    assert f"other than {versions}" in error.fix
    assert error.state == "nothing was planned, pinned or changed"


@pytest.mark.req("M7")
def test_a_deprecated_version_is_warned_of_until_its_day_and_refused_after_it() -> None:
    warned = plan_with(deprecated_after="2026-01-02")
    assert warned.warnings[0] == (
        f"daily 1.0.0 is deprecated, and refused after 2026-01-02: {REASON}"
    )
    with pytest.raises(Unsupported, match="refused since 2026-01-01"):
        plan_with(deprecated_after="2026-01-01")


@pytest.mark.parametrize(
    "rule",
    [{"versions": "0.9.0"}, {"versions": "<1.0.0"}, {"name": "weekly"}],
    ids=["another version", "earlier versions", "another transform"],
)
def test_a_rule_about_others_changes_nothing(rule: dict[str, str]) -> None:
    assert not plan_with(forbidden=True, **rule).warnings


VERSION = st.tuples(*[st.integers(0, 12)] * 3)


@settings(deadline=None)
@given(VERSION, VERSION)
def test_versions_are_ordered_by_their_numbers(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    def covers(mark: str) -> bool:
        bound = mark + ".".join(map(str, other))
        rule = TransformRule(name="daily", versions=bound, reason=REASON)
        return rule.covers("daily", ".".join(map(str, one)))

    assert covers("") is (one == other)
    assert covers("<") is (one < other)
    assert covers("<=") is (one <= other)


def test_the_business_rules_of_the_product_are_notes_of_the_plan() -> None:
    _, found = steps.world()
    ruled = contract(business_rules=["A flight counts on the day of its arrival."])
    notes = make_plan(found, declared(contract=ruled), "bob", None).notes
    assert "business rule: A flight counts on the day of its arrival." in notes
