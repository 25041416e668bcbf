"""Who ended a run, when and why: on the first screen and among the decisions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakehouse_backfill.report.page import render_page

pytestmark = pytest.mark.req("O4")


def ended(document: dict[str, Any], verb: str, state: str, reason: str = "wrong rates") -> str:
    """Let `eva` end the run, and give the page."""
    newest = document["events"][-1]
    document["events"].append(
        newest
        | {
            "seq": newest["seq"] + 1, "at": "2026-03-03T10:15:00Z", "actor": "eva", "verb": verb,
            "from_state": newest["to_state"], "to_state": state, "detail": {"reason": reason},
        }
    )  # fmt: skip
    document["run"] |= {"state": state, "seq": newest["seq"] + 1}
    return render_page(document)


def section(page: str, anchor: str) -> str:
    return page.split(f'id="{anchor}"')[1].split("</section>")[0]


@pytest.mark.req("Q8")
def test_who_rejected_a_run_and_why_stands_on_the_first_screen_and_in_the_decisions(document):
    document |= {"approvals": [], "waivers": [], "publication": None}
    document["events"] = document["events"][:6]  # validated
    page = ended(document, "reject", "rejected")
    said = "Rejected by eva: wrong rates (2026-03-03 10:15:00 UTC)"
    first_screen = page.split("</header>")[0]
    assert "✗ rejected by eva</span>" in first_screen
    assert said in first_screen.split("Who approved?")[1]
    assert said in section(page, "decisions")
    assert ">reject</td>" in section(page, "decisions")
    assert "Nobody has decided" not in page


@pytest.mark.req("Q8")
def test_a_run_that_checks_rejected_names_no_person(document: dict[str, Any]) -> None:
    document["events"] = document["events"][:5]  # staged
    first_screen = ended(document, "fail validation", "rejected").split("</header>")[0]
    assert "✗ rejected by checks</span>" in first_screen
    assert "eva" not in first_screen


def test_a_rolled_back_run_says_first_who_took_it_back_when_and_why(document) -> None:
    first_screen = ended(document, "roll back", "rolled_back").split("</header>")[0]
    assert "↩ rolled back by eva</span>" in first_screen
    assert "Rolled back by eva: wrong rates (2026-03-03 10:15:00 UTC)" in first_screen
    safe = first_screen.split("Is it safe?")[1].split("Who approved?")[0]
    assert '<p class="big"><span class="mark warn">↩ rolled back</span></p>' in safe
    assert "<p>8 of 10 checks passed, 1 waived, 1 failed without blocking</p>" in safe
    assert "✓" not in safe


def test_a_run_that_was_published_again_was_not_ended(document: dict[str, Any]) -> None:
    ended(document, "roll back", "rolled_back")
    page = ended(document, "reinstate", "published")
    assert "✓ published as version 3" in page
    assert "Rolled back by" not in page.split("</header>")[0]


def test_a_cancelled_run_says_by_whom_also_without_a_reason(document: dict[str, Any]) -> None:
    page = ended(document, "cancel", "cancelled", reason="")
    assert "Cancelled by eva: no reason given" in page.split("</header>")[0]


@pytest.mark.req("Q9")
def test_checks_of_one_name_are_told_apart_by_what_they_are_about(document: dict[str, Any]) -> None:
    name, question = "keys are unique", "Is every key unique?"
    document["validation"]["checks"][1]["passed"] = False
    failed = json.loads(json.dumps(document["validation"]["checks"][1]))
    document["chunk_checks"][1]["checks"] = [failed]
    document["waivers"] = [
        {
            "gate": name, "group": "diff", "scope": "c002", "by": "lead", "reason": "known",
            "at": "2026-03-02T09:35:00Z",
            "bound_to": f"c002@{document['chunk_checks'][1]['checksum']}",
        }
    ]  # fmt: skip
    page = render_page(document)
    first_screen = page.split("</header>")[0]
    assert f"Failed: {question} (result)" in first_screen
    assert f"Waived by lead: {question} (chunk c002)" in first_screen
    assert f"{question}, chunk c002 <code>" in section(page, "decisions")
    rows = section(page, "checks").split(f"{question}</td>")[1:3]
    assert [f">{of}</td>" in row for of, row in zip(("chunk c002", "result"), rows, strict=True)]
