"""Cut off while a result is accepted, or computed again: nothing is lost, nothing stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chaos.aging import register_aged
from tests.chaos.faults import Kill
from tests.chaos.lab import BY, DAYS, TARGET, Lab

SHADOWS = "lakehouse_backfill_shadow"


def bad(lab: Lab) -> list[str]:
    data: dict[str, Any] = json.loads(lab.do("verify", lab.run).said)["data"]
    return [one["name"] for one in data["checks"] if one["ok"] is False]


def scratches(lab: Lab) -> list[str]:
    with lab.opened() as catalog:
        found = [".".join(name) for name in catalog.list_tables(SHADOWS)]
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


@pytest.mark.req("T3", "D5", "O7")
@pytest.mark.parametrize("command", [("reproduce", "RUN"), ("audit", "guarantees")])
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
    with lab.opened() as catalog:
        for name in scratches(lab):
            register_aged(catalog, name, name, days=1)
    lab.must("maintain", *BY)
    assert (scratches(lab), bad(lab)) == ([], [])
