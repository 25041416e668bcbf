"""Fencing (X9): whoever was overtaken commits nothing to the shadow any more, whatever it does."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import AssignUUIDUpdate, SetPropertiesUpdate

from lakehouse_backfill.adapters.spark.guard.driver_guard import scratch_folder
from lakehouse_backfill.adapters.spark.staging.shadow_writer import ShadowWriter
from lakehouse_backfill.errors import RunMoved
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job

pytestmark = pytest.mark.req("X9")

Daily = Callable[..., PlanMaker]
EPOCH = "lakehouse-backfill.epoch"


def fence(lake: Lake, epoch: int) -> None:
    """What a takeover commits: another UUID, and the epoch that may write from now on."""
    table = lake.catalog.load_table(lake.table("shadow"))
    fresh = AssignUUIDUpdate(uuid=uuid.uuid4())
    lake.catalog.commit_table(table, (), (fresh, SetPropertiesUpdate(updates={EPOCH: str(epoch)})))


def held(lake: Lake) -> tuple[Any, ...]:
    return lake.rows("shadow"), lake.snapshots("shadow"), lake.files("shadow")


def wait_for(file: Path) -> None:
    give_up = time.monotonic() + 60
    while not file.exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    assert file.exists(), f"{file.name} did not come"


def test_an_overtaken_process_commits_nothing_and_the_next_one_does(
    lake: Lake, daily: Daily
) -> None:
    plan = daily(per_chunk=1).make()
    first, second = plan.resolved.chunks
    staging = lake.staging()
    assert staging.stage(plan, first, 3).epoch == 3
    fence(lake, 5)
    before = held(lake)
    for _ in range(2):
        with pytest.raises(RunMoved, match="another process took the run over") as caught:
            staging.stage(plan, second, 3)
        assert "changed nothing" in caught.value.state
    assert held(lake) == before
    taker = lake.staging()
    record = taker.stage(plan, second, 5)
    assert (record.epoch, record.output_rows) == (5, 4)
    assert lake.snapshots("shadow")[-1][EPOCH] == "5"
    staged = [
        [row for row in lake.rows(name) if str(row[0]) in DAYS[4:6]] for name in ("shadow", "src")
    ]
    assert staged[0] == staged[1]
    with pytest.raises(RunMoved):
        staging.stage(plan, first, 3)


def test_a_write_that_is_overtaken_on_its_way_is_refused_at_its_commit(
    lake: Lake, daily: Daily
) -> None:
    folder = Path(tempfile.mkdtemp(dir=scratch_folder()))
    job = copy_job(
        '@F.udf("bigint")',
        "def waiting(value):",
        f"    folder = pathlib.Path({str(folder)!r})",
        '    (folder / "started").touch()',
        '    while not (folder / "go").exists():',
        "        time.sleep(0.02)",
        "    return value",
        "# One task waits: the look at the table needs the other core.",
        'return src.coalesce(1).select("d", "k", waiting("v").alias("v"))',
        above="import pathlib, time",
    )
    plan = daily(job).make()
    staging = lake.staging()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(staging.stage, plan, plan.resolved.chunks[0], 3)
        try:
            wait_for(folder / "started")
            fence(lake, 4)
            before = held(lake)
        finally:
            (folder / "go").touch()
        with pytest.raises(RunMoved, match="fenced during the write"):
            writing.result()
    assert held(lake) == before


def test_no_moment_between_the_look_and_the_commit_lets_an_overtaken_write_through(
    lake: Lake, daily: Daily
) -> None:
    """Spark loads a table anew for each write by name: it would see the new UUID, and commit."""
    plan = daily(per_chunk=1).make()

    class Overtaken(ShadowWriter):
        def _require_epoch(self, *found: Any) -> int | None:
            head = super()._require_epoch(*found)
            fence(lake, 9)
            return head

    staging = lake.staging()
    staging._writer = Overtaken(lake.tables)
    before = lake.rows("shadow"), lake.snapshots("shadow"), lake.files("shadow")
    with pytest.raises(RunMoved, match="fenced during the write"):
        staging.stage(plan, plan.resolved.chunks[0], 3)
    assert held(lake) == before


def test_a_writer_goes_on_writing_to_the_table_that_it_opened(lake: Lake, daily: Daily) -> None:
    plan = daily(per_chunk=1).make()
    staging = lake.staging()
    for chunk in plan.resolved.chunks:
        staging.stage(plan, chunk, 2)
    # Somebody else's property, or commit to other partitions, is no fence.
    with lake.catalog.load_table(lake.table("shadow")).transaction() as change:
        change.set_properties({"someone": "else"})
    lake.sql("INSERT INTO {ns}.shadow VALUES (date'2024-01-31', 100, 1)")
    record = staging.stage(plan, plan.resolved.chunks[0], 2)
    assert lake.head("shadow") == record.snapshot_id
    assert [row for row in lake.rows("shadow") if row[1] == 100]
