"""The suites of a run, and what fills their parameters."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.model.contract import Assumption
from lakehouse_backfill.model.declared import SuiteRef
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.stages.workbench import Compute


def suites(plan: Plan) -> tuple[SuiteRef, ...]:
    """The suites of the contract and of the run manifest."""
    return plan.resolved.contract.suites + plan.resolved.manifest.validation.suites


def suite_parameters(
    compute: Compute, plan: Plan, suite: SuiteRef | Assumption
) -> dict[str, list[Any]]:
    """Fill a suite's parameters (`name: input.column`) from the pinned inputs."""
    values = {}
    for name, origin in suite.parameters.items():
        source, _, column = origin.partition(".")
        values[name] = compute.measuring.distinct(plan, source, column)
    return values
