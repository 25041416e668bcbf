"""Nothing is published on a validation that is not of what would be published any more (Q5, Q6).

The check at publish is the authoritative one: it looks at target, candidate and verdict again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.approval.decisions import waive
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import MeasureTotal
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ApprovalMissing, BackfillError, NotAllowed, TargetChanged
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import FakeLake


def accepted(found: Context) -> str:
    plan, _ = register_plan(found, make_plan(found, declared(), "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    validate(found, plan.run_id, "bob")
    decisions.accept(found, plan.run_id, "ana", "")
    return plan.run_id


def write_in_scope(where: FakeLake, shadow: str) -> None:
    where.write(PRODUCT, "2020-01-03", "live")


def empty_in_scope(where: FakeLake, shadow: str) -> None:
    table = where.tables[PRODUCT]
    rest = {label: files for label, files in table.content(table.head).items()
            if label != "2020-01-02"}  # fmt: skip
    table.commit(rest)


def write_candidate(where: FakeLake, shadow: str) -> None:
    where.write(shadow, "2020-01-02", "other")


MOVES = [
    pytest.param(write_in_scope, TargetChanged, id="the target changed in the partitions"),
    pytest.param(empty_in_scope, TargetChanged, id="a partition of the target was emptied"),
    pytest.param(write_candidate, ApprovalMissing, id="the candidate changed"),
]


@pytest.mark.req("Q5", "U11")
@pytest.mark.parametrize(("move", "refusal"), MOVES)
def test_what_moved_since_it_was_judged_is_not_published(
    move: Callable[[FakeLake, str], None], refusal: type[BackfillError]
) -> None:
    where = lake()
    found = context(where)
    run_id = accepted(found)
    move(where, found.runs.plan(run_id).shadow_table)
    before = where.tables[PRODUCT].content(where.tables[PRODUCT].head)
    with pytest.raises(refusal):
        publish(found, run_id, "bob")
    assert where.tables[PRODUCT].content(where.tables[PRODUCT].head) == before
    assert found.versions.pointer(PRODUCT).pending is None
    assert found.runs.status(run_id).state is RunState.ACCEPTED


@pytest.mark.req("Q5", "U11")
def test_what_moved_elsewhere_does_not_make_a_validation_stale() -> None:
    where = lake()
    found = context(where)
    run_id = accepted(found)
    where.write(PRODUCT, "2020-01-05", "live")
    publish(found, run_id, "bob")
    assert found.runs.status(run_id).state is RunState.PUBLISHED
    assert where.tables[PRODUCT].content(where.tables[PRODUCT].head)["2020-01-05"] == {"live"}


def reviewed(**changes: object) -> tuple[Context, str]:
    """A run whose total fell by more than the owner lets pass unseen."""
    where = lake()
    compute = FakeCompute(where)
    fell = (MeasureTotal(name="amounts", old=100, new=70),)
    compute.totals = lambda *_: fell  # type: ignore[method-assign]
    found = context(where, compute)
    watched = contract(
        measures=[{"name": "amounts", "sum": "amount"}],
        thresholds=[{"measure": "amounts", "max_change": 0.2}],
        roles={"waive": ["olga"]}, **changes,
    )  # fmt: skip
    plan, _ = register_plan(found, make_plan(found, declared(contract=watched), "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    assert validate(found, plan.run_id, "bob")[0].state is RunState.REJECTED
    return found, plan.run_id


GATE = "amounts changes by at most 20.0%"


@pytest.mark.req("Q6", "Q8")
def test_a_threshold_needs_the_review_of_an_owner_in_the_role() -> None:
    found, run_id = reviewed()
    with pytest.raises(NotAllowed):
        waive(found, run_id, GATE, "bob", "looks fine to me")
    assert waive(found, run_id, GATE, "olga", "a price cut in May").state is RunState.VALIDATED


@pytest.mark.req("Q6", "Q8")
def test_an_owners_review_is_recorded_with_what_was_seen_and_holds_for_that_result_only() -> None:
    found, run_id = reviewed()
    waive(found, run_id, GATE, "olga", "a price cut in May")
    (event,) = [event for event in found.runs.events(run_id) if event.verb == "waive"]
    said = {name: event.detail[name] for name in ("gate", "group", "scope", "reason", "observed")}
    assert (event.actor, said) == (
        "olga",
        {
            "gate": GATE, "group": "business", "scope": "result",
            "reason": "a price cut in May", "observed": "100 -> 70 (+30.00%)",
        },
    )  # fmt: skip
    judged = found.evidence.newest(run_id, "validation")
    assert judged is not None
    assert event.detail["bound_to"] == judged[0]


@pytest.mark.req("Q3")
def test_how_long_a_validation_took_is_in_the_log_and_not_in_what_is_accepted() -> None:
    found, run_id = reviewed()
    (event,) = [event for event in found.runs.events(run_id) if event.verb == "fail validation"]
    assert set(event.detail["spent"]) == {"validate_s", "suites_s", "run_s", "suites_share"}
    judged = found.evidence.newest(run_id, "validation")
    assert judged is not None
    assert "spent" not in judged[1]
