"""SIGKILL at every point of a publication in steps, and of one by events: the same in the end.

On a branch of the target it is killed at the commits to the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import Kill, Record
from tests.chaos.lab import BY, TARGET, Lab
from tests.chaos.oracle import MARK
from tests.chaos.scenarios import ON_BRANCH, moments

SINK = "silver.t_corrections"
#: The points are killed at in so many tests: none takes long.
SHARES = 12
#: What stands under `target:` beside the partitions, two days that are a step each.
KINDS = {
    "steps": "  progressive: {partitions_per_step: 1}\n",
    "events": f"  publish_mode: correction_events\n  corrections: {{table: {SINK}}}\n",
}


@pytest.fixture(
    scope="module",
    params=[(kind, isolation) for kind in KINDS for isolation in ("clone", "branch")],
    ids=" ".join,
)
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lab with an accepted run of that kind, saved as `accepted`."""
    kind, isolation = request.param
    lab = Lab(tmp_path_factory.mktemp(kind), isolation)
    lab.make()
    file = lab.manifest("a.yaml", "2024-01-02", "2024-01-04")
    path = lab.folder / file
    text = path.read_text(encoding="utf-8")
    text = text.replace("target:\n", "target:\n" + KINDS[kind])
    path.write_text(text, encoding="utf-8")
    lab.run = lab.must("plan", file, *BY).data["run_id"]
    for words in (("approve",), ("stage",), ("validate",), ("accept",)):
        lab.must(*words, lab.run, *BY)
    lab.save("accepted")
    return lab


def _facts(lab: Lab) -> dict[str, Any]:
    """What must be the same, whatever was killed on the way."""
    oracle = lab.oracle
    rows = oracle.log("accepted_output_version", "output_version", "action", "scope")
    events = oracle.log("run_event", "run_id", "to_state")
    told: list[Any] = []
    tables = [TARGET]
    if SINK in oracle.names():
        tables.append(SINK)
        found = oracle.table(SINK).scan().to_arrow().to_pylist()
        told = sorted((e["partition"], e["key"], e["old"], e["new"]) for e in found)
    tokens = [
        summary[f"{MARK}publication"]
        for table in tables
        for summary in oracle.summaries(table)
        if f"{MARK}publication" in summary
    ]
    return {
        "target": oracle.rows(TARGET),
        "events": told,
        "scopes": [row["scope"] for row in rows if row["action"] == "publish"],
        "accepted": rows[-1]["action"] == "publish",
        "commits": len(tokens),
        "tokens are used once": len(tokens) == len(set(tokens)),
        "state": events[-1]["to_state"],
        "evidence": sorted({row["kind"] for row in oracle.log("evidence", "kind")}),
    }


def _cases(lab: Lab, passed: list[str]) -> list[tuple[str, int]]:
    """Where it is killed."""
    found = moments(passed)
    if lab.isolation == "branch":
        return [(point, nth) for point, nth in found if point.startswith(ON_BRANCH)]
    return found


@dataclass(frozen=True)
class Undisturbed:
    """What a publication passes, and what is so after it."""

    lab: Lab
    points: list[str]
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(prepared: Lab, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    points = tmp_path_factory.mktemp("points") / "points"
    prepared.restore("accepted")
    ended = prepared.do("publish", prepared.run, *BY, hook=Record(points))
    assert ended.code == 0, ended
    found = points.read_text(encoding="utf-8").split()
    prepared.save("published")
    return Undisturbed(prepared, found, _facts(prepared))


@pytest.mark.req("U6", "U9")
def test_two_steps_are_two_commits_and_all_events_are_one(undisturbed: Undisturbed) -> None:
    found = undisturbed.facts
    assert (found["state"], found["tokens are used once"]) == ("published", True)
    assert (len(found["events"]), found["commits"], len(found["scopes"])) in ((0, 2, 2), (6, 1, 1))


@pytest.mark.req("T3", "U6", "U9", "U10", "X12")
@pytest.mark.parametrize("share", range(SHARES))
def test_a_publication_that_is_killed_anywhere_comes_to_the_same_result(
    undisturbed: Undisturbed, share: int
) -> None:
    lab, passed = undisturbed.lab, undisturbed.points
    publish = ("publish", lab.run, *BY)
    for place, (point, nth) in list(enumerate(_cases(lab, passed)))[share::SHARES]:
        lab.restore("accepted")
        lab.killed(*publish, hook=Kill(point, nth))
        if (place + place // SHARES) % 2:
            lab.must("recover", lab.run, *BY)
        # Recovery has nothing to go on with where the run was not even moved to publishing.
        lab.must(*publish)
        assert _facts(lab) == undisturbed.facts, (point, nth)
        assert lab.must("recover", "--all", *BY).data["actions"] == [], (point, nth)


@pytest.mark.req("T3", "U6", "U9", "U10", "X12")
def test_a_rollback_that_is_killed_anywhere_comes_to_the_same_result(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    lab, points = undisturbed.lab, tmp_path / "points"
    back = ("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)
    lab.restore("published")
    assert lab.do(*back, hook=Record(points)).code == 0
    wanted = _facts(lab)
    assert wanted["state"] == "rolled_back"
    passed = points.read_text(encoding="utf-8").split()
    method = "Corrections.compensate" if wanted["events"] else "Publisher.revert"
    assert f"{method}:after" in passed
    for place, (point, nth) in enumerate(_cases(lab, passed)):
        lab.restore("published")
        lab.killed(*back, hook=Kill(point, nth))
        if place % 2:
            lab.must("recover", "--all", *BY)
        if _facts(lab)["state"] != wanted["state"]:
            ended = lab.do(*back)
            assert ended.code == 0 or "at version 0 already" in ended.error["problem"], ended
            lab.must("recover", "--all", *BY)
        assert _facts(lab) == wanted, (point, nth)
        assert lab.must("recover", "--all", *BY).data["actions"] == [], (point, nth)
