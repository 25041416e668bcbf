"""plan --revise: a run that takes the place of another one."""

from __future__ import annotations

from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ConfigError


def require_revisable(bench: Context, product: str, revise: str | None) -> None:
    """Raise unless `revise` names a run of the product that can still be superseded.

    Asked before anything is written: a revision that fails half way leaves two open runs.
    """
    if revise is None:
        return
    status = bench.runs.status(revise)
    if status.product != product:
        raise ConfigError(
            f"{revise} restates {status.product}, so a run of {product} cannot revise it",
            fix="name a run of the same product, or plan without --revise",
        )
    if status.state is not RunState.SUPERSEDED:
        lifecycle.require_legal_move(status, "supersede")


def supersede_revised_run(bench: Context, plan: Plan, by: str) -> None:
    """Close the run that the plan revises; once superseded, nothing changes any more."""
    if plan.revises is None or plan.revises == plan.run_id:
        return
    status = bench.runs.status(plan.revises)
    if status.state is RunState.SUPERSEDED:
        return
    bench.move(status, bench.runs.plan(plan.revises), "supersede", by, by_run=plan.run_id)
