"""A shadow that is a branch of its target (X12): what Spark reads and writes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.shadow.branches import (
    BranchShadows,
    find_newest_branch,
    load_stored_table,
)
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.staging.staging import SparkStaging
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow
from lakehouse_backfill.errors import RunMoved
from tests.support.spark.lake import DAYS, Lake, PlanMaker, no_secret

pytestmark = pytest.mark.req("X12")


@dataclass
class Branch:
    """A run of the table `out` on a branch of it, as the processes of several epochs see it."""

    lake: Lake
    plan: Plan

    def __post_init__(self) -> None:
        self.catalog = open_catalog(self.lake.profile, self.lake.profile_folder)
        self.shadows = BranchShadows(self.catalog)
        found = partial(find_newest_branch, self.catalog)
        stored = partial(load_stored_table, self.catalog)
        self.tables = SparkTables(self.lake.spark, self.lake.name, found, stored)

    def open(self) -> None:
        target = self.plan.resolved.target
        self.shadows.open(target.table, target.snapshot_id, self.plan.shadow_table, {})

    def staging(self) -> SparkStaging:
        return SparkStaging(self.tables, lambda _: self.lake.project, no_secret)

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.tables.read(self.plan.shadow_table, None).collect()
        return sorted((tuple(row) for row in found), key=repr)


@pytest.fixture
def branch(lake: Lake, daily: Callable[..., PlanMaker]) -> Branch:
    plan = daily(per_chunk=1).make()
    target = plan.resolved.target.table
    name = branch_shadow(target, "bf-1").name
    made = Branch(lake, plan.model_copy(update={"shadow_table": name}))
    made.open()
    return made


def test_chunks_land_on_the_branch_and_the_target_stays(branch: Branch, lake: Lake) -> None:
    before = lake.rows("out"), lake.head("out")
    branch.shadows.fence(branch.plan.shadow_table, 3)
    first, second = branch.plan.resolved.chunks
    staged = [branch.staging().stage(branch.plan, chunk, 3) for chunk in (first, second)]
    assert [one.output_rows for one in staged] == [4, 4]
    assert (lake.rows("out"), lake.head("out")) == before
    found = branch.shadows.chunks(branch.plan.shadow_table)
    assert [one.snapshot_id for one in found] == [one.snapshot_id for one in staged]
    own = [row for row in branch.rows() if str(row[0]) in DAYS[4:6]]
    assert own == [row for row in lake.rows("src") if str(row[0]) in DAYS[4:6]]
    files = lake.catalog.load_table(lake.table("out")).inspect.all_files().to_pylist()
    assert all("/out/data/" in one["file_path"] for one in files)


def test_an_overtaken_driver_commits_to_a_branch_that_nobody_reads(
    branch: Branch, lake: Lake
) -> None:
    shadow = branch.plan.shadow_table
    first, second = branch.plan.resolved.chunks
    branch.shadows.fence(shadow, 3)
    old = branch.staging()
    old.stage(branch.plan, first, 3)
    overtaken = Overtaken(branch)
    with pytest.raises(RunMoved, match="fenced during the write"):
        SparkStaging(overtaken, lambda _: lake.project, no_secret).stage(branch.plan, second, 3)
    branch.shadows.fence(shadow, 5)
    assert [one.chunk_id for one in branch.shadows.chunks(shadow)] == [first.chunk_id]
    with pytest.raises(RunMoved, match="another process took the run over"):
        old.stage(branch.plan, second, 3)
    assert branch.staging().stage(branch.plan, second, 5).epoch == 5
    assert len(branch.shadows.chunks(shadow)) == 2


class Overtaken(SparkTables):
    """Fences the shadow between the look at its epoch and the write."""

    def __init__(self, branch: Branch) -> None:
        tables = branch.tables
        super().__init__(tables.spark, tables.catalog, tables.newest_branch, tables.stored)
        object.__setattr__(self, "branch", branch)

    def writer(self, *args: Any) -> Any:
        branch: Branch = self.branch  # type: ignore[attr-defined]
        branch.shadows.fence(branch.plan.shadow_table, 5)
        return super().writer(*args)


def test_published_rows_stay_when_the_branch_is_dropped_and_everything_expires(
    branch: Branch, lake: Lake
) -> None:
    plan, shadow = branch.plan, branch.plan.shadow_table
    branch.shadows.fence(shadow, 3)
    for chunk in plan.resolved.chunks:
        branch.staging().stage(plan, chunk, 3)
    head = branch.shadows.chunks(shadow)[-1].snapshot_id
    request = publish_modes.adopt_request(plan, head, token="t", tags={}, properties={})
    IcebergPublisher(branch.catalog).adopt(request)
    branch.shadows.retire(shadow)
    seen = lake.rows("out")
    target = lake.table("out")
    lake.sql(
        f"CALL {lake.name}.system.expire_snapshots(table => '{target}', "
        "older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )
    assert len(lake.snapshots("out")) == 1
    assert lake.rows("out") == seen
    assert [row[2] for row in seen if str(row[0]) in DAYS[4:6]] == [
        row[2] for row in lake.rows("src") if str(row[0]) in DAYS[4:6]
    ]
