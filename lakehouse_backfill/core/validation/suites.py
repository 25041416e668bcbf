"""The suites of a run, and what fills their parameters."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.runs.workbench import ComputePorts
from lakehouse_backfill.domain.contract import Assumption
from lakehouse_backfill.domain.declared import SuiteRef
from lakehouse_backfill.domain.plan import Plan


def declared_suites(plan: Plan) -> tuple[SuiteRef, ...]:
    """The suites of the contract and of the run manifest."""
    return plan.resolved.contract.suites + plan.resolved.manifest.validation.suites


def suite_parameters(
    compute: ComputePorts,
    plan: Plan,
    suite: SuiteRef | Assumption,
    known: dict[str, list[Any]] | None = None,
) -> dict[str, list[Any]]:
    """Fill a suite's parameters (`name: input.column`) from the pinned inputs.

    Values in `known` are not read again, and those that are read are added to it.
    """
    known = {} if known is None else known
    for origin in suite.parameters.values():
        if origin not in known:
            source, _, column = origin.partition(".")
            known[origin] = compute.measuring.distinct(plan, source, column)
    return {name: known[origin] for name, origin in suite.parameters.items()}
