"""SIGKILL at every fault point, then the same command or `recover`: the result is the same."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cases import Case, Outcome
from tests.chaos.faults import Kill, Record
from tests.chaos.lab import Ended, Lab
from tests.chaos.scenarios import SCENARIOS, Scenario


def killed(lab: Lab, case: Case) -> Ended:
    return lab.killed(*lab.typed(case.scenario.command), hook=Kill(case.point, case.nth))


#: Between two effects lie two points: one goes on by the same command, one by recovery.
CASES = [
    Case(scenario, point, nth, ("again", "recover")[place % 2], killed)
    for scenario in SCENARIOS
    for place, (point, nth) in enumerate(scenario.cases())
]


@pytest.mark.req("T3")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_a_verb_passes_exactly_the_points_at_which_it_is_killed(
    lab: Lab, scenario: Scenario, tmp_path: Path
) -> None:
    lab.restore(scenario.state)
    ended = lab.do(*lab.typed(scenario.command), hook=Record(tmp_path / "points"))
    assert ended.code == 0, ended
    assert tuple((tmp_path / "points").read_text().split()) == scenario.points


@pytest.mark.req("T3", "U10")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_killed_comes_to_the_same_result(
    case: Case, outcomes: dict[Any, Future[Any]]
) -> None:
    outcome: Outcome = outcomes[case].result()
    assert outcome.facts == outcomes[case.scenario].result()
    assert outcome.outside[0] == outcome.outside[1]
    # A chunk that was in flight has left no commit, and one that has is not computed again.
    assert len(outcome.attempts) == len(set(outcome.attempts)) == len(outcome.facts["ledger"])
    assert (outcome.actions, outcome.was_written_to, outcome.deleted) == ([], False, [])
