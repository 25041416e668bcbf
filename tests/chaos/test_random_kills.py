"""A driver that is killed at random chunks, 20 times, each time by another seed."""

from __future__ import annotations

import random
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


@pytest.fixture(scope="module")
def whole(labs: list[Lab]) -> tuple[str, dict[str, Any]]:
    """A run of a chunk for each day, saved when it is approved, and what it comes to."""
    lab = labs[0]
    lab.restore("new")
    run = str(lab.must("plan", lab.manifest("r.yaml", DAYS[0], "2024-01-09"), *BY).data["run_id"])
    lab.must("approve", run, *BY)
    lab.save("approved by day")
    lab.must("run", run, *BY)
    return run, facts(lab.oracle, TARGET, run)


@pytest.mark.req("T8", "T3", "X3")
@pytest.mark.parametrize("first", range(0, SEEDS, DEATHS))
def test_the_run_converges_and_each_chunk_lands_once(
    lab: Lab, whole: tuple[str, dict[str, Any]], first: int
) -> None:
    run, expected = whole
    lab.restore("approved by day")
    for seed in range(first, first + DEATHS):
        chance = random.Random(seed)
        # What landed without its row is only recorded by the next driver.
        left = len(DAYS) - len(lab.oracle.attempts())
        lab.killed(
            "run", run, *BY, hook=Kill(chance.choice(POINTS), chance.randint(1, max(1, left // 3)))
        )
    lab.must("run", run, *BY)
    assert facts(lab.oracle, TARGET, run) == expected
    attempts = lab.oracle.attempts()
    assert len(attempts) == len(set(attempts)) == len(expected["ledger"]) == len(DAYS)
    assert lab.must("recover", "--all", *BY).data["actions"] == []
