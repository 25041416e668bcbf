"""A run is paused by another process while a chunk is staged; either of them may be killed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.faults import Block, Kill
from tests.chaos.lab import BY, SCOPE, TARGET, Ended, Lab, shared_event
from tests.chaos.oracle import facts

BLOCKED, RUN_MOVED = 3, 4
_STAGE, _RUN = ("stage", "RUN"), ("run", "RUN")


@pytest.fixture(scope="module")
def whole(labs: list[Lab]) -> dict[str, Any]:
    """What a staging comes to that nobody pauses."""
    lab = labs[0]
    lab.restore("approved")
    lab.must(*lab.typed(_STAGE))
    return facts(lab.oracle, TARGET, lab.run)


def _paused_at(lab: Lab, point: str, *options: str, hook: Any = None) -> tuple[Ended, Ended]:
    """Pause the run while its driver is at its second chunk; how the driver and the pause ended."""
    lab.restore("approved")
    arrived, go = shared_event(), shared_event()
    driver = lab.start(*lab.typed(_STAGE), hook=Block(point, 2, arrived=arrived, go=go))
    assert arrived.wait(60)
    paused = lab.do("pause", lab.run, *options, *BY, hook=hook)
    go.set()
    return driver.end(), paused


def _acts(lab: Lab) -> list[str]:
    return [one["act"] for one in lab.must("run", lab.run, "--dry-run", *BY).data["chunks"]]


@pytest.mark.req("X3", "V3", "T3")
def test_a_pause_lands_while_a_chunk_is_staged_and_no_further_one_starts(
    lab: Lab, whole: dict[str, Any]
) -> None:
    driver, paused = _paused_at(lab, "Spark.overwrite:committing", "--reason", "live job late")
    assert (paused.code, paused.data["state"]) == (0, "paused")
    assert (driver.code, driver.error["code"]) == (BLOCKED, "run-paused")
    assert "live job late" in driver.error["problem"]
    assert len(lab.oracle.attempts()) == 2
    # Verdicts are stored 32 at a time, and at the end: the first chunk is judged again.
    assert _acts(lab) == ["judge", "record", "compute"]
    refused = lab.do(*lab.typed(_RUN))
    assert (refused.code, refused.error["code"]) == (BLOCKED, "run-paused")

    assert lab.must("unpause", lab.run, *BY).data["state"] == "approved"
    lab.must(*lab.typed(_STAGE))
    assert facts(lab.oracle, TARGET, lab.run) == whole
    assert len(lab.oracle.attempts()) == len(set(lab.oracle.attempts())) == len(SCOPE)


@pytest.mark.req("X3", "T3")
@pytest.mark.parametrize(
    ("verb", "point"),
    [
        ("pause", "ControlLog.backfill_chunk_run:committed"),
        ("pause", "ControlLog.run_event:committing"),
        ("pause", "ControlLog.run_event:committed"),
        ("unpause", "ControlLog.run_event:committing"),
        ("unpause", "ControlLog.run_event:committed"),
    ],
)
def test_a_pause_that_is_killed_half_way_costs_nothing_but_a_repeat(
    lab: Lab, whole: dict[str, Any], verb: str, point: str
) -> None:
    hook = Kill(point)
    driver, _ = _paused_at(lab, "Staging.stage:after", hook=hook if verb == "pause" else None)
    assert driver.code in (BLOCKED, RUN_MOVED)
    lab.must("pause", lab.run, *BY)
    if verb == "unpause":
        lab.killed("unpause", lab.run, *BY, hook=hook)
    if lab.must("status", lab.run).data["runs"][0]["state"] == "paused":
        lab.must("unpause", lab.run, *BY)
    lab.must(*lab.typed(_STAGE))
    assert facts(lab.oracle, TARGET, lab.run) == whole
    assert len(lab.oracle.attempts()) == len(set(lab.oracle.attempts())) == len(SCOPE)
