"""The rules of the computing ports, on Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakehouse_backfill.adapters.spark.measuring.inspecting import SparkInspecting
from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
from lakehouse_backfill.domain.plan import Plan
from tests.contract.compute_rules import *  # noqa: F403 (the rules)
from tests.contract.compute_rules import ComputeWorld
from tests.lake.test_fencing import fence
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job

REASON = "CASE WHEN k IN (14, 35) THEN 'late' END AS _reject_reason"
#: One row of each of the days 5 and 6.
REJECTING = f'return src.selectExpr("d", "k", "v", "{REASON}")'


def rejecting_plan(lake: Lake) -> Plan:
    """Plan a job that rejects rows, over the tables that are there."""
    lake.job(copy_job(REJECTING))
    return PlanMaker(lake, per_chunk=1).make()


@pytest.fixture
def world(lake: Lake, daily: Callable[..., PlanMaker]) -> ComputeWorld:
    plan = daily(per_chunk=1).make()
    return ComputeWorld(
        staging=lake.staging(),
        measuring=SparkMeasuring(lake.tables),
        inspecting=SparkInspecting(lake.tables),
        plan=plan, other=DAYS[0],
        head=lambda table: lake.head(table.rpartition(".")[2]),
        fence=lambda epoch: fence(lake, epoch),
        rejecting=lambda: rejecting_plan(lake),
    )  # fmt: skip
