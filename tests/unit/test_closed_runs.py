"""Notes, forgotten runs, windows and dry runs, through the Python API."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.cli.render import render_result
from lakehouse_backfill.errors import Blocked, ConfigError
from lakehouse_backfill.results.base import Result
from tests.unit.test_pages_written import Case


def drawn(result: Result) -> str:
    page = StringIO()
    render_result(result, page)
    return page.getvalue()


@pytest.mark.req("O5")
def test_a_closed_run_asks_for_a_note_and_the_next_plan_shows_it(tmp_path: Path) -> None:
    case = Case(tmp_path).accepted()
    published = case.project.publish(case.run, "bob")
    asked = f"lakehouse-backfill note {case.run} TEXT"
    assert asked in str(published.note_command)
    assert "what was learned, for the next plan:" in drawn(published)
    (line,) = case.project.status(case.run).runs
    assert asked in str(line.note_command)
    noted = case.project.note(case.run, "rates come late", "ana")
    assert [(one.text, one.by) for one in noted.notes] == [("rates come late", "ana")]
    (line,) = case.project.status(case.run).runs
    assert (line.note_command, line.notes) == (None, ("rates come late (ana, 2026-01-02)",))
    case.wiring.where.write("bronze.raw", "2020-01-02", "raw-2")
    again = case.project.plan("m.yaml", by="bob")
    assert any("by ana on 2026-01-02: rates come late" in one for one in again.warnings)


@pytest.mark.req("O5")
def test_a_note_is_given_with_the_act_that_closes_the_run(tmp_path: Path) -> None:
    case = Case(tmp_path).accepted()
    done = case.project.publish(case.run, "bob", note="rates come late")
    assert done.note_command is None
    (line,) = case.project.status(case.run).runs
    assert line.notes == ("rates come late (bob, 2026-01-02)",)
    other = Case(tmp_path / "other")
    cancelled = other.project.cancel(other.run, "ana", "wrong month", note="ask ana first")
    assert (cancelled.state, cancelled.note_command) == ("cancelled", None)


def test_a_note_that_is_no_sentence_closes_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with pytest.raises(ConfigError, match="the note"):
        case.project.cancel(case.run, "ana", "wrong", note="a bell \a")
    assert case.project.status(case.run).runs[0].state == "planned"


@pytest.mark.req("O5")
def test_status_names_a_run_that_was_forgotten(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert case.project.status().attention is None
    runs: Any = case.context.runs
    old = runs.statuses[case.run].at - timedelta(days=8)
    runs.statuses[case.run] = runs.statuses[case.run].model_copy(update={"at": old})
    found = case.project.status()
    assert found.attention is not None
    assert [(one.kind, one.run_id) for one in found.attention] == [("forgotten run", case.run)]
    assert found.to_dict()["attention"][0]["text"] == "planned without an event for 8 days"
    assert "needs attention" in drawn(found)


@pytest.mark.req("P6")
def test_a_window_stands_in_the_plan_and_in_show(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.project.cancel(case.run, "ana", "again with its window")
    found = case.project.plan("m.yaml", by="bob", window="2020-01-02..2020-01-02")
    assert found.window is not None
    assert found.window.closes_with == "2020-01-03"
    shown = case.project.show(found.run_id)
    assert shown.window == found.window
    with pytest.raises(ConfigError, match="leaves out 2020-01-04"):
        case.project.plan("m.yaml", by="bob", window="2020-01-03..2020-01-03", dry_run=True)


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"subset": ("2020-01-03",)}, "--subset=2020-01-03"),
        ({"window": "2020-01-02..2020-01-02"}, "--window=2020-01-02..2020-01-02"),
    ],
)
def test_a_plan_that_was_only_looked_at_is_registered_by_the_same_options(
    tmp_path: Path, asked: Any, option: str
) -> None:
    found = Case(tmp_path).project.plan("m.yaml", by="bob", dry_run=True, **asked)
    assert found.next_command == f"lakehouse-backfill plan m.yaml {option}"


@pytest.mark.req("P8")
def test_a_subset_is_a_dry_run_of_the_manifest(tmp_path: Path) -> None:
    case = Case(tmp_path)
    found = case.project.plan("m.yaml", by="bob", subset=("2020-01-03",))
    assert found.partitions == ("2020-01-03",)
    run = str(found.run_id)
    case.project.approve(run, "ana")
    case.project.run(run, "bob")
    case.project.accept(run, "ana")
    with pytest.raises(Blocked, match="it is a dry run"):
        case.project.publish(run, "bob")
    assert case.project.status(run).runs[0].state == "accepted"


@pytest.mark.req("P8")
def test_a_dry_run_takes_no_place_and_has_partitions(tmp_path: Path) -> None:
    case = Case(tmp_path)
    real = str(case.project.plan("m.yaml", by="bob").run_id)
    with pytest.raises(ConfigError, match=f"the place of no run, and so not of {real}"):
        case.project.plan("m.yaml", real, "bob", subset=("2020-01-03",))
    assert case.project.status(real).runs[0].state == "planned"
    with pytest.raises(ConfigError, match="the subset names no partition"):
        case.project.plan("m.yaml", by="bob", subset=())
