"""What status says about the target of a run follows from what it has looked at."""

from __future__ import annotations

from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from tests.support.fakes.context import context, declared, lake


def test_the_target_is_called_unchanged_only_where_its_head_was_read() -> None:
    where = lake()
    found = context(where)
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
