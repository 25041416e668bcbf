"""When not to backfill: each case with what the plan sees, and the page that lists them (P7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.planning.advice import ADVICE_CASES, BackfillFacts, advise
from lakehouse_backfill.core.planning.plan import make_plan
from tests.support.fakes import steps
from tests.support.fakes.context import contract, declared

PAGE = Path(__file__).parents[4] / "docs/advice.md"

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "few rows are wrong": ({"error_rate": 0.0004}, "0.040% of the rows are wrong; document"),
    "some rows are wrong": ({"error_rate": 0.02}, "2.0% of the rows are wrong, and rows have"),
    "most rows are wrong": ({"error_rate": 0.9}, "90% of the rows are wrong; a backfill of whole"),
    "most of the table": ({"share_of_table": 0.6}, "hold 60% of the table's rows; build a new"),
    "derived view": (
        {"share_of_table": 1.0, "is_derived": True, "publish_mode": "versioned"},
        "derived from other products, without warm-up; refresh it",
    ),
    "input is past its retention": (
        {"past_input": ("2020-01-02",)},
        "inputs keep no rows for 2020-01-02; do not compute",
    ),
    "output is past its retention": (
        {"past_output": ("2020-01-02", "2020-01-03")},
        "the product keeps no rows for 2020-01-02, 2020-01-03; document",
    ),
    "consumers tolerate no restatement": (
        {"unwilling": ("finance",)},
        "history must not change under finance; agree with them first",
    ),
    "consumers read a stream": ({"streams": ("alerts",)}, "alerts follow the table's snapshots"),
    "nobody relies on it": ({"is_unused": True}, "names no consumer; document the error"),
}


@pytest.mark.req("P7")
@pytest.mark.parametrize("name", [case.name for case in ADVICE_CASES])
def test_each_case_is_seen_by_its_numbers_alone(name: str) -> None:
    facts, text = CASES[name]
    (advice,) = advise(BackfillFacts(**facts))
    assert advice.startswith(f"when not to backfill, {name}: ")
    assert text in advice


def test_nothing_speaks_against_an_ordinary_backfill() -> None:
    assert len(ADVICE_CASES) >= 8
    assert advise(BackfillFacts(error_rate=0.2, share_of_table=0.3)) == ()


@pytest.mark.parametrize(
    "facts",
    [
        {"error_rate": 0.02, "publish_mode": "merge"},
        {"error_rate": 0.02, "names_rows": True},
        {"error_rate": 0.02, "has_key": False},
        {"share_of_table": 0.9, "publish_mode": "pointer_swap"},
        {"unwilling": ("finance",), "publish_mode": "correction_events"},
        {"is_derived": True, "share_of_table": 0.1},
    ],
)
def test_a_run_that_follows_the_advice_gets_none(facts: dict[str, Any]) -> None:
    assert advise(BackfillFacts(**facts)) == ()


@pytest.mark.req("P7")
def test_the_page_lists_the_cases_with_their_advice() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for case in ADVICE_CASES:
        assert f"| {case.name} | " in page
        assert f" | {case.advice} |" in page


@pytest.mark.req("P7")
def test_the_plan_advises_by_what_it_knows_of_the_run() -> None:
    where, found = steps.world()
    where.tables["silver.daily"].summaries[0]["total-records"] = "30"
    finance = {"name": "finance", "tolerates_restatement": False, "reads": "stream"}
    wanted = declared(
        run={"error_rate": 0.01}, contract=contract(consumers=[finance]),
    )  # fmt: skip
    notes = make_plan(found, wanted, "bob", None).notes
    cases = [note.split(": ")[0].partition(", ")[2] for note in notes if "not to backfill" in note]
    assert cases == [
        "some rows are wrong",
        "most of the table",
        "consumers tolerate no restatement",
        "consumers read a stream",
    ]
    assert any("hold 67% of the table's rows" in note for note in notes)
