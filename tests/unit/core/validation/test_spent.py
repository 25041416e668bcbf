"""What share of a run's time its suites took, as log, CLI and page say it."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.validation.suites import ValidationTiming, newest_validation_timing
from lakehouse_backfill.domain.run import Event, RunState
from tests.support.examples.plans import an_event


def event(seq: int, verb: str, **detail: Any) -> Event:
    return an_event("bf-1", seq, RunState.STAGED, verb=verb, detail=detail)


def test_the_share_is_of_all_that_the_run_computed() -> None:
    spent = ValidationTiming(validate_s=8.0, suites_s=2.0, run_s=20.0)
    assert spent.json_form == {
        "validate_s": 8.0,
        "suites_s": 2.0,
        "run_s": 20.0,
        "suites_share": 0.1,
    }
    assert spent.text == "Great Expectations took 2.0 s of 8.0 s, 10% of the run's 20.0 s"


def test_no_time_has_no_share() -> None:
    assert ValidationTiming(0.0, 0.0, 0.0).share is None


def test_the_newest_validation_counts() -> None:
    events = [
        event(3, "pass validation", spent=ValidationTiming(1.0, 0.5, 2.0).json_form),
        event(9, "fail validation", spent=ValidationTiming(2.0, 1.0, 4.0).json_form),
        event(10, "waive"),
    ]
    assert newest_validation_timing(events) == ValidationTiming(2.0, 1.0, 4.0)


def test_runs_that_did_not_note_it_say_nothing() -> None:
    assert newest_validation_timing([event(3, "pass validation")]) is None
    assert newest_validation_timing([]) is None
