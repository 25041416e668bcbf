"""Gates of the whole result that close: the run is rejected, and the gate is named."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import Diff, MeasureTotal
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS, RunState
from lakehouse_backfill.domain.table import Column, TableInfo
from lakehouse_backfill.errors import IllegalMove
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.control import FakeLedger
from tests.support.fakes.lake import FakeLake

pytestmark = pytest.mark.req("Q8")
DAY = "2020-01-02"


class _MiscountingDiff(FakeCompute):
    def diff(self, request: Any) -> Diff:
        found = super().diff(request)
        summary = found.summary.model_copy(update={"new_rows": found.summary.new_rows + 1})
        return found.model_copy(update={"summary": summary})


class _NoLineage(FakeCompute):
    def totals(self, measures: Any) -> tuple[MeasureTotal, ...]:
        return tuple(MeasureTotal(name=item.name, old=10, new=None) for item in measures)


class _LineageLake(FakeLake):
    """Its tables have the lineage columns."""

    def describe(self, table: str) -> TableInfo | None:
        found = super().describe(table)
        lineage = tuple(
            Column(field_id=number, name=name, type=kind)
            for number, (name, kind) in enumerate(LINEAGE_COLUMNS, start=100)
        )
        return found and found.model_copy(update={"columns": found.columns + lineage})


def _lose_a_chunk(found: Context, where: FakeLake, plan: Plan) -> None:
    del where, plan
    assert isinstance(found.ledger, FakeLedger)
    found.ledger.rows.pop()


def _fragment(found: Context, where: FakeLake, plan: Plan) -> None:
    del found
    where.write(plan.shadow_table, DAY, *(f"tiny-{number}" for number in range(9)))


def _write_live(found: Context, where: FakeLake, plan: Plan) -> None:
    del found
    where.write(plan.resolved.target.table, "2020-01-09", "live", **{"spark.app.id": "app-1"})


class _Spark(FakeCompute):
    def application(self) -> str:
        return "app-1"


def _nothing(found: Context, where: FakeLake, plan: Plan) -> None:
    del found, where, plan


@pytest.mark.parametrize(
    ("gate", "engine", "change", "has_lineage"),
    [
        ("all chunks are staged", FakeCompute, _lose_a_chunk, False),
        ("the run wrote only its shadow", _Spark, _write_live, False),
        ("files have a sensible size", FakeCompute, _fragment, False),
        ("lineage is complete", _NoLineage, _nothing, True),
        ("diff and counts agree", _MiscountingDiff, _nothing, False),
    ],
)
def test_a_gate_that_closes_rejects_the_run_and_is_named(
    gate: str, engine: type[FakeCompute], change: Any, has_lineage: bool
) -> None:
    where = _LineageLake() if has_lineage else FakeLake()
    where.tables = lake().tables
    found = context(where, engine(where))
    wanted = declared(contract=contract(lineage_columns=has_lineage))
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    change(found, where, plan)
    status, result, _ = validate(found, plan.run_id, "bob")
    closed = [check.name for check in result.checks if check.blocking and not check.passed]
    assert status.state is RunState.REJECTED
    assert gate in closed
    before = where.tables[plan.resolved.target.table].head
    with pytest.raises(IllegalMove):
        publish(found, plan.run_id, "bob")
    assert where.tables[plan.resolved.target.table].head == before
