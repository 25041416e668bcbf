"""The rules of the computing ports, on Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakehouse_backfill.adapters.spark.measuring.inspecting import SparkInspecting
from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
from tests.contract.compute_rules import *  # noqa: F403 (the rules)
from tests.contract.compute_rules import ComputeWorld
from tests.lake.test_fencing import fence
from tests.support.spark.lake import DAYS, Lake, PlanMaker


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
    )  # fmt: skip
