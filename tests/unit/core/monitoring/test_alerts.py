"""When a run raises an alert, and that there is one for each run and cause."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest

from lakehouse_backfill.core.monitoring import alerts
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.domain.guards.safety import Switches
from lakehouse_backfill.domain.monitoring.metrics import AlertLimits
from lakehouse_backfill.domain.run import RunState, RunStatus
from tests.support.examples.plans import NOON
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.lake import FixedClock
from tests.unit.core.monitoring.test_metrics import chunk, status

pytestmark = pytest.mark.req("O5")
S = RunState
HOUR = timedelta(hours=1)
LEASE = {"lease_until": NOON, "driver": "host:1"}


@pytest.mark.parametrize(
    ("run", "after", "causes"),
    [
        (status(S.PUBLISHED), 1000 * HOUR, []),
        (status(S.FAILED), 0 * HOUR, ["stopped"]),
        (status(S.HALTED), 0 * HOUR, ["stopped"]),
        (status(S.REJECTED), 0 * HOUR, ["stopped"]),
        (status(S.PUBLISH_HALTED), 0 * HOUR, ["stopped"]),
        (status(S.VALIDATED), 23 * HOUR, []),
        (status(S.VALIDATED), 24 * HOUR, ["waiting"]),
        (status(S.STAGING, **LEASE), HOUR / 12, []),
        (status(S.STAGING, **LEASE), HOUR / 6, ["unattended"]),
        (status(S.PUBLISHING, **LEASE), HOUR, ["unattended"]),
    ],
    ids=lambda one: getattr(getattr(one, "state", None), "value", None),
)
def test_a_run_raises_an_alert_for_each_cause(
    run: RunStatus, after: timedelta, causes: list[str]
) -> None:
    found = list(alerts.state_alerts(run, AlertLimits(), NOON + after))
    assert [one.cause for one in found] == causes
    assert all(one.next_command == "lakehouse-backfill status bf-1" for one in found)


@pytest.mark.parametrize("limits", [{"waiting_hours": None}, {"waiting_hours": 99}])
def test_a_limit_may_be_moved_or_switched_off(limits: Any) -> None:
    assert not list(alerts.state_alerts(status(S.PLANNED), AlertLimits(**limits), NOON + 24 * HOUR))


@pytest.mark.parametrize(("limit", "is_raised"), [(0.01, True), (0.1, False), (0.2, False)])
def test_too_many_rejected_rows_raise_an_alert(limit: float, *, is_raised: bool) -> None:
    found = list(alerts.rejected_alerts(status(S.STAGED), (chunk(1),), limit))
    assert bool(found) is is_raised
    assert not list(alerts.rejected_alerts(status(S.STAGED), (), limit))


HOOKS = [
    {"name": "page", "on": "on_alert", "webhook": "https://x"},
    {"name": "tell", "on": "after_publish", "webhook": "https://x"},
]


class LaterClock(FixedClock):
    def now(self) -> datetime:
        return super().now() + HOUR


def failed_run(**switches: bool) -> tuple[Any, str]:
    """A planned run that failed, whose contract has hooks."""
    found = context(lake())
    profile = found.profile.model_copy(update={"switches": Switches(**switches)})
    found = dataclasses.replace(found, profile=profile)
    plan = make_plan(found, declared(contract=contract(hooks=HOOKS)), "ana", None)
    plan, status = register_plan(found, plan, "ana")
    status = found.move(status, plan, "approve", "ana")
    status = found.drive(status, plan, "begin staging", "ana")
    found.move(status, plan, "fail", "ana", problem="no memory")
    return found, plan.run_id


def test_an_alert_is_sent_once_and_again_after_a_failure() -> None:
    found, run_id = failed_run()
    found.hooks.broken = {"page"}
    for is_ok in (False, True):
        (sent,) = alerts.send_alerts(found)
        assert (sent.alert.cause, sent.alert.run_id) == ("stopped", run_id)
        assert [(call.hook, call.is_ok) for call in sent.calls] == [("page", is_ok)]
        found.hooks.broken = set()
    (sent,) = alerts.send_alerts(found)
    assert sent.calls == ()
    (name, message), (_, again) = found.hooks.calls
    assert (name, message["cause"], message["next_command"]) == (
        "page", "stopped", f"lakehouse-backfill status {run_id}",
    )  # fmt: skip
    assert message["idempotency_key"] == again["idempotency_key"]
    assert found.evidence.newest(run_id, "alert stopped page")[1]["is_ok"]


def test_a_cause_that_begins_anew_is_sent_anew() -> None:
    found, run_id = failed_run()
    alerts.send_alerts(found)
    status, plan = found.runs.status(run_id), found.runs.plan(run_id)
    later = dataclasses.replace(found, clock=LaterClock())
    status = later.drive(status, plan, "begin staging", "ana")
    assert alerts.send_alerts(later) == ()
    later.move(status, plan, "fail", "ana", problem="no memory")
    (sent,) = alerts.send_alerts(later)
    assert len(sent.calls) == 1


def test_hooks_that_the_profile_switches_off_are_not_called_for_alerts() -> None:
    found, _ = failed_run(hooks=False)
    (sent,) = alerts.send_alerts(found)
    assert (sent.calls, found.hooks.calls) == ((), [])
