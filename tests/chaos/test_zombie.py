"""A driver that hangs, is overtaken, and wakes up again changes nothing."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.chaos.cases import Work
from tests.chaos.faults import Block, Kill, Stop
from tests.chaos.lab import BY, TARGET, Ended, Lab, shared_event
from tests.chaos.oracle import facts

RUN_MOVED = 4
_BACK = ("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)


@dataclass(frozen=True)
class Sleep:
    """Where the first driver stops; the second one begins with `command`."""

    state: str
    command: tuple[str, ...]
    point: str
    nth: int = 1
    is_rolled_back: bool = False

    def __str__(self) -> str:
        return f"{self.command[0]} - {self.point} - {self.nth}"

    def works(self) -> dict[Any, Work]:
        return {self: self.work}

    def work(self, lab: Lab) -> Woken:
        """Stop the first driver, let a second one finish, and wake the first one up."""
        lab.restore(self.state)
        zombie = lab.start(*lab.typed(self.command), hook=Stop(self.point, self.nth))
        zombie.wait_until_stopped()
        _finish(lab)
        if self.is_rolled_back:
            lab.must(*_BACK)
        before = lab.oracle.catalog()
        zombie.go_on()
        ended = zombie.end()
        after = lab.oracle.catalog()
        return Woken(ended, before, after, lab.must("recover", "--all", *BY).data["actions"])


@dataclass(frozen=True)
class Woken:
    """How the zombie ended, and the state of every table before and after it woke up."""

    ended: Ended
    before: list[tuple[Any, ...]]
    after: list[tuple[Any, ...]]
    actions: list[Any]


_STAGE, _VALIDATE, _PUBLISH = (("stage", "RUN"), ("validate", "RUN"), ("publish", "RUN"))
SLEEPS = [
    Sleep("approved", _STAGE, "Runs.append:after"),
    Sleep("approved", _STAGE, "Evidence.record:before"),
    Sleep("approved", _STAGE, "ControlLog.evidence:committing"),
    Sleep("approved", _STAGE, "Shadows.register:committing"),
    Sleep("approved", _STAGE, "Shadows.fence:before"),
    Sleep("approved", _STAGE, "Shadows.fence:committing"),
    Sleep("approved", _STAGE, "Staging.stage:before", 2),
    Sleep("approved", _STAGE, "Spark.overwrite:committing", 2),
    Sleep("approved", _STAGE, "Spark.overwrite:committed", 2),
    Sleep("approved", _STAGE, "Runs.record_chunk:before", 3),
    Sleep("approved", _STAGE, "ControlLog.backfill_chunk_run:committing", 3),
    Sleep("approved", _STAGE, "ControlLog.run_event:committing", 2),
    Sleep("staged", _VALIDATE, "ControlLog.evidence:committing"),
    Sleep("staged", _VALIDATE, "ControlLog.run_event:committing", 2),
    Sleep("accepted", _PUBLISH, "Versions.move:before"),
    Sleep("accepted", _PUBLISH, "ControlLog.accepted_output_version:committing"),
    Sleep("accepted", _PUBLISH, "Publisher.adopt:before"),
    Sleep("accepted", _PUBLISH, "Publisher.swap:committing"),
    Sleep("accepted", _PUBLISH, "Publisher.swap:committed"),
    Sleep("accepted", _PUBLISH, "ControlLog.accepted_output_version:committing", 2),
    Sleep("accepted", _PUBLISH, "Evidence.record:before"),
    Sleep("accepted", _PUBLISH, "ControlLog.run_event:committing", 2),
]


@pytest.mark.req("X9")
@pytest.mark.parametrize("case", SLEEPS, ids=str)
def test_a_stopped_driver_that_was_overtaken_changes_nothing_when_it_goes_on(
    case: Sleep, outcomes: dict[Any, Future[Any]]
) -> None:
    woken: Woken = outcomes[case].result()
    assert woken.after == woken.before
    _is_overtaken(woken.ended)
    assert woken.actions == []


@pytest.mark.req("X9", "U12")
@pytest.mark.parametrize(
    "case", [replace(one, is_rolled_back=True) for one in SLEEPS[-8:]], ids=str
)
def test_a_publisher_that_wakes_up_after_a_rollback_does_not_publish_again(
    case: Sleep, outcomes: dict[Any, Future[Any]]
) -> None:
    woken: Woken = outcomes[case].result()
    assert woken.after == woken.before
    _is_overtaken(woken.ended)
    assert woken.actions == []


@pytest.mark.req("X9")
@pytest.mark.parametrize(
    "sleep",
    [
        Sleep("approved", _STAGE, "Spark.overwrite:committing", 2),
        Sleep("approved", _STAGE, "Runs.record_chunk:before", 2),
        Sleep("accepted", _PUBLISH, "Publisher.swap:committing"),
    ],
    ids=str,
)
def test_a_living_driver_is_overtaken_only_when_that_is_asked_for(lab: Lab, sleep: Sleep) -> None:
    lab.restore(sleep.state)
    arrived, go = shared_event(), shared_event()
    block = Block(sleep.point, sleep.nth, arrived=arrived, go=go)
    first = lab.start(*lab.typed(sleep.command), hook=block)
    assert arrived.wait(60)
    untouched = lab.oracle.catalog()

    refused = lab.do(*lab.typed(sleep.command))
    assert (refused.code, refused.error["code"]) == (RUN_MOVED, "run-moved")
    assert "--take-over" in refused.error["fix"]
    assert lab.oracle.catalog() == untouched

    lab.must(*lab.typed(sleep.command), "--take-over")
    before = lab.oracle.catalog()
    go.set()
    ended = first.end()

    assert lab.oracle.catalog() == before
    _is_overtaken(ended)


@pytest.mark.req("X9")
def test_a_stopped_driver_is_shut_out_also_when_its_recovery_was_cut_off(lab: Lab) -> None:
    """The recovery died right after it ended the run, before it fenced the driver."""
    lab.restore("approved")
    zombie = lab.start(*lab.typed(_STAGE), hook=Stop("Runs.record_chunk:before", 2))
    zombie.wait_until_stopped()
    lab.killed(*lab.typed(("recover", "RUN")), hook=Kill("Runs.fence:before"))
    _finish(lab)
    before = lab.oracle.catalog()

    zombie.go_on()
    ended = zombie.end()

    assert lab.oracle.catalog() == before
    _is_overtaken(ended)


def _finish(lab: Lab) -> None:
    """The second driver takes over and goes on to the end."""
    state = lab.must("status", lab.run).data["runs"][0]["state"]
    if state in ("approved", "staging", "failed"):
        lab.must("stage", lab.run, *BY)
    if state not in ("accepted", "publishing", "published"):
        lab.must("validate", lab.run, *BY)
        lab.must("accept", lab.run, *BY)
    lab.must("publish", lab.run, *BY)
    found = facts(lab.oracle, TARGET, lab.run)
    assert (found["runs"], found["versions"]) == (
        {"RUN": "published"},
        [[0, "baseline"], [1, "publish"]],
    )


def _is_overtaken(ended: Ended) -> None:
    """It says that it was overtaken, or found its own work finished by the other."""
    assert ended.code in (0, RUN_MOVED), ended
    if ended.code == RUN_MOVED:
        # Too busy: it slept longer than a commit is tried for.
        assert ended.error["code"] in ("run-moved", "pointer-moved", "too-busy"), ended
