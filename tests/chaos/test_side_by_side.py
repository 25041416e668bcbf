"""A driver is killed, or its run is cancelled, while it stages two chunks side by side."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.chaos.faults import PATIENCE_S, Block
from tests.chaos.lab import BY, SCOPE, TARGET, Lab, shared_event
from tests.chaos.oracle import facts

RUN_MOVED = 4
_STATE = "side by side"
_LANDED = "Staging.stage:after"
#: One chunk at a time goes from `Staging.stage:before` to `:after`.
_landing = threading.Lock()


@dataclass
class KillTogether:
    """Dies when two threads are at `point`, once the first chunk has passed it alone.

    Where both are to have landed, they land one after the other: of two commits at once, one would
    be refused, and its chunk tried again only after the other one is in the ledger.
    """

    point: str
    arrivals: list[int] = field(default_factory=list)

    def __call__(self, point: str) -> None:
        if self.point == _LANDED and point == "Staging.stage:before":
            assert _landing.acquire(timeout=PATIENCE_S)
        if point != self.point:
            return
        self.arrivals.append(threading.get_ident())
        if point == _LANDED:
            _landing.release()
        if len(self.arrivals) == 2:
            threading.Event().wait(PATIENCE_S)
            raise AssertionError("the other chunk did not come")
        if len(self.arrivals) == 3:
            assert len(set(self.arrivals[1:])) == 2
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Whole:
    """The run with two chunks at once, saved once approved, and what it comes to undisturbed."""

    lab: Lab
    run: str
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def whole(labs_of_kind: list[Lab]) -> Whole:
    lab = labs_of_kind[0]
    lab.restore("new")
    manifest = lab.folder / "jobs" / "a.yaml"
    limits = "{partitions_per_chunk: 1, parallel: 2, failures_in_a_row: 3}"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace("{partitions_per_chunk: 1}", limits), encoding="utf-8")
    run = str(lab.must("plan", "jobs/a.yaml", *BY).data["run_id"])
    lab.must("approve", run, *BY)
    lab.save(_STATE)
    lab.must("stage", run, *BY)
    return Whole(lab, run, facts(lab.oracle, TARGET, run))


@pytest.mark.req("X2", "X3", "T3", "X12")
@pytest.mark.parametrize(
    ("point", "most_redone"),
    [("Spark.overwrite:committing", 2), (_LANDED, 0)],
    ids=["before both land", "after both landed, before their ledger rows"],
)
def test_a_driver_that_is_killed_with_two_chunks_in_work_redoes_at_most_these(
    whole: Whole, point: str, most_redone: int
) -> None:
    lab, run = whole.lab, whole.run
    lab.restore(_STATE)
    lab.killed("stage", run, *BY, hook=KillTogether(point))
    landed = lab.oracle.attempts()
    assert len(landed) == len(SCOPE) - most_redone
    assert len(lab.oracle.log("backfill_chunk_run", "chunk_id")) == 1
    lab.must("stage", run, *BY)
    attempts = lab.oracle.attempts()
    assert len(attempts) == len(set(attempts)) == len(SCOPE)
    assert attempts[: len(landed)] == landed
    assert facts(lab.oracle, TARGET, run) == whole.facts


@pytest.mark.req("X3", "X12")
def test_a_run_is_cancelled_while_another_process_stages_it(whole: Whole) -> None:
    lab, run = whole.lab, whole.run
    lab.restore(_STATE)
    arrived, go = shared_event(), shared_event()
    block = Block("Spark.overwrite:committing", 2, arrived=arrived, go=go)
    driver = lab.start("stage", run, *BY, hook=block)
    assert arrived.wait(60)
    assert lab.must("cancel", run, *BY, "--reason", "wrong month").data["state"] == "cancelled"
    landed = lab.oracle.attempts()
    go.set()
    ended = driver.end()
    assert (ended.code, ended.error["code"]) == (RUN_MOVED, "run-moved")
    assert lab.oracle.attempts() == landed
    assert lab.must("status", run).data["runs"][0]["state"] == "cancelled"
