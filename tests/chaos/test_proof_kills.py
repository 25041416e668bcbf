"""Cut off while a result is accepted, or computed again: nothing is lost, nothing stays."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.chaos.faults import Kill, Skewed
from tests.chaos.lab import BY, DAYS, TARGET, Lab

#: By then nobody computes there any more.
_TOMORROW = Skewed(timedelta(days=1, hours=1))


def bad(lab: Lab) -> list[str]:
    data: dict[str, Any] = json.loads(lab.do("verify", lab.run).said)["data"]
    return [one["name"] for one in data["checks"] if one["ok"] is False]


def scratches(lab: Lab) -> list[str]:
    """Name the clones and branches that are computed in."""
    found = [name.replace("-", "_") for name in lab.oracle.shadows()]
    return [name for name in found if "__again_" in name or "__audit_" in name]


@pytest.mark.req("T3", "O4")
@pytest.mark.parametrize(
    "point",
    ["ControlLog.evidence:committing", "ControlLog.evidence:committed", "Runs.append:after"],
)
def test_an_acceptance_that_is_cut_off_is_given_again_and_anchored(lab: Lab, point: str) -> None:
    lab.restore("staged")
    lab.must("validate", lab.run, *BY)
    lab.killed("accept", lab.run, *BY, hook=Kill(point))
    again = lab.do("accept", lab.run, *BY)
    # It landed before the kill: the run is accepted already.
    assert again.code == (2 if point == "Runs.append:after" else 0), again
    lab.must("publish", lab.run, *BY)
    assert bad(lab) == []


@pytest.mark.req("T3", "D5", "O7", "X12")
@pytest.mark.parametrize(
    ("isolation", "command"),
    [
        ("clone", ("reproduce", "RUN")),
        ("branch", ("reproduce", "RUN")),
        ("clone", ("audit", "guarantees")),
    ],
    ids=["reproduce", "reproduce on a branch", "audit"],
)
@pytest.mark.parametrize(
    "point", ["Shadows.open:after", "Spark.overwrite:committed", "Shadows.retire:before"]
)
def test_what_is_computed_again_and_cut_off_harms_nothing_and_is_let_go(
    lab: Lab, command: tuple[str, ...], point: str
) -> None:
    lab.restore("published")
    files = {day: lab.oracle.paths(TARGET)[day] for day in DAYS}
    words = tuple(lab.run if word == "RUN" else word for word in command)
    lab.killed(*words, hook=Kill(point))
    assert len(scratches(lab)) == 1
    assert {day: lab.oracle.paths(TARGET)[day] for day in DAYS} == files
    assert lab.must("recover", "--all", *BY).data["actions"] == []
    lab.must(*words)
    # Young, it may be that of a command at work.
    lab.must("maintain", *BY)
    assert len(scratches(lab)) == 1
    assert lab.do("maintain", *BY, hook=_TOMORROW).code == 0
    assert (scratches(lab), bad(lab)) == ([], [])
