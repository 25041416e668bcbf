"""Which waivers stand, and what they let pass."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.approval.decisions import INPUT_SCOPE, RESULT_SCOPE, WaiverSubject
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.run import Event, RunState

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
RESULT_D1 = WaiverSubject(RESULT_SCOPE, "d1")


def check(name: str = "spot checks", group: Any = "golden", **fields: Any) -> CheckResult:
    """A failed check."""
    return CheckResult(
        **{"name": name, "group": group, "passed": False, "detail": "1 of 4", **fields}
    )


def event(seq: int, verb: str, **detail: Any) -> Event:
    """An event of a run; where it leads plays no part here."""
    return Event(
        run_id="bf-1", seq=seq, at=NOW, actor="ana", verb=verb, from_state=RunState.REJECTED,
        to_state=RunState.REJECTED, mode="backfill", detail=detail,
    )  # fmt: skip


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
def test_only_a_stop_by_checks_that_nothing_moved_since_can_be_waived(
    verbs: list[str], stopped_by: str | None
) -> None:
    found = decisions.stopping_event([event(number, verb) for number, verb in enumerate(verbs)])
    assert (found.verb if found else None) == stopped_by


def test_the_command_can_be_typed_as_it_is_shown() -> None:
    shown = decisions.waive_command("bf-1", "it's 20 %")
    assert shown == ("""lakehouse-backfill waive bf-1 'it'"'"'s 20 %' --by WHO --reason TEXT""")


def test_a_gate_that_guards_the_data_says_why_it_cannot_be_waived() -> None:
    failed = check("diff and counts agree", "diff", waivable=False)
    assert "people decide on" in gate_registry.why_not_waivable(failed)
    assert gate_registry.why_not_waivable(check()) == ""
