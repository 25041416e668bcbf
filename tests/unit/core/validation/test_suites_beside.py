"""Suites run while the result is measured, and neither hides what the other finds."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ConfigError, EnvironmentDown
from lakehouse_backfill.ports.compute import MeasuredSides
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, contract, declared, lake

pytestmark = pytest.mark.req("Q2", "Q8")
SUITE = {"file": "expectations/out.json", "on": "output"}


class _Meeting(FakeCompute):
    """Measures and judges only once both have begun."""

    both: Barrier | None = None

    def measure(self, *sides: Any, **known: Any) -> MeasuredSides:
        if self.both:
            self.both.wait(30)
        return super().measure(*sides, **known)

    def frame(self, *of: Any, **options: Any) -> Any:
        if self.both:
            self.both.wait(30)
        return super().frame(*of, **options)


class _Failing(FakeCompute):
    """Measuring fails, or the suite cannot be read, or both."""

    down: Exception | None = None
    faulty: Exception | None = None

    def measure(self, *sides: Any, **known: Any) -> MeasuredSides:
        if self.down:
            raise self.down
        return super().measure(*sides, **known)

    def frame(self, *of: Any, **options: Any) -> Any:
        if self.faulty:
            raise self.faulty
        return super().frame(*of, **options)


def _staged(engine: FakeCompute) -> tuple[Context, str]:
    found = context(engine.lake, engine)
    wanted = declared(contract=contract(suites=[SUITE]))
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    return found, plan.run_id


def test_suites_are_judged_while_the_result_is_measured() -> None:
    engine = _Meeting(lake())
    found, run_id = _staged(engine)
    engine.both = Barrier(2)
    status, result, _ = validate(found, run_id, "bob")
    assert status.state is RunState.VALIDATED
    assert [check for check in result.checks if check.name.startswith(SUITE["file"])]


@pytest.mark.parametrize("is_faulty", [False, True])
def test_what_measuring_raises_comes_before_what_a_suite_raises(*, is_faulty: bool) -> None:
    engine = _Failing(lake())
    found, run_id = _staged(engine)
    engine.down = EnvironmentDown("the store does not answer", fix="wait")
    engine.faulty = ConfigError("no such column", fix="name another") if is_faulty else None
    with pytest.raises(EnvironmentDown):
        validate(found, run_id, "bob")


def test_a_suite_that_cannot_be_judged_validates_nothing() -> None:
    engine = _Failing(lake())
    found, run_id = _staged(engine)
    engine.faulty = ConfigError("no such column", fix="name another")
    with pytest.raises(ConfigError, match="no such column"):
        validate(found, run_id, "bob")
    assert found.runs.status(run_id).state is RunState.STAGED
    assert found.evidence.newest(run_id, decisions.VALIDATION) is None
