"""`list` shows runs by product, state, environment and time, closed ones too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lakehouse_backfill.config.manifests import parse_run_filter
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.run_filter import find_runs
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.errors import ConfigError
from tests.support.fakes.context import PRODUCT, declared
from tests.support.fakes.steps import planned_run, staged_run, world


def names(found: Context, **wanted: Any) -> list[str]:
    fields = {"product": None, "states": (), "environment": None, "since": None} | wanted
    return [status.run_id for status in find_runs(found, parse_run_filter(**fields))]


def test_runs_are_found_by_what_they_are() -> None:
    _, found = world()
    staged = staged_run(found)
    closed = planned_run(found, declared(first="2020-01-05", stop="2020-01-06"))
    decisions.cancel(found, closed, "bob", "")
    assert set(names(found)) == {staged, closed}
    assert names(found, states=("cancelled",)) == [closed]
    assert set(names(found, states=("staged", "cancelled"))) == {staged, closed}
    assert names(found, product="silver.other") == []
    assert set(names(found, product=PRODUCT)) == {staged, closed}
    assert names(found, environment="prod") == []
    assert set(names(found, environment="dev")) == {staged, closed}
    today = found.clock.now()
    assert len(names(found, since=f"{today:%Y-%m-%d}")) == 2
    assert names(found, since=f"{today + timedelta(days=1):%Y-%m-%d}") == []


def test_the_environment_is_the_one_that_the_run_was_planned_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, found = world()
    run_id = planned_run(found)
    plan = found.runs.plan(run_id)
    resolved = plan.resolved.model_copy(update={"environment": "prod"})
    monkeypatch.setattr(
        found.runs, "plan", lambda _: plan.model_copy(update={"resolved": resolved})
    )
    assert names(found, environment="prod") == [run_id]
    assert names(found, environment="dev") == []


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"states": ("publishd",)}, "--state is 'publishd', which is no state of a run"),
        ({"since": "yesterday"}, "--since is 'yesterday', which is no day"),
        ({"since": "2026-02-30"}, "--since is '2026-02-30'"),
    ],
)
def test_a_state_or_a_day_that_there_is_not_is_refused(wanted: Any, problem: str) -> None:
    _, found = world()
    with pytest.raises(ConfigError) as caught:
        names(found, **wanted)
    assert problem in caught.value.problem
    if "states" in wanted:
        assert "`published`" in caught.value.fix
