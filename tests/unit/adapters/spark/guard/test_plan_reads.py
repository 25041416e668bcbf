"""What a chunk reads, of rows and state together."""

from __future__ import annotations

import pytest

from lakehouse_backfill.adapters.spark.guard.plan_reads import read_together
from lakehouse_backfill.ports.compute import PlanReads, TableRead

ONE, OTHER = TableRead("b.one", "1"), TableRead("b.other", "")


@pytest.mark.req("X4")
def test_rows_and_state_read_what_either_of_them_reads() -> None:
    rows = PlanReads((ONE,), is_whole=True)
    state = PlanReads((OTHER, ONE), is_whole=False)
    assert read_together(rows, rows) == rows
    assert read_together(rows, state) == PlanReads((ONE, OTHER), is_whole=False)
    assert read_together(rows, None) is read_together(None, state) is None
