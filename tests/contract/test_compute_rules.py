"""The rules of the computing ports, on the stand-in that tests of the core use."""

from __future__ import annotations

import pytest

from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RejectedRow, Rejects
from tests.contract.compute_rules import *  # noqa: F403 (the rules)
from tests.contract.compute_rules import ComputeWorld
from tests.support.examples.plans import a_plan
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.lake import FakeLake

DAYS = ("2013-02-14", "2013-02-15", "2013-02-16")


@pytest.fixture
def world() -> ComputeWorld:
    plan = a_plan()
    lake = FakeLake()
    lake.add(plan.product, **{day: f"live/{day}" for day in DAYS})
    target = plan.resolved.target.model_copy(update={"snapshot_id": 1})
    plan = plan.model_copy(update={"resolved": plan.resolved.model_copy(update={"target": target})})
    lake.open(plan.product, 1, plan.shadow_table, {})
    compute = FakeCompute(lake)

    def rejecting() -> Plan:
        key = dict.fromkeys(plan.resolved.contract.key, "1")
        row = RejectedRow(reason="late", key=key, record={**key, "v": "7"})
        compute.rejected = Rejects(rows=1, reasons={"late": 1}, records=(row,))
        return plan

    return ComputeWorld(
        staging=compute.staging, measuring=compute.measuring, inspecting=compute.inspecting,
        plan=plan, other=DAYS[0],
        head=lambda table: lake.tables[table].head,
        fence=lambda epoch: lake.fence(plan.shadow_table, epoch),
        rejecting=rejecting,
    )  # fmt: skip
