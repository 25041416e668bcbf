"""When a run raises an alert, and that there is one for each run and cause."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lakehouse_backfill.core.monitoring import alerts
from lakehouse_backfill.domain.monitoring.metrics import AlertLimits
from lakehouse_backfill.domain.run import RunState, RunStatus
from tests.support.examples.plans import NOON
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
