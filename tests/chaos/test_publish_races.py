"""Whole publications by two real processes that meet between looking and committing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.faults import Meet
from tests.chaos.lab import (
    BY,
    DAYS,
    SCOPE,
    TARGET,
    Ended,
    Lab,
    expected_rows,
    shared_barrier,
)
from tests.chaos.oracle import MARK

OTHER = DAYS[4:6]
#: Each has looked at run, decisions, shadow and pointer, and none has written to the product.
LOOKED = "Versions.move:before"
#: Both have decided on the same pointer. Whoever holds the lock file is waited for, 5 s long.
DECIDED = "ControlLog.accepted_output_version:committing"
#: Of two that publish the same run, none has said that it does.
BEGUN = "Runs.append:before"
PLACES = [
    pytest.param(LOOKED, id="having looked"),
    pytest.param(DECIDED, id="having decided"),
]


@pytest.fixture(scope="module")
def rounds() -> dict[str, int]:
    """How often they meet at each place."""
    return {LOOKED: 12, DECIDED: 2, BEGUN: 5}


def planned(lab: Lab, file: str, first: str, stop: str) -> str:
    """Bring a run to where it can be published."""
    run = str(lab.must("plan", lab.manifest(file, first, stop), *BY).data["run_id"])
    lab.must("approve", run, *BY)
    lab.must("stage", run, *BY)
    lab.must("validate", run, *BY)
    lab.must("accept", run, *BY)
    return run


@pytest.fixture(scope="module")
def pairs(labs: list[Lab]) -> dict[str, tuple[str, str]]:
    """Two runs that can both be published: of the same days, and of other ones."""
    lab = labs[0]
    lab.restore("accepted")
    apart = planned(lab, "b.yaml", OTHER[0], DAYS[6])
    lab.save("disjoint")
    lab.restore("published")
    # A run that was rolled back is not open any more, so that another one may be approved.
    lab.must("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)
    same = planned(lab, "c.yaml", DAYS[2], DAYS[4])
    lab.save("overlapping")
    return {"disjoint": (lab.run, apart), "overlapping": (lab.run, same)}


def race(lab: Lab, commands: list[tuple[str, ...]], point: str) -> list[Ended]:
    barrier = shared_barrier(len(commands))
    children = [lab.start(*command, hook=Meet(point, barrier=barrier)) for command in commands]
    return [child.end() for child in children]


def versions(lab: Lab) -> list[tuple[Any, ...]]:
    log = lab.oracle.log("accepted_output_version", "output_version", "action", "run_id")
    accepting = [row for row in log if row["action"] in ("baseline", "publish", "rollback")]
    return [tuple(row.values()) for row in accepting]


def swaps(lab: Lab) -> list[str]:
    found = lab.oracle.summaries(TARGET)
    return [one[f"{MARK}run-id"] for one in found if f"{MARK}output-version" in one]


@pytest.mark.req("U11", "T8")
@pytest.mark.parametrize("point", PLACES)
def test_of_overlapping_publications_exactly_one_wins_and_the_other_is_told_who(
    lab: Lab, pairs: dict[str, tuple[str, str]], point: str, rounds: dict[str, int]
) -> None:
    both = pairs["overlapping"]
    scopes = dict(zip(both, (SCOPE, DAYS[2:4]), strict=True))
    for number in range(rounds[point]):
        lab.restore("overlapping")
        before = versions(lab)
        ended = race(lab, [("publish", run, *BY) for run in both], point)

        assert sorted(one.code for one in ended) == [0, 4], (number, ended)
        winner = both[[one.code for one in ended].index(0)]
        loser = next(one for one in ended if one.code == 4)
        assert winner in loser.error["problem"], (number, loser)
        assert versions(lab)[len(before) :] == [(before[-2][0] + 1, "publish", winner)], number
        assert swaps(lab)[1:] == [winner], number
        assert lab.oracle.rows(TARGET) == expected_rows(scopes[winner]), number


@pytest.mark.req("U11", "T8")
@pytest.mark.parametrize("point", PLACES)
def test_disjoint_publications_of_one_product_both_land(
    lab: Lab, pairs: dict[str, tuple[str, str]], point: str, rounds: dict[str, int]
) -> None:
    both = pairs["disjoint"]
    for number in range(rounds[point]):
        lab.restore("disjoint")
        ended = race(lab, [("publish", run, *BY) for run in both], point)

        assert [one.code for one in ended] == [0, 0], (number, ended)
        landed = swaps(lab)
        assert sorted(landed) == sorted(both), number
        assert versions(lab) == [
            (0, "baseline", None),
            *((count, "publish", run) for count, run in enumerate(landed, 1)),
        ], number
        assert lab.oracle.rows(TARGET) == expected_rows(SCOPE, OTHER), number


@pytest.mark.req("U10", "T8")
def test_two_processes_that_publish_one_run_publish_it_once(
    lab: Lab, rounds: dict[str, int]
) -> None:
    for number in range(rounds[BEGUN]):
        lab.restore("accepted")
        ended = race(lab, [("publish", lab.run, *BY)] * 2, BEGUN)

        assert {one.code for one in ended} <= {0, 4}, (number, ended)
        assert 0 in {one.code for one in ended}, (number, ended)
        assert (swaps(lab), len(versions(lab))) == ([lab.run], 2), number
        assert lab.oracle.rows(TARGET) == expected_rows(SCOPE), number
