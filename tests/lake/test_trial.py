"""try with Spark: one partition is computed by the job and compared; nothing of it stays."""

from __future__ import annotations

import pytest

from lakehouse_backfill.errors import BackfillError
from tests.support.spark.modes import Make, Modes, seeded

pytestmark = pytest.mark.lake


def scratch_tables(modes: Modes) -> list[str]:
    space = modes.project.wiring.profile.shadow_namespace
    names = modes.lake.catalog.list_tables(space)
    return [name for _, name in names if "__try_" in name]


@pytest.mark.parametrize("version", [2, 3])
def test_a_partition_is_computed_and_compared_and_nothing_of_it_stays(
    make: Make, version: int
) -> None:
    modes = seeded(make, version)
    run_id = modes.plan()
    before, rows = modes.head().snapshot_id, modes.rows()
    done = modes.project.try_partition("jobs/run.yaml", "2024-01-03", by="ann")
    summary = done.diff.summary
    assert (done.partition, done.output_rows, done.passed) == ("2024-01-03", 3, True)
    assert (summary.old_rows, summary.changed) == (3, 3)
    assert {sample.new["v"] - sample.old["v"] for sample in done.diff.samples} == {1000}
    assert (modes.head().snapshot_id, modes.rows()) == (before, rows)
    assert modes.project.chunks(run_id).chunks[0].status == "pending"
    assert (scratch_tables(modes), done.warnings) == ([], ())


def test_a_job_that_does_not_fit_leaves_nothing(make: Make) -> None:
    modes = seeded(make)
    modes.plan()
    job = modes.folder / "jobs" / "job.py"
    wrong = job.read_text(encoding="utf-8").replace('"ver", *more', "*more")
    job.write_text(wrong.replace('version="1.0.0"', 'version="1.1.0"'), encoding="utf-8")
    manifest = modes.folder / "jobs" / "run.yaml"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("1.0.0", "1.1.0"))
    with pytest.raises(BackfillError, match="ver"):
        modes.project.try_partition("jobs/run.yaml", by="ann")
    assert scratch_tables(modes) == []
