"""SIGKILL at the points of a publication that catches up with a live commit, then the same again.

The points are those that the publication really passes, right after each commit: between two of
them the lake stays as it is. Each is killed the first and the last time. Every second case goes on
by `recover --all` before the same command. On a branch of the target it is killed at the commits to
branch and target.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import Kill, Record
from tests.chaos.lab import BY, DAYS, SCOPE, SOURCE, TARGET, Lab, _arrow
from tests.chaos.oracle import ACCEPTING, CONTROL, MARK
from tests.chaos.scenarios import ON_BRANCH
from tests.turn_plugin import of_turn

STATE = "accepted, and a live commit came"
WHEN = "committed"


@pytest.fixture(scope="module")
def points(labs_of_kind: list[Lab], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Save the state on the first lab; give what an uninterrupted publication passes."""
    lab = labs_of_kind[0]
    lab.restore("new")
    file = lab.folder / lab.manifest("c.yaml", SCOPE[0], DAYS[4])
    file.write_text(file.read_text() + "safety: {on_conflict: catch_up}\n")
    plain = lab.run
    lab.run = lab.must("plan", "jobs/c.yaml", *BY).data["run_id"]
    for command in ("approve", "stage", "validate", "accept"):
        lab.must(command, lab.run, *BY)
    with lab.opened() as catalog:
        row = _arrow([(date.fromisoformat(SCOPE[1]), 9, 9)])
        catalog.load_table(SOURCE).append(row)
        catalog.load_table(TARGET).append(row)
    lab.save(STATE)
    passed = tmp_path_factory.mktemp("catching up") / "points"
    assert lab.do("publish", lab.run, *BY, hook=Record(passed)).code == 0
    found = passed.read_text().split()
    vars(lab)["catching_up"] = lab.run
    lab.run = plain
    return found


def _facts(lab: Lab) -> dict[str, Any]:
    oracle = lab.oracle
    pointer = oracle.log("accepted_output_version", "output_version", "action")
    states: dict[str, str] = {}
    for event in oracle.log("run_event", "run_id", "to_state"):
        states[event["run_id"]] = event["to_state"]
    ledger = oracle.log("backfill_chunk_run", "run_id", "chunk_id", "output_rows", "carried_from")
    chunks = {(row["run_id"], row["chunk_id"]): row for row in ledger}
    made = Counter(
        # Each driver has a branch of its own: it begins where that of the last one ended.
        (re.sub(r"-e\d+$", "", name), one[f"{MARK}chunk-id"])
        for name in oracle.shadows()
        for one in oracle.summaries(name)
        if f"{MARK}chunk-id" in one
    )
    return {
        "target": oracle.rows(TARGET),
        "states": sorted(states.values()),
        # Numbers that were given back are not used again, so they are not compared.
        "versions": [row["action"] for row in pointer if row["action"] in ACCEPTING],
        "reserved": pointer[-1]["action"] == "reserve",
        "chunks": sorted(
            (row["chunk_id"], row["output_rows"], bool(row["carried_from"]))
            for row in chunks.values()
        ),
        "made more than once": [one for one, times in made.items() if times > 1],
        "tables": sorted(name for name in oracle.names() if not name.startswith(CONTROL))[:2],
    }


def _cases(lab: Lab, points: list[str]) -> list[tuple[str, int]]:
    found = []
    own = ON_BRANCH if lab.isolation == "branch" else ""
    for place, point in enumerate(points):
        nth = points[: place + 1].count(point)
        if point.startswith(own) and point.endswith(WHEN) and nth in (1, points.count(point)):
            found.append((point, nth))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.in_turn(2)
@pytest.mark.req("U11", "T3")
def test_a_publication_that_catches_up_may_be_killed_anywhere(
    labs_of_kind: list[Lab],
    points: list[str],
    subtests: pytest.Subtests,
    pytestconfig: pytest.Config,
) -> None:
    lab = labs_of_kind[0]
    run = vars(lab)["catching_up"]
    lab.restore(STATE)
    lab.must("publish", run, *BY)
    wanted = _facts(lab)
    assert wanted["states"] == ["published", "superseded"]
    assert [row for row in wanted["target"] if row[0] == SCOPE[1]] == [
        (SCOPE[1], 1, 10), (SCOPE[1], 2, 20), (SCOPE[1], 3, 30), (SCOPE[1], 9, 90),
    ]  # fmt: skip
    cases = list(enumerate(_cases(lab, points)))
    for number, (point, nth) in of_turn(pytestconfig, cases):
        goes_on = ("again", "recover")[number % 2]
        with subtests.test(point=point, nth=nth, goes_on=goes_on):
            lab.restore(STATE)
            lab.killed("publish", run, *BY, hook=Kill(point, nth))
            kept = {name for name in lab.oracle.files() if not name.endswith(".metadata.json")}
            if goes_on == "recover":
                lab.must("recover", "--all", *BY)
            ended = lab.do("publish", run, *BY)
            assert ended.code == 0, ended
            assert _facts(lab) == wanted
            assert lab.must("recover", "--all", *BY).data["actions"] == []
            assert kept <= set(lab.oracle.files())


@pytest.mark.req("U11")
def test_the_points_of_a_carried_chunk_are_among_those_that_are_killed(points: list[str]) -> None:
    assert {"Publisher.carry:before", "Publisher.carry:after"} <= set(points)


def test_a_lab_has_a_folder_of_its_own(labs: list[Lab]) -> None:
    assert len({Path(lab.folder) for lab in labs}) == len(labs)
