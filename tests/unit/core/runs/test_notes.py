"""Notes on runs, which the next plan shows; forgotten runs and ending pins (O5)."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.runs.notes import (
    add_note,
    ending_pins,
    forgotten_runs,
    needs_attention,
    note_command,
    notes_for_next_plan,
    run_notes,
)
from lakehouse_backfill.domain.retention import PinLease
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import ConfigError, IllegalMove, RunMoved
from tests.support.fakes import steps
from tests.support.fakes.context import PRODUCT, declared

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.req("O5")
def test_the_next_plan_of_the_product_shows_the_note_of_a_closed_run() -> None:
    _, found = steps.world()
    run = steps.published_run(found)
    add_note(found, run, "ana", "airports come late: plan after the 5th")
    shown = (
        f"note on {run} (published), by ana on 2026-01-02: airports come late: plan after the 5th"
    )
    plan = make_plan(found, declared("2020-01-04", "2020-01-05"), "bob", None)
    assert shown in plan.warnings


def test_a_note_changes_no_state_and_the_same_note_again_changes_nothing() -> None:
    _, found = steps.world()
    run = steps.published_run(found)
    before = found.runs.status(run)
    for _ in range(2):
        after = add_note(found, run, "ana", "late rates")
    assert (after.state, after.seq) == (RunState.PUBLISHED, before.seq + 1)
    add_note(found, run, "bob", "late rates")
    assert [(one.text, one.by) for one in run_notes(found.runs.events(run))] == [
        ("late rates", "ana"),
        ("late rates", "bob"),
    ]


@pytest.mark.req("O5")
@pytest.mark.parametrize("ending", ["publish", "reject", "cancel", "roll back"])
def test_a_run_that_is_over_asks_for_its_note_until_it_has_one(ending: str) -> None:
    _, found = steps.world()
    if ending in ("publish", "roll back"):
        run = steps.published_run(found)
    else:
        run = steps.validated_run(found)
        assert note_command(found.runs.status(run), found.runs.events(run)) is None
    if ending == "roll back":
        steps.roll_back(found)
    if ending in ("reject", "cancel"):
        getattr(decisions, ending)(found, run, "ana", "wrong")
    command = note_command(found.runs.status(run), found.runs.events(run))
    assert command == f"lakehouse-backfill note {run} TEXT"
    add_note(found, run, "ana", "rates of the wrong month")
    assert note_command(found.runs.status(run), found.runs.events(run)) is None


def test_only_the_newest_notes_of_this_product_are_shown() -> None:
    _, found = steps.world()
    run = steps.published_run(found)
    for number in range(5):
        add_note(found, run, "ana", f"note {number}")
    assert [text[-6:] for text in notes_for_next_plan(found, PRODUCT)] == [
        "note 4", "note 3", "note 2",
    ]  # fmt: skip
    assert notes_for_next_plan(found, "silver.other") == ()


@pytest.mark.parametrize("text", ["", "  ", "a bell \a", "TEXT", "x" * 100_000])
def test_a_note_without_a_sentence_is_refused(text: str) -> None:
    _, found = steps.world()
    run = steps.published_run(found)
    with pytest.raises(ConfigError, match="the note"):
        add_note(found, run, "ana", text)
    assert not run_notes(found.runs.events(run))


def test_a_note_does_not_stop_the_process_that_drives_the_run() -> None:
    _, found = steps.world()
    run = steps.validated_run(found)
    runs: Any = found.runs
    update = {"driver": "there:9", "lease_until": NOW + timedelta(hours=1)}
    runs.statuses[run] = runs.statuses[run].model_copy(update=update)
    with pytest.raises(RunMoved):
        add_note(found, run, "ana", "slow")
    update = {"driver": None, "state": RunState.STAGING}
    runs.statuses[run] = runs.statuses[run].model_copy(update=update)
    with pytest.raises(IllegalMove):
        add_note(found, run, "ana", "slow")


def status(run: str, state: RunState, days: float) -> RunStatus:
    return RunStatus(run_id=run, product=PRODUCT, state=state, seq=1, at=NOW - timedelta(days=days))


@pytest.mark.req("O5")
def test_open_runs_without_an_event_for_the_days_of_the_profile_are_forgotten() -> None:
    runs = [
        status("young", RunState.PLANNED, 6.9),
        status("old", RunState.VALIDATED, 7),
        status("oldest", RunState.HALTED, 30),
        status("closed", RunState.PUBLISHED, 30),
    ]
    found = forgotten_runs(runs, NOW, 7)
    assert [(one.run_id, one.text) for one in found] == [
        ("oldest", "halted without an event for 30 days"),
        ("old", "validated without an event for 7 days"),
    ]
    assert found[0].next_command == "lakehouse-backfill status oldest"
    assert [one.run_id for one in forgotten_runs(runs, NOW, 31)] == []


def lease(run: str, days: float, table: str = "bronze.raw") -> PinLease:
    return PinLease(
        table=table, tag=f"lhb-pin-{run}", snapshot_id=1, run_id=run, product=PRODUCT,
        owner="ana", reason="wrong", until=NOW + timedelta(days=days), at=NOW, by="ana",
    )  # fmt: skip


@pytest.mark.req("O5")
def test_pins_that_end_within_a_week_are_named_by_run() -> None:
    leases = [
        lease("later", 8),
        lease("soon", 6),
        lease("soon", 5, "bronze.rates"),
        lease("over", -1),
    ]
    found = ending_pins(leases, NOW)
    assert [(one.run_id, one.text) for one in found] == [
        ("over", "its pins (bronze.raw) may be removed since 2026-01-01, once the run is closed"),
        (
            "soon",
            "its pins (bronze.raw, bronze.rates) may be removed from 2026-01-07 on, once the "
            "run is closed",
        ),
    ]


def test_what_needs_attention_is_read_by_the_days_of_the_profile() -> None:
    _, found = steps.world()
    run = steps.planned_run(found)
    runs: Any = found.runs
    runs.statuses[run] = runs.statuses[run].model_copy(update={"at": NOW - timedelta(days=3)})
    assert needs_attention(found) == ()
    profile = found.profile.model_copy(update={"forgotten_after_days": 3})
    (one,) = needs_attention(dataclasses.replace(found, profile=profile))
    assert (one.kind, one.run_id) == ("forgotten run", run)
