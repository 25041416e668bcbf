"""Inputs that no tag keeps: when they may expire, and that each chunk looks for them."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.errors import NotFound
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.steps import approved_run, world

LEASED = declared(sources={"raw": {"pin": "lease_only"}})


class _ExpiringSource(FakeCompute):
    """Its input expires while the first chunk is computed."""

    def stage(self, plan: Plan, chunk: Any, epoch: int) -> ChunkRecord:
        record = super().stage(plan, chunk, epoch)
        self.lake.tables.pop("bronze.raw", None)
        return record


def test_the_plan_says_from_when_on_a_leased_input_may_expire() -> None:
    where, found = world()
    where.tables["bronze.raw"].properties["history.expire.max-snapshot-age-ms"] = "86400000"
    notes = make_plan(found, LEASED, "bob", None).notes
    # The fake's snapshots are of 1970-01-01.
    assert any(
        "raw is lease_only" in note and "from 1970-01-02 00:00 UTC on" in note for note in notes
    )
    assert not any("lease_only" in note for note in make_plan(found, declared(), "bob", None).notes)


def test_a_leased_input_that_expires_while_staging_stops_before_the_next_chunk() -> None:
    where = lake()
    found = context(where, _ExpiringSource(where))
    run_id = approved_run(found, LEASED)
    with pytest.raises(NotFound, match=r"has expired since it was planned: raw \(bronze.raw@1\)"):
        stage(found, run_id, "bob")
    assert len(found.runs.chunks(run_id)) == 1
