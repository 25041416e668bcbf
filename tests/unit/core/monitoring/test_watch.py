"""A watched run: what is shown of it, and when watching it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from lakehouse_backfill.core.monitoring import alerts
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.run import RunState, RunStatus
from tests.support.examples.plans import NOON, a_plan
from tests.unit.core.monitoring.test_metrics import chunk, status

pytestmark = pytest.mark.req("O6")
S = RunState
LONG = NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("run", "now", "is_over"),
    [
        (status(S.APPROVED), LONG, False),
        (status(S.STAGING), LONG, False),
        (status(S.PUBLISHING), LONG, False),
        (status(S.STAGED), NOON, False),
        (status(S.STAGED, driver="host:1"), LONG, False),
        (status(S.STAGED), LONG, True),
        (status(S.VALIDATED), NOON, True),
        (status(S.FAILED), NOON, True),
        (status(S.PUBLISHED), NOON, True),
    ],
)
def test_watching_ends_when_no_process_moves_the_run(
    run: RunStatus, now: datetime, *, is_over: bool
) -> None:
    assert alerts.is_at_rest(run, now) is is_over


@dataclass
class Script:
    """Runs, clock and screen: each sleep is the next moment of a run."""

    driver = "host:2"
    moments: list[tuple[RunState, int]]
    at: int = 0
    said: list[Any] = field(default_factory=list)

    def status(self, run_id: str) -> RunStatus:
        return status(self.moments[self.at][0], run_id=run_id)

    def plan(self, run_id: str) -> Any:
        return a_plan(run_id)

    def chunks(self, run_id: str) -> Any:
        return tuple(chunk(n, run_id=run_id) for n in range(1, self.moments[self.at][1] + 1))

    def now(self) -> datetime:
        return NOON

    def sleep(self, seconds: float) -> None:
        self.said.append(seconds)
        self.at += 1

    def say(self, text: str) -> None:
        self.said.append(text)

    def start(self, *given: Any) -> None:
        self.said.append(given)

    def advance(self, *given: Any, was_done: bool) -> None:
        self.said.append((*given, "before" if was_done else "now"))

    def finish(self) -> None:
        self.said.append("end")

    @property
    def runs(self) -> Script:
        return self

    clock = progress = runs


@pytest.mark.parametrize(("own", "is_left"), [("host:2", True), ("host:1", False)])
def test_watching_ends_when_the_process_of_the_run_is_gone(own: str, *, is_left: bool) -> None:
    class Left(Script):
        driver = own

        def status(self, run_id: str) -> RunStatus:
            return status(self.moments[self.at][0], run_id=run_id, driver="host:1")

        def is_driven_elsewhere(self, one: RunStatus) -> bool:
            return self.at < 1

    script = Left([(S.STAGING, 1), (S.STAGING, 1), (S.STAGED, 1), (S.VALIDATED, 1)])
    found = alerts.watch(cast("Context", script), "bf-1", 7)
    assert found.state is (S.STAGING if is_left else S.VALIDATED)
    shown = ["bf-1 is staging", ("stage", 2, "chunks"), (1, 1, "before"), 7]
    assert script.said[:4] == shown
    assert (script.said[4:] == ["end"]) is is_left


def test_each_move_and_each_new_chunk_is_shown_once() -> None:
    script = Script([(S.APPROVED, 0), (S.STAGING, 1), (S.STAGING, 2), (S.VALIDATED, 2)])
    found = alerts.watch(cast("Context", script), "bf-1", 7)
    assert found.state is S.VALIDATED
    assert script.said == [
        "bf-1 is approved", 7, "bf-1 is staging", ("stage", 2, "chunks"), (1, 1, "before"), 7,
        (1, 2, "now"), 7,
        "bf-1 is validated", "end",
    ]  # fmt: skip
