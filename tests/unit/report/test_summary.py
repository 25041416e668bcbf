"""What the page wants of its reader: an act, with the command to type."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.report.dossier import Dossier
from lakehouse_backfill.report.page import render_page
from lakehouse_backfill.report.summary import find_next_act

RUN = "bf-0f3a9c2e71"
ACCEPT = f"lakehouse-backfill accept {RUN}"


def in_state(document: dict[str, Any], state: str, command: str) -> Dossier:
    document["run"]["state"] = state
    document["standing"]["next_command"] = command
    return Dossier.model_validate(document)


def test_who_may_accept_reads_how_on_the_first_screen(document: dict[str, Any]) -> None:
    in_state(document, "validated", ACCEPT)
    first_screen = render_page(document).split("</header>")[0]
    box = html.unescape(re.sub("<[^>]+>", " ", first_screen.split('class="wanted"')[1]))
    assert "Accept this result, or reject it." in box
    assert f"{ACCEPT}\nlakehouse-backfill reject {RUN} --reason TEXT" in box


def test_a_run_that_a_check_stopped_shows_how_to_let_it_pass(document: dict[str, Any]) -> None:
    document["waivers"] = []
    found = find_next_act(in_state(document, "rejected", "lakehouse-backfill plan x.yaml"))
    assert found.sentence.endswith("or let what failed pass, for the record.")
    assert found.commands == (
        "lakehouse-backfill plan x.yaml",
        f"lakehouse-backfill waive {RUN} 'mean delay moves by at most 1 %' --reason TEXT",
    )


def test_nobody_is_asked_to_waive_what_cannot_be_waived(document: dict[str, Any]) -> None:
    document["validation"]["checks"][2]["passed"] = False
    found = find_next_act(in_state(document, "rejected", "lakehouse-backfill plan x.yaml"))
    assert found.commands == ("lakehouse-backfill plan x.yaml",)


@pytest.mark.parametrize(
    "remark", ["   (which shows what happened)", "   # which shows what happened"]
)
def test_a_remark_is_no_part_of_the_command(document: dict[str, Any], remark: str) -> None:
    command = "lakehouse-backfill log bf-1"
    found = find_next_act(in_state(document, "failed", command + remark))
    assert (found.commands, found.remark) == ((command,), "which shows what happened")


@pytest.mark.req("O5")
@pytest.mark.parametrize("state", list(RunState))
def test_every_state_says_what_is_wanted(document: dict[str, Any], state: RunState) -> None:
    found = find_next_act(in_state(document, state.value, "lakehouse-backfill status"))
    assert found.sentence != "Nothing." or state is RunState.DRAFT
    assert found.commands


def test_the_row_predicate_is_on_the_first_screen(document: dict[str, Any]) -> None:
    target = document["plan"]["resolved"]["manifest"]["target"]
    target["row_predicate"] = {"carrier": ["UA", "AA"]}
    first_screen = render_page(document).split("</header>")[0]
    assert "Only rows with carrier in UA, AA; all others are carried over" in first_screen


def test_the_first_screen_names_the_totals_that_change_most(document: dict[str, Any]) -> None:
    document["validation"]["totals"] = [
        {"name": name, "old": old, "new": new}
        for name, old, new in (
            ("cases: A", 100, 100), ("cases: B", 50, 50), ("late: A", 1000, 1010),
            ("late: B", 40, 42), ("late: C", 0, 1),
        )
    ]  # fmt: skip
    first_screen = html.unescape(render_page(document).split("</header>")[0])
    assert "late: C: 0 → 1" in first_screen
    assert "late: B: 40 → 42" in first_screen
    assert "cases: A" not in first_screen


@pytest.mark.parametrize("state", ["validated", "rejected", "published"])
def test_every_command_of_the_page_names_the_profile_that_was_named(
    document: dict[str, Any], state: str
) -> None:
    command = f"lakehouse-backfill status {RUN}"
    in_state(document, state, command)
    document |= {"profile": "lake <1>", "attribution": None, "waivers": []}
    text = html.unescape(re.sub("<[^>]+>", "", render_page(document)))
    lines = re.findall(r"lakehouse-backfill .*", text)
    assert len(lines) > 7
    start = "lakehouse-backfill --profile 'lake <1>' "
    assert [line for line in lines if not line.startswith(start)] == []
