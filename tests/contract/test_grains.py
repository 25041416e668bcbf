"""A table of days whose rows are those of a month: staged by the day, seen by the month."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.errors import BackfillError, Unsupported
from tests.chaos.lab import CONTRACT, TARGET
from tests.support.lakes.retention import WHO, RetentionLake

pytestmark = pytest.mark.req("P3")


@pytest.fixture
def lake(tmp_path: Path) -> RetentionLake:
    found = RetentionLake(tmp_path)
    monthly = CONTRACT.replace("{column: d}", "{column: d, grain: month}")
    file = found.lab.folder / f"catalog/contracts/{TARGET}.yaml"
    file.write_text(monthly, encoding="utf-8")
    manifest = found.lab.folder / "jobs/month.yaml"
    found.lab.manifest(manifest.name, "2024-01-01", "2024-02-01")
    text = manifest.read_text(encoding="utf-8")
    text = text.replace("partitions_per_chunk: 1", "partitions_per_chunk: 16")
    manifest.write_text(text, encoding="utf-8")
    return found


def test_a_month_is_staged_by_the_day_and_judged_published_and_taken_back_whole(
    lake: RetentionLake,
) -> None:
    before = lake.rows()
    with pytest.raises(Unsupported) as refused:
        lake.project.plan(lake.lab.manifest("cut.yaml", "2024-01-02", "2024-01-05"), by=WHO)
    assert "from: 2024-01-01, to: 2024-02-01" in refused.value.fix

    run = lake.project.plan("jobs/month.yaml", by=WHO).run_id
    lake.project.approve(run, WHO)
    with lake.killed_at("Runs.record_chunk:after"):
        lake.project.stage(run, WHO)
    chunks = [one.status for one in lake.project.chunks(run).chunks]
    assert chunks == ["done", "pending"]
    for verb in (lake.project.validate, lake.project.accept, lake.project.publish):
        with pytest.raises(BackfillError):
            verb(run, WHO)
    assert lake.rows() == before

    lake.later(1)
    lake.project.stage(run, WHO)
    assert lake.project.validate(run, WHO).passed
    lake.project.accept(run, WHO)
    lake.project.publish(run, WHO)
    published = lake.rows()
    assert published != before

    with pytest.raises(Unsupported, match="belong to the same grain"):
        lake.project.preview_rollback(TARGET, partitions=("2024-01-02",), by=WHO)
    with pytest.raises(Unsupported, match="belong to the same grain"):
        lake.project.rollback(TARGET, partitions=("2024-01-02",), reason="wrong", by=WHO)
    assert lake.rows() == published
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.rows() == before
