"""A restricted column of an input travels to a lower class under no name, unless a person says."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.guards.privacy import column_flow
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.errors import BackfillError, Blocked, NotAllowed
from tests.unit.core.guards.privacy.test_rules import planned, private, with_source

pytestmark = pytest.mark.req("E3")

MINE = {"id": {"classification": "restricted"}, "mail": {"mask": "hash"}}
THEIRS = {"columns": {"id": {"classification": "restricted"}}, "purposes": {"repair": ["*"]}}


def resolved(**safety: object) -> ResolvedManifest:
    """A run that reads a restricted column `id`; its product has `id` restricted, `mail` masked."""
    changes: dict[str, object] = {"safety": safety} if safety else {}
    run = with_source(private(MINE), dict(THEIRS), run={"purpose": "repair"}, **changes)
    return planned(run).resolved


def refused(found: ResolvedManifest, flow: column_flow.ColumnFlow) -> BackfillError | None:
    try:
        column_flow.require_declared_flow(found, flow, state="no row was written")
    except Blocked as error:
        return error
    return None


def test_a_column_of_a_lower_class_that_is_made_of_a_restricted_one_is_refused_by_name() -> None:
    error = refused(resolved(), {"amount": ("raw.v",), "day": ("raw.v", "raw.w")})

    assert error is not None
    assert error.exit_code == 3
    assert error.problem == (
        "restricted columns would travel to 2 columns of a lower class: amount (of class internal) "
        "is made of raw.v; day (of class internal) is made of raw.v, raw.w"
    )
    assert "safety.restricted_flows" in error.fix


def test_a_restricted_and_a_masked_column_may_hold_what_is_restricted() -> None:
    assert refused(resolved(), {"ID": ("raw.v",), "mail": ("raw.v",)}) is None


def test_a_person_in_the_role_lets_one_named_column_pass() -> None:
    waiver = {"column": "Amount", "by": "lead", "reason": "a total of thousands"}
    found = resolved(restricted_flows=[waiver])

    assert refused(found, {"amount": ("raw.v",)}) is None
    assert refused(found, {"amount": ("raw.v",), "day": ("raw.v",)}) is not None


def test_a_waiver_by_somebody_without_the_role_is_refused_when_planned() -> None:
    waiver = {"column": "amount", "by": "mallory", "reason": "why not"}
    run = with_source(
        private(MINE, roles={"waive": ["lead"]}), dict(THEIRS),
        run={"purpose": "repair"}, safety={"restricted_flows": [waiver]},
    )  # fmt: skip
    with pytest.raises(NotAllowed, match="mallory"):
        planned(run)


def test_without_a_plan_every_column_counts_as_made_of_all_restricted_ones() -> None:
    flow = column_flow.restricted_flow(resolved(), None)

    assert set(flow.values()) == {("raw.id",)}
    assert set(flow) == {"day", "id", "amount", "mail"}
