"""Troubles that stay while a command runs: no catalog, a full disk, a clock that is off."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.chaos.cases import Case, Outcome
from tests.chaos.faults import Away, Both, FullDisk, Kill, Skewed
from tests.chaos.lab import Ended, Lab
from tests.chaos.scenarios import SCENARIOS

VERBS = {one.name: one for one in SCENARIOS}
STAGED, SWAPPED = ("Spark.overwrite:committed", 2), ("Publisher.swap:committed", 1)
STAGING, SWAPPING = ("Spark.overwrite:committing", 2), ("Publisher.swap:committing", 1)


@dataclass(frozen=True)
class Trouble:
    """A command that meets a trouble, how it ends, and how it goes on without the trouble."""

    verb: str
    fault: Mapping[str, Any]
    codes: tuple[int, ...]
    goes_on: str = "again"


DAY = timedelta(days=1)
KILLED = (-9,)
TROUBLES = {
    "stage, the catalog goes away between chunks": Trouble("stage", {"outage": Away(9)}, (5, 6)),
    # Whether the swap landed cannot be looked up.
    "publish, the catalog goes away at the swap": Trouble("publish", {"outage": Away(4)}, (5, 6)),
    "stage, the disk is full": Trouble("stage", {"hook": FullDisk(*STAGING)}, (5, 6)),
    "publish, the disk is full": Trouble("publish", {"hook": FullDisk(*SWAPPING)}, (5, 6)),
    "stage, a driver whose clock is a day ahead dies": Trouble(
        "stage", {"hook": Both(Skewed(DAY), Kill(*STAGED))}, KILLED
    ),
    "stage, a driver whose clock is a day behind dies": Trouble(
        "stage", {"hook": Both(Skewed(-DAY), Kill(*STAGED))}, KILLED
    ),
    "publish, a driver whose clock is a day ahead dies": Trouble(
        "publish", {"hook": Both(Skewed(DAY), Kill(*SWAPPED))}, KILLED, "recover"
    ),
}


def meet(lab: Lab, case: Case) -> Ended:
    return lab.do(*lab.typed(case.scenario.command), **TROUBLES[case.point].fault)


CASES = [Case(VERBS[one.verb], name, 1, one.goes_on, meet) for name, one in TROUBLES.items()]


@pytest.mark.req("T8", "X2", "X3")
@pytest.mark.parametrize("case", CASES, ids=[one.point for one in CASES])
def test_once_the_trouble_is_over_the_command_comes_to_the_same_result(
    case: Case, outcomes: dict[Any, Future[Any]]
) -> None:
    outcome: Outcome = outcomes[case].result()
    assert outcome.ended.code in TROUBLES[case.point].codes, outcome.ended
    assert outcome.facts == outcomes[case.scenario].result()
    assert outcome.outside[0] == outcome.outside[1]
    assert len(outcome.attempts) == len(set(outcome.attempts)) == len(outcome.facts["ledger"])
    assert (outcome.actions, outcome.was_written_to, outcome.deleted) == ([], False, [])
