"""A failed gate blocks publication; a waiver is named, scoped, recorded, by who may (Q8)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.approval.decisions import failed_gates, waive
from lakehouse_backfill.core.evidence import status
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.catch_up import run_until_decision
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import (
    ApprovalMissing,
    Blocked,
    ChecksFailed,
    ConfigError,
    IllegalMove,
    NotAllowed,
    NotFound,
    RunMoved,
    Tampered,
)
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.control import FakeEvidence

ASKED_BY_PAT = {"requested_by": "pat", "reason": "wrong rate", "reason_code": "bug_fix"}
EDGES, KEYS = "edges are closed", "keys are unique"


def rejected(found: Context, **changes: Any) -> str:
    """A run whose validation failed."""
    plan, _ = register_plan(found, make_plan(found, declared(**changes), "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    assert validate(found, plan.run_id, "bob")[0].state is RunState.REJECTED
    return plan.run_id


def open_edge(**changes: Any) -> tuple[Context, str]:
    """A run that one gate stopped: rows before its range would change."""
    where = lake()
    found = context(where, FakeCompute(where, open_edges={"2020-01-01"}))
    return found, rejected(found, **changes)


@pytest.mark.req("Q8")
def test_a_failed_gate_blocks_acceptance_and_publication() -> None:
    found, run_id = open_edge()
    with pytest.raises(IllegalMove):
        decisions.accept(found, run_id, "ana", "")
    with pytest.raises(IllegalMove):
        publish(found, run_id, "ana")


@pytest.mark.req("Q8")
def test_a_waived_gate_lets_the_result_be_accepted_and_published() -> None:
    found, run_id = open_edge()
    status = waive(found, run_id, EDGES, "ana", "the day before is restated by bf-2")
    assert status.state is RunState.VALIDATED
    decisions.accept(found, run_id, "ana", "")
    publish(found, run_id, "bob")
    assert found.runs.status(run_id).state is RunState.PUBLISHED


@pytest.mark.req("Q8")
def test_a_waiver_is_recorded_with_gate_scope_content_number_and_reason() -> None:
    found, run_id = open_edge()
    digest = found.runs.events(run_id)[-1].detail["digest"]
    waive(found, run_id, EDGES, "ana", "known")
    event = found.runs.events(run_id)[-2]
    assert (event.verb, event.actor, event.from_state) == ("waive", "ana", event.to_state)
    said = dict(event.detail)
    assert said.pop("observed").startswith("open at 2020-01-01")
    assert said == {
        "gate": EDGES, "group": "edge", "scope": "result", "bound_to": digest, "reason": "known",
    }  # fmt: skip
    (shown,) = status.evidence_document(found, run_id)["waivers"]
    assert (shown["gate"], shown["by"], shown["bound_to"]) == (EDGES, "ana", digest)


@pytest.mark.req("Q8")
def test_every_closed_gate_needs_its_own_waiver() -> None:
    where = lake()
    found = context(where, FakeCompute(where, open_edges={"2020-01-01"}, duplicates=(1, 1)))
    run_id = rejected(found)
    assert waive(found, run_id, EDGES, "ana", "known").state is RunState.REJECTED
    assert [gate.waived_by for gate in failed_gates(found, run_id)] == [None, "ana"]
    assert waive(found, run_id, KEYS, "ana", "known").state is RunState.VALIDATED
    assert failed_gates(found, run_id) == ()


@pytest.mark.req("Q8")
def test_the_same_waiver_again_changes_nothing() -> None:
    where = lake()
    found = context(where, FakeCompute(where, open_edges={"2020-01-01"}, duplicates=(1, 1)))
    run_id = rejected(found)
    waive(found, run_id, EDGES, "ana", "known")
    before = found.runs.events(run_id)
    waive(found, run_id, EDGES, "ana", "known")
    assert found.runs.events(run_id) == before


@pytest.mark.req("Q8")
def test_another_result_needs_another_waiver() -> None:
    where = lake()
    compute = FakeCompute(where, open_edges={"2020-01-01"})
    found = context(where, compute)
    run_id = rejected(found)
    waive(found, run_id, EDGES, "ana", "known")
    assert validate(found, run_id, "bob")[0].state is RunState.VALIDATED  # The same result.
    compute.open_edges.add("2020-01-04")
    assert validate(found, run_id, "bob")[0].state is RunState.REJECTED


@pytest.mark.req("Q8")
def test_a_rejection_takes_waivers_back_and_no_waiver_undoes_a_rejection() -> None:
    found, run_id = open_edge()
    waive(found, run_id, EDGES, "ana", "known")
    decisions.reject(found, run_id, "ana", "no")
    before = found.runs.events(run_id)
    for go_on in (
        lambda: waive(found, run_id, EDGES, "ana", "known"),
        lambda: validate(found, run_id, "bob"),
        lambda: run_until_decision(found, run_id, "bob"),
    ):
        with pytest.raises(ApprovalMissing, match=f"ana rejected {run_id}: no") as said:
            go_on()
        assert said.value.fix.startswith(f"lakehouse-backfill plan m.yaml --revise {run_id}")
    assert status.waiver_records(found.runs.events(run_id)) == []
    assert found.runs.events(run_id) == before


@pytest.mark.req("Q8", "V4")
@pytest.mark.parametrize(
    ("old", "new"),
    [('"waivable":false', '"waivable":true'), ('"passed":false', '"passed":true')],
    ids=["waivable", "passed"],
)
def test_a_verdict_that_was_edited_is_refused_and_can_be_judged_again(old: str, new: str) -> None:
    where = lake()
    found = context(where)
    plan, _ = register_plan(found, make_plan(found, declared(), "bob", None), "bob")
    run_id = plan.run_id
    decisions.approve(found, run_id, "ana", "")
    stage(found, run_id, "bob")
    shadow = where.tables[plan.shadow_table]
    shadow.commit({**shadow.content(shadow.head), "2020-01-02": frozenset({"other"})})
    validate(found, run_id, "bob")
    evidence = found.evidence
    assert isinstance(evidence, FakeEvidence)
    assert old in evidence.rows[-1][3]
    evidence.rows[-1] = (*evidence.rows[-1][:3], evidence.rows[-1][3].replace(old, new))
    for look_at_it in (
        lambda: failed_gates(found, run_id),
        lambda: waive(found, run_id, "stored rows are the computed rows", "ana", "hush"),
    ):
        with pytest.raises(Tampered, match=f"the validation of {run_id} was edited") as caught:
            look_at_it()
        assert str(caught.value.fix).startswith(f"lakehouse-backfill validate {run_id}")
    assert validate(found, run_id, "bob")[0].state is RunState.REJECTED
    with pytest.raises(Blocked, match="cannot be waived"):
        waive(found, run_id, "stored rows are the computed rows", "ana", "hush")


@pytest.mark.req("Q8")
def test_only_those_whom_the_contract_names_may_waive() -> None:
    found, run_id = open_edge(contract=contract(roles={"waive": ["owner"]}))
    with pytest.raises(NotAllowed, match="owner"):
        waive(found, run_id, EDGES, "ana", "known")
    assert waive(found, run_id, EDGES, "owner", "known").state is RunState.VALIDATED


@pytest.mark.req("Q8")
def test_with_four_eyes_the_requester_does_not_waive() -> None:
    found, run_id = open_edge(contract=contract(four_eyes=True))
    with pytest.raises(NotAllowed, match="four eyes"):
        waive(found, run_id, EDGES, "bob", "known")


@pytest.mark.req("Q8", "M6")
def test_with_four_eyes_who_planned_the_run_does_not_waive() -> None:
    found, run_id = open_edge(contract=contract(four_eyes=True), run=ASKED_BY_PAT)
    with pytest.raises(NotAllowed, match="bob planned the run"):
        waive(found, run_id, EDGES, "bob", "known")


@pytest.mark.req("Q8")
def test_a_gate_that_guards_the_data_itself_cannot_be_waived() -> None:
    where = lake()
    found = context(where)
    plan, _ = register_plan(found, make_plan(found, declared(), "bob", None), "bob")
    run_id = plan.run_id
    decisions.approve(found, run_id, "ana", "")
    stage(found, run_id, "bob")
    shadow = where.tables[plan.shadow_table]
    shadow.commit({**shadow.content(shadow.head), "2020-01-02": frozenset({"other"})})
    validate(found, run_id, "bob")
    name = "stored rows are the computed rows"
    with pytest.raises(Blocked, match="cannot be waived: its rows would be published although"):
        waive(found, run_id, name, "ana", "hush")
    (gate,) = failed_gates(found, run_id)
    assert (gate.name, gate.command) == (name, None)
    assert gate.why_not


@pytest.mark.req("Q8")
@pytest.mark.parametrize(
    ("gate", "reason", "error", "says"),
    [
        ("edges", "known", NotFound, EDGES),
        (EDGES, " ", ConfigError, "needs a reason"),
    ],
    ids=["no such gate", "no reason"],
)
def test_a_waiver_names_a_failed_gate_and_a_reason(
    gate: str, reason: str, error: type[Exception], says: str
) -> None:
    found, run_id = open_edge()
    with pytest.raises(error, match=says):
        waive(found, run_id, gate, "ana", reason)


@pytest.mark.req("Q8")
def test_a_run_that_no_gate_stopped_has_nothing_to_waive() -> None:
    found = context(lake())
    plan, _ = register_plan(found, make_plan(found, declared(), "bob", None), "bob")
    with pytest.raises(IllegalMove):
        waive(found, plan.run_id, EDGES, "ana", "known")


@pytest.mark.req("Q8")
def test_nothing_is_waived_while_another_process_judges_the_run_again() -> None:
    found, run_id = open_edge()

    other = dataclasses.replace(found, driver="here:2")
    plan = found.runs.plan(run_id)
    other.drive(found.runs.status(run_id), plan, "begin validation", "eve")
    with pytest.raises(RunMoved):
        waive(found, run_id, EDGES, "ana", "known")


@pytest.mark.req("E5", "V4")
def test_a_decision_is_bound_to_the_validation_that_moved_the_run_not_to_the_newest_one() -> None:
    where = lake()
    found = context(where)
    plan, _ = register_plan(found, make_plan(found, declared(), "bob", None), "bob")
    run_id = plan.run_id
    decisions.approve(found, run_id, "ana", "")
    stage(found, run_id, "bob")
    _, validation, digest = validate(found, run_id, "bob")
    lost = validation.model_copy(update={"totals": (), "checks": validation.checks[:1]})
    document = lost.model_dump(mode="json")
    epoch = found.runs.status(run_id).epoch
    assert found.evidence.record(run_id, "validation", document, epoch) != digest
    decisions.accept(found, run_id, "ana", "")
    assert found.runs.events(run_id)[-1].detail["bound_to"] == digest


@pytest.mark.req("Q8")
def test_a_result_that_was_never_waived_is_not_accepted_whatever_the_state_says() -> None:
    found, run_id = open_edge()
    status, plan = found.runs.status(run_id), found.runs.plan(run_id)
    found.move(status, plan, "pass by waiver", "eve")
    with pytest.raises(ChecksFailed, match=EDGES):
        decisions.accept(found, run_id, "ana", "")


def test_a_run_is_cancelled_by_who_asked_for_it_or_by_who_may_decide_on_it() -> None:
    roles = {"approve": ["lead"], "publish": ["bot"]}
    for who, may in (("bob", True), ("lead", True), ("bot", True), ("eve", False)):
        found = context(lake())
        wanted = declared(contract=contract(roles=roles))
        plan, _ = register_plan(found, make_plan(found, wanted, "pat", None), "pat")
        if may:
            assert decisions.cancel(found, plan.run_id, who, "").state is RunState.CANCELLED
        else:
            with pytest.raises(NotAllowed, match="lead, bot"):
                decisions.cancel(found, plan.run_id, who, "")


@pytest.mark.req("X9", "Q8")
def test_a_run_that_fails_its_validation_again_is_left_to_whoever_comes_next() -> None:
    found, run_id = open_edge()
    validate(found, run_id, "bob")
    assert found.runs.status(run_id).driver is None
    other = dataclasses.replace(found, driver="here:2")
    assert waive(other, run_id, EDGES, "ana", "known").state is RunState.VALIDATED
