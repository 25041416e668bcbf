"""A second run of the same shape is estimated by what the log of the first one says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.spark.modes import JOB, Make, Modes, seeded

pytestmark = [pytest.mark.lake, pytest.mark.req("P1")]

_ENDS = {
    "finish staging": "begin staging", "pass validation": "begin validation",
    "finish publishing": "begin publishing",
}  # fmt: skip


def recorded_s(modes: Modes, run_id: str) -> float:
    """What staging, validation and publication took by the run's log."""
    begun: dict[str, Any] = {}
    total = 0.0
    for event in modes.project.wiring.context.runs.events(run_id):
        begun[event.verb] = event.at
        if event.verb in _ENDS:
            total += (event.at - begun[_ENDS[event.verb]]).total_seconds()
    return total


def test_the_second_run_of_the_same_shape_is_estimated_by_the_first(make: Make) -> None:
    modes = seeded(make)
    # A transform of its own: the lake of these tests has runs of others.
    modes.transform = "timed"
    modes.lake.job(JOB.replace("tenants", "timed"))
    first = modes.plan()
    before = modes.project.show(first).estimate
    assert (before.duration_s, before.history) == (None, None)
    assert "no history" in before.basis
    done = modes.project.run(first, "ann")
    assert done.state == "validated"
    modes.publish(first)
    days = {"column": "d", "from": "2024-01-04", "to": "2024-01-06"}
    second = modes.plan(target={"partitions": days})
    after = modes.project.show(second).estimate
    assert after.history is not None
    assert after.history.runs == 1
    # Beside the recorded history, not beside a second wall time: the machine's noise is no error.
    assert after.duration_s == pytest.approx(recorded_s(modes, first), rel=0.3)
    assert modes.project.run(second, "ann").state == "validated"
    rows = sum(one.output_rows for one in modes.project.wiring.context.runs.chunks(second))
    assert after.output_rows == pytest.approx(rows, rel=0.3)
