"""Decisions: waivers, and acceptance of a validation that is out of date."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.approval.decisions import (
    INPUT_SCOPE,
    RESULT_SCOPE,
    WaiverSubject,
    failed_gates,
    waive,
)
from lakehouse_backfill.core.evidence import document
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.run import Event, RunState
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
    TargetChanged,
)
from tests.support.examples.plans import an_event
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import (
    accepted_run,
    content_of,
    pending_of,
    planned_run,
    staged_run,
    state_of,
    validated_run,
    world,
)

EDGES, KEYS = "edges are closed", "keys are unique"


def rejected(**changes: Any) -> tuple[Context, str]:
    """A run whose validation failed; `changes` are of its declaration, or of the engine."""
    engine = {name: changes.pop(name) for name in ("open_edges", "duplicates") if name in changes}
    _, found = world(**engine)
    run_id = validated_run(found, declared(**changes))
    assert state_of(found, run_id) is RunState.REJECTED
    return found, run_id


def other_rows() -> tuple[Context, str]:
    """A run whose candidate does not hold the rows that were computed."""
    where, found = world()
    run_id = staged_run(found)
    where.write(found.runs.plan(run_id).shadow_table, "2020-01-02", "other")
    validate(found, run_id, "bob")
    return found, run_id


def open_edge(**changes: Any) -> tuple[Context, str]:
    """A run that one gate stopped: rows before its range would change."""
    return rejected(open_edges={"2020-01-01"}, **changes)


@pytest.mark.req("Q8")
def test_a_failed_gate_blocks_acceptance_and_publication_until_it_is_waived() -> None:
    found, run_id = open_edge()
    for go_on in (lambda: decisions.accept(found, run_id, "ana", ""),
                  lambda: publish(found, run_id, "ana")):  # fmt: skip
        with pytest.raises(IllegalMove):
            go_on()
    status = waive(found, run_id, EDGES, "ana", "the day before is restated by bf-2")
    assert status.state is RunState.VALIDATED
    decisions.accept(found, run_id, "ana", "")
    publish(found, run_id, "bob")
    assert state_of(found, run_id) is RunState.PUBLISHED


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
    (shown,) = document.evidence_document(found, run_id)["waivers"]
    assert (shown["gate"], shown["by"], shown["bound_to"]) == (EDGES, "ana", digest)


@pytest.mark.req("Q8")
def test_every_closed_gate_needs_its_own_waiver() -> None:
    found, run_id = rejected(open_edges={"2020-01-01"}, duplicates=(1, 1))
    assert waive(found, run_id, EDGES, "ana", "known").state is RunState.REJECTED
    assert [gate.waived_by for gate in failed_gates(found, run_id)] == [None, "ana"]
    before = found.runs.events(run_id)
    waive(found, run_id, EDGES, "ana", "known")  # The same again changes nothing.
    assert found.runs.events(run_id) == before
    assert waive(found, run_id, KEYS, "ana", "known").state is RunState.VALIDATED
    assert failed_gates(found, run_id) == ()


@pytest.mark.req("Q8")
def test_another_result_needs_another_waiver() -> None:
    found, run_id = open_edge()
    waive(found, run_id, EDGES, "ana", "known")
    assert validate(found, run_id, "bob")[0].state is RunState.VALIDATED  # The same result.
    found.compute().duplicates = (1, 1)
    assert validate(found, run_id, "bob")[0].state is RunState.REJECTED
    assert {gate.waived_by for gate in failed_gates(found, run_id)} == {None}


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
    assert document.waiver_records(found.runs.events(run_id)) == []
    assert found.runs.events(run_id) == before


@pytest.mark.req("Q8", "V4")
@pytest.mark.parametrize(
    ("old", "new"),
    [('"waivable":false', '"waivable":true'), ('"passed":false', '"passed":true')],
    ids=["waivable", "passed"],
)
def test_a_verdict_that_was_edited_is_refused_and_can_be_judged_again(old: str, new: str) -> None:
    found, run_id = other_rows()
    rows = found.evidence.rows
    assert old in rows[-1][3]
    rows[-1] = (*rows[-1][:3], rows[-1][3].replace(old, new))
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
@pytest.mark.parametrize(("who", "why"), [("pat", "four eyes"), ("bob", "bob planned the run")])
def test_with_four_eyes_neither_requester_nor_planner_waives(who: str, why: str) -> None:
    found, run_id = open_edge(contract=contract(four_eyes=True), run={"requested_by": "pat"})
    with pytest.raises(NotAllowed, match=why):
        waive(found, run_id, EDGES, who, "known")


@pytest.mark.req("Q8")
def test_a_gate_that_guards_the_data_itself_cannot_be_waived() -> None:
    found, run_id = other_rows()
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
        ("edges", "known", NotFound, "anything beyond the range"),
        (EDGES, " ", ConfigError, "needs a reason"),
    ],
    ids=["no such gate", "no reason"],
)
def test_a_waiver_names_a_failed_gate_and_a_reason(gate, reason, error, says) -> None:
    found, run_id = open_edge()
    with pytest.raises(error, match=says):
        waive(found, run_id, gate, "ana", reason)


@pytest.mark.req("Q8")
def test_a_run_that_no_gate_stopped_has_nothing_to_waive() -> None:
    _, found = world()
    with pytest.raises(IllegalMove):
        waive(found, planned_run(found), EDGES, "ana", "known")


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
    _, found = world()
    run_id = staged_run(found)
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
    with pytest.raises(ChecksFailed, match="a check failed: Does anything beyond the range"):
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


RESULT_D1 = WaiverSubject(RESULT_SCOPE, "d1")


def check(name: str = "spot checks", group: Any = "golden", **fields: Any) -> CheckResult:
    """A failed check."""
    return CheckResult(
        **{"name": name, "group": group, "passed": False, "detail": "1 of 4", **fields}
    )


def event(seq: int, verb: str, **detail: Any) -> Event:
    """An event of a run; where it leads plays no part here."""
    return an_event("bf-1", seq, RunState.REJECTED, verb=verb, detail=detail)


def waived(seq: int, judged: WaiverSubject = RESULT_D1, **detail: Any) -> Event:
    """A waiver of the spot checks."""
    said = {"gate": "spot checks", "group": "golden", "observed": "1 of 4", "reason": "known"}
    return event(seq, "waive", scope=judged.scope, bound_to=judged.bound_to, **(said | detail))


CASES = [
    pytest.param([waived(3)], check(), True, id="this gate of this result"),
    pytest.param([], check(), False, id="nobody waived it"),
    pytest.param(
        [waived(3, WaiverSubject(RESULT_SCOPE, "d2"))], check(), False, id="another result"
    ),
    pytest.param([waived(3, WaiverSubject(INPUT_SCOPE, "d1"))], check(), False, id="another scope"),
    pytest.param([waived(3, gate="keys are unique")], check(), False, id="another gate"),
    pytest.param([waived(3, group="quality")], check(), False, id="another group"),
    pytest.param([waived(3)], check(waivable=False), False, id="it guards the data itself"),
    pytest.param([waived(3), event(4, "reject")], check(), False, id="rejected since"),
    pytest.param([event(2, "reject"), waived(3)], check(), True, id="waived after a rejection"),
    pytest.param([event(4, "reject"), waived(3)], check(), False, id="the numbers give the order"),
]


@pytest.mark.req("Q8")
@pytest.mark.parametrize(("events", "failed", "passes"), CASES)
def test_a_failed_gate_passes_only_by_a_standing_waiver_of_exactly_this_content(
    events: list[Event], failed: CheckResult, passes: bool
) -> None:
    closed = decisions.unwaived_failures([failed], RESULT_D1, decisions.waivers_in_force(events))
    assert closed == (() if passes else (failed,))


@pytest.mark.req("Q8")
def test_what_does_not_block_needs_no_waiver() -> None:
    assert (
        decisions.unwaived_failures([check(blocking=False), check(passed=True)], RESULT_D1, ())
        == ()
    )


@pytest.mark.req("Q8")
@pytest.mark.parametrize(
    ("verbs", "stopped_by"),
    [
        (["begin staging", "halt"], "halt"),
        (["begin staging", "halt", "waive"], "halt"),
        (["begin validation", "fail validation", "waive"], "fail validation"),
        (["fail validation", "begin validation"], "fail validation"),
        (["halt", "begin staging"], None),
        (["fail validation", "reject"], None),
        (["fail validation", "pass by waiver"], None),
        ([], None),
    ],
)
def test_only_a_stop_by_checks_that_nothing_moved_since_can_be_waived(verbs, stopped_by) -> None:
    found = decisions.stopping_event([event(number, verb) for number, verb in enumerate(verbs)])
    assert (found.verb if found else None) == stopped_by


def test_the_command_can_be_typed_as_it_is_shown() -> None:
    shown = decisions.waive_command("bf-1", "it's 20 %")
    assert shown == ("""lakehouse-backfill waive bf-1 'it'"'"'s 20 %' --reason TEXT""")


def test_a_gate_that_guards_the_data_says_why_it_cannot_be_waived() -> None:
    failed = check("diff and counts agree", "diff", waivable=False)
    assert "people decide on" in gate_registry.why_not_waivable(failed)
    assert gate_registry.why_not_waivable(check()) == ""


def write_in_scope(where: FakeLake, shadow: str) -> None:
    where.write(PRODUCT, "2020-01-03", "live")


def empty_in_scope(where: FakeLake, shadow: str) -> None:
    table = where.tables[PRODUCT]
    table.commit({**table.content(table.head), "2020-01-02": frozenset()})


def write_candidate(where: FakeLake, shadow: str) -> None:
    where.write(shadow, "2020-01-02", "other")


MOVES = [
    pytest.param(write_in_scope, TargetChanged, id="the target changed in the partitions"),
    pytest.param(empty_in_scope, TargetChanged, id="a partition of the target was emptied"),
    pytest.param(write_candidate, ApprovalMissing, id="the candidate changed"),
]


@pytest.mark.req("Q5", "U11")
@pytest.mark.parametrize(("move", "refusal"), MOVES)
def test_what_moved_since_it_was_judged_is_not_published(move, refusal) -> None:
    where, found = world()
    run_id = accepted_run(found)
    move(where, found.runs.plan(run_id).shadow_table)
    before = content_of(where)
    with pytest.raises(refusal):
        publish(found, run_id, "bob")
    assert content_of(where) == before
    assert pending_of(found) is None
    assert state_of(found, run_id) is RunState.ACCEPTED


def reviewed() -> tuple[Context, str]:
    """A run whose total fell by more than the owner lets pass unseen."""
    _, found = world()
    fell = (MeasureTotal(name="amounts", old=100, new=70),)
    found.compute().totals = lambda *_: fell
    watched = contract(
        measures=[{"name": "amounts", "sum": "amount"}],
        thresholds=[{"measure": "amounts", "max_change": 0.2}],
        roles={"waive": ["olga"]},
    )
    run_id = validated_run(found, declared(contract=watched))
    assert state_of(found, run_id) is RunState.REJECTED
    return found, run_id


GATE = "amounts changes by at most 20.0%"


@pytest.mark.req("Q6", "Q8")
def test_a_threshold_needs_the_review_of_an_owner_in_the_role() -> None:
    found, run_id = reviewed()
    with pytest.raises(NotAllowed):
        waive(found, run_id, GATE, "bob", "looks fine to me")
    assert waive(found, run_id, GATE, "olga", "a price cut in May").state is RunState.VALIDATED


def test_how_long_a_validation_took_is_in_the_log_and_not_in_what_is_accepted() -> None:
    found, run_id = reviewed()
    (event,) = [event for event in found.runs.events(run_id) if event.verb == "fail validation"]
    assert set(event.detail["spent"]) == {"validate_s", "suites_s", "run_s", "suites_share"}
    judged = found.evidence.newest(run_id, "validation")
    assert "spent" not in judged[1]
