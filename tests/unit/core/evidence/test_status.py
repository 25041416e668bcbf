"""What status says about the target of a run follows from what it has looked at."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.errors import TargetChanged
from tests.support.fakes.context import PRODUCT, declared
from tests.support.fakes.steps import accepted_run, approved_run, planned_run, world


def test_the_target_is_called_unchanged_only_where_its_head_was_read() -> None:
    where, found = world()
    status, table = found.runs.status(planned_run(found)), PRODUCT

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


def test_an_accepted_run_that_cannot_be_published_is_not_offered_publish() -> None:
    where, found = world()
    dry, conflicting = accepted_run(found, declared(run={"mode": "dry_run"})), accepted_run(found)
    assert "evidence" in next_command(found, dry)
    assert f"publish {conflicting}" in next_command(found, conflicting)
    where.write(PRODUCT, "2020-01-02", "live")
    with pytest.raises(TargetChanged):
        publish(found, conflicting, "bob")
    assert f"--revise {conflicting}" in next_command(found, conflicting)


def test_a_rejected_run_does_not_block_the_approval_of_its_repair() -> None:
    _, found = world()
    first, wanted = planned_run(found), declared("2020-01-03", "2020-01-05")
    second = make_plan(found, wanted, "bob", None)
    assert [one.run_id for one in second.conflicts] == [first]
    decisions.reject(found, first, "ana", "wrong rate")
    assert make_plan(found, wanted, "bob", None).conflicts == ()
    approved_run(found, wanted)


def next_command(found: Context, run_id: str) -> str:
    return summarise_run_safety(found, found.runs.status(run_id)).next_command
