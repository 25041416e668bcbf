"""What people see of closed gates, and what they type to go on."""

from __future__ import annotations

import pytest

from tests.support.fakes.project import ANSWERS, RUN, make_result
from tests.support.fakes.screen import drawn

COMMAND = "lakehouse-backfill waive bf-1 'Is every key unique?' --reason TEXT"


@pytest.mark.req("Q8")
def test_failed_gates_are_drawn_with_the_commands_that_waive_them() -> None:
    text = drawn("waive", ANSWERS["waive"])
    assert f"\n  {COMMAND}\n" in text
    assert "waived by ana" in text
    assert "Is every computed row of the chunk stored? cannot be waived: its rows are not" in text


@pytest.mark.req("Q8")
def test_the_status_of_a_stopped_run_names_the_gates_after_its_three_answers() -> None:
    line = ANSWERS["status"]["runs"][0] | {"gates": ANSWERS["waive"]["gates"]}
    text = drawn("status", {"runs": [line]})
    assert text.startswith("is my data safe?")
    assert "3 duplicate keys in the chunk" in text
    assert COMMAND in text


@pytest.mark.req("Q8")
@pytest.mark.parametrize(
    ("waivable", "offered"), [(True, True), (False, False)], ids=["waivable", "not"]
)
def test_run_ends_with_the_closed_gates_and_offers_a_waiver_where_one_helps(waivable, offered):
    closed = {
        "name": "keys are unique",
        "group": "diff",
        "passed": False,
        "blocking": True,
        "waivable": waivable,
    }
    error = make_result("run", {**RUN, "state": "rejected", "checks": [closed]}).error()
    assert (error.exit_code, error.problem) == (3, "bf-1: 1 gate is closed: Is every key unique?")
    assert (COMMAND in error.fix) is offered


def test_a_run_that_was_rejected_before_says_where_the_gates_are_named() -> None:
    error = make_result("run", {**RUN, "state": "rejected"}).error()
    assert "lakehouse-backfill status bf-1" in error.fix


@pytest.mark.req("Q8")
@pytest.mark.parametrize("command", ["accept", "status"])
def test_what_was_waived_is_named_where_people_decide(command: str) -> None:
    waiver = {
        "gate": "edges are closed",
        "scope": "result",
        "by": "eve",
        "at": "2026-03-01T12:00:00Z",
        "reason": "known",
    }
    line = {"run_id": "bf-1", "state": "accepted", "waivers": [waiver]}
    text = drawn(command, {"runs": [line]} if command == "status" else line)
    assert "passed although they failed" in text
    assert "Does anything beyond the range change?" in text
    assert "eve" in text


def test_what_a_closed_gate_asks_for_can_be_copied() -> None:
    data = {"run_id": "bf-1", "passed": False, "manifest_file": "my jobs/run.yaml", "checks": []}
    error = make_result("validate", data).error()
    assert "then lakehouse-backfill plan 'my jobs/run.yaml' --revise bf-1" in error.fix


def test_the_log_shows_no_code_and_asks_the_gates_questions() -> None:
    detail = {"failed": ["edges are closed"], "spent": {"run_s": 2, "parts": [{"a": None}]}}
    event = {"seq": 1, "at": "2026-03-01T12:00:00Z", "actor": "eve", "verb": "fail validation"}
    event |= {"from_state": "staged", "to_state": "rejected", "detail": detail}
    text = " ".join(drawn("log", {"events": [event]}).split())
    assert not set("{}[]'") & set(text)
    assert "Does anything beyond the range change?" in text
