"""What status says about the target of a run follows from what it has looked at."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.errors import TargetChanged
from tests.support.fakes.context import PRODUCT, context, declared, lake
from tests.support.fakes.steps import world


def test_the_target_is_called_unchanged_only_where_its_head_was_read() -> None:
    where, found = world()
    plan = make_plan(found, declared(), "bob", None)
    register_plan(found, plan, "bob")
    status = found.runs.status(plan.run_id)
    table = plan.resolved.target.table

    def is_safe(*, look: bool) -> str:
        return summarise_run_safety(found, status, look=look).is_safe

    assert is_safe(look=True) == (
        f"yes: this run has published nothing, and {table} is still at the snapshot that it "
        "started from"
    )
    assert is_safe(look=False).endswith("whether others changed the target was not looked at")
    where.write(table, "2024-01-01", "more.parquet")
    assert f"{table} was changed by other commits" in is_safe(look=True)
    assert not is_safe(look=True).startswith("yes")
    assert is_safe(look=False).startswith("this run has published nothing;")


@pytest.mark.req("P2")
def test_an_accepted_run_that_cannot_be_published_is_not_offered_publish() -> None:
    where, found = world()
    run = {"requested_by": "bob", "reason": "x", "reason_code": "bug_fix", "mode": "dry_run"}
    dry, conflicting = accepted(found, declared(run=run)), accepted(found, declared())
    assert "evidence" in next_command(found, dry)
    assert f"publish {conflicting}" in next_command(found, conflicting)
    where.write(PRODUCT, "2020-01-02", "live")
    with pytest.raises(TargetChanged):
        publish(found, conflicting, "bob")
    assert f"--revise {conflicting}" in next_command(found, conflicting)


def test_a_rejected_run_does_not_block_the_approval_of_its_repair() -> None:
    found = context(lake())
    first, _ = register_plan(found, make_plan(found, declared(), "bob", None), "bob")
    second = make_plan(found, declared("2020-01-03", "2020-01-05"), "bob", None)
    assert [one.run_id for one in second.conflicts] == [first.run_id]
    decisions.reject(found, first.run_id, "ana", "wrong rate")
    repair = make_plan(found, declared("2020-01-03", "2020-01-05"), "bob", None)
    assert repair.conflicts == ()
    register_plan(found, repair, "bob")
    decisions.approve(found, repair.run_id, "ana", "")


def next_command(found: Context, run_id: str) -> str:
    return summarise_run_safety(found, found.runs.status(run_id)).next_command


def accepted(found: Context, wanted: Any) -> str:
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    stage(found, plan.run_id, "bob")
    validate(found, plan.run_id, "bob")
    decisions.accept(found, plan.run_id, "ana", "")
    return plan.run_id
