"""An input that no tag keeps expires between two chunks: the next read of it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.errors import NotFound
from tests.chaos.lab import DAYS, SOURCE
from tests.support.lakes.retention import WHO, RetentionLake


def test_a_leased_input_that_expires_while_staging_is_found_before_it_is_read(
    tmp_path: Path,
) -> None:
    lake = RetentionLake(tmp_path)
    file = lake.lab.folder / lake.lab.manifest("a.yaml", DAYS[1], DAYS[4])
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("bronze.s,", "bronze.s, pin: lease_only,"), encoding="utf-8")
    run = str(lake.project.plan("jobs/a.yaml", by=WHO).run_id)
    lake.project.approve(run, WHO)
    pinned = lake.catalog.load_table(SOURCE).current_snapshot()
    assert pinned is not None

    def expire(point: str) -> None:
        source = lake.catalog.load_table(SOURCE)
        if point == "Runs.record_chunk:after" and source.snapshot_by_id(pinned.snapshot_id):
            lake.feed()
            source.refresh().maintenance.expire_snapshots().by_id(pinned.snapshot_id).commit()

    with (
        lake.hooked(expire),
        pytest.raises(NotFound, match=rf"since it was planned: s \({SOURCE}@{pinned.snapshot_id}"),
    ):
        lake.project.stage(run, WHO)
    assert len(lake.project.wiring.context.runs.chunks(run)) == 1
    revised = lake.project.plan("jobs/a.yaml", by=WHO, revise=run)
    assert revised.run_id != run
