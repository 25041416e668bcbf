"""The catalog answers a commit with an error, after it landed or instead of it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.chaos.cases import Case, Outcome
from tests.chaos.faults import Outage
from tests.chaos.lab import Ended, Lab
from tests.chaos.scenarios import SCENARIOS

#: Done all the same, outcome unknown, or the environment is down.
CODES = (0, 5, 6)
AFTER, BEFORE = "an error after the commit", "an error instead of the commit"
VERBS = [one for one in SCENARIOS if one.name in ("plan", "stage", "publish", "roll back")]


def failing(lab: Lab, case: Case) -> Ended:
    outage = Outage(case.nth, is_after=case.point == AFTER)
    return lab.do(*lab.typed(case.scenario.command), outage=outage)


def commits(points: tuple[str, ...]) -> list[int]:
    """Number the commits on the catalog; of the control tables that are made, the first two."""
    made = [
        point
        for point in points
        if point.endswith(":committing") and not point.startswith("Shadows.metadata_file")
    ]
    seldom = [n for n, point in enumerate(made, 1) if "create_table" in point][2:]
    return [number for number in range(1, len(made) + 1) if number not in seldom]


CASES = [
    Case(scenario, when, nth, ("again", "recover")[nth % 2], failing)
    for scenario in VERBS
    for nth in commits(scenario.points)
    for when in (AFTER, BEFORE)
]


@pytest.mark.req("T4", "U10")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_commit_of_unknown_outcome_lands_once_and_is_never_lost(
    case: Case, outcomes: dict[Any, Future[Any]]
) -> None:
    outcome: Outcome = outcomes[case].result()
    assert outcome.ended.code in CODES, outcome.ended
    assert outcome.facts == outcomes[case.scenario].result()
    assert outcome.outside[0] == outcome.outside[1]
    assert len(outcome.attempts) == len(set(outcome.attempts)) == len(outcome.facts["ledger"])
    assert (outcome.actions, outcome.was_written_to, outcome.deleted) == ([], False, [])
