"""A driver that is killed at random chunks, 20 times; half of the times it stages two at once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from tests.chaos.faults import Kill
from tests.chaos.lab import BY, DAYS, TARGET, Lab
from tests.chaos.oracle import facts

SEEDS = 20
#: So many drivers of one run die one after the other.
DEATHS = 5
#: Around a chunk's computation, its commit, and its row in the ledger.
POINTS = (
    "Staging.stage:before",
    "Spark.overwrite:committing",
    "Spark.overwrite:committed",
    "ControlLog.backfill_chunk_run:committing",
    "ControlLog.backfill_chunk_run:committed",
)


@dataclass(frozen=True)
class Whole:
    """A run of a chunk for each day, saved when it is approved, and what it comes to."""

    state: str
    run: str
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def wholes(labs: list[Lab]) -> dict[int, Whole]:
    """The run with one chunk at a time, and with two."""
    lab, found = labs[0], {}
    for parallel in (1, 2):
        lab.restore("new")
        file = lab.manifest("r.yaml", DAYS[0], "2024-01-09")
        limits = f"{{partitions_per_chunk: 1, parallel: {parallel}, failures_in_a_row: 3}}"
        text = (lab.folder / file).read_text("utf-8")
        assert "{partitions_per_chunk: 1}" in text
        (lab.folder / file).write_text(text.replace("{partitions_per_chunk: 1}", limits), "utf-8")
        run = str(lab.must("plan", file, *BY).data["run_id"])
        lab.must("approve", run, *BY)
        state = f"approved by day, {parallel} at a time"
        lab.save(state)
        lab.must("run", run, *BY)
        found[parallel] = Whole(state, run, facts(lab.oracle, TARGET, run))
    return found


@pytest.mark.req("T8", "T3", "X3")
@pytest.mark.parametrize("first", range(0, SEEDS, DEATHS))
def test_the_run_converges_and_each_chunk_lands_once(
    lab: Lab, wholes: dict[int, Whole], first: int
) -> None:
    whole = wholes[1 + first // DEATHS % 2]
    lab.restore(whole.state)
    for seed in range(first, first + DEATHS):
        chance = random.Random(seed)
        # What landed without its row is only recorded by the next driver.
        left = len(DAYS) - len(lab.oracle.attempts())
        kill = Kill(chance.choice(POINTS), chance.randint(1, max(1, left // 3)))
        lab.killed("run", whole.run, *BY, hook=kill)
    lab.must("run", whole.run, *BY)
    assert facts(lab.oracle, TARGET, whole.run) == whole.facts
    attempts = lab.oracle.attempts()
    assert len(attempts) == len(set(attempts)) == len(whole.facts["ledger"]) == len(DAYS)
    assert lab.must("recover", "--all", *BY).data["actions"] == []
