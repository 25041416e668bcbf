"""The program is killed at each fault point that Spark passes; the server lives on and finishes.

A client that dies leaves its request with the server, so a commit may land after the death.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark.reading import Rows
from tests.support.spark.restating import DAYS, SCOPE, RestateLab

REPOSITORY = Path(__file__).resolve().parents[3]
#: In the order in which one command after the other gets that far: each goes on with what is there.
#: Between two commits the lake stays as it is, so each of these moments is killed at once.
STAGE = ("Spark.overwrite:committing", "Spark.overwrite:committed")
PUBLISH = ("Publisher.swap:committing", "Publisher.swap:committed", "Pins.tag:committed")
ROLLBACK = (*STAGE, "Publisher.swap:committed", "Pins.tag:committed")


def killed(lab: RestateLab, point: str, *command: str) -> None:
    """Run the program until it dies at a point."""
    words = [sys.executable, "-m", "tests.chaos.restate", str(lab.folder), point, "1"]
    done = subprocess.run(
        [*words, *command],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, (point, command, done.stdout, done.stderr)


@pytest.mark.req("T3", "T4", "U10", "U12", "X2")
def test_whoever_is_killed_where_spark_commits_goes_on_and_nothing_is_lost_or_doubled(
    lab: RestateLab,
) -> None:
    project = lab.declare("plain.py", has_checks=True, deletions="reapply")
    before = lab.fill(3)
    run = str(project.plan("jobs/run.yaml", by="ana").run_id)
    project.approve(run, "ana")

    for point in STAGE:
        killed(lab, point, "stage", run, "--by", "ana")
        assert lab.rows() == before
    assert project.stage(run, "ana").state == "staged"
    chunks = project.chunks(run).chunks
    assert [(one.output_rows, one.status) for one in chunks] == [(10, "done")] * 2
    assert project.validate(run, "ana").passed
    project.accept(run, "ana")

    restated = {row if row[0] not in SCOPE else (*row[:2], row[1] * 10) for row in before}
    seen: list[Rows] = []
    for point in PUBLISH:
        killed(lab, point, "publish", run, "--by", "ana")
        seen.append(lab.rows())
        assert seen[-1] in (before, restated)
    assert seen == sorted(seen, key=lambda rows: rows == restated)
    project.recover(run, by="ana")
    assert (lab.rows(), lab.state(run)) == (restated, "published")
    assert len(lab.tokens()) == len(set(lab.tokens())) == 1
    assert project.verify(run, deep=True).intact

    lab.sql(f"DELETE FROM {{ns}}.out WHERE id = 1 AND d = DATE '{DAYS[1]}'")
    kept, back = ({row for row in rows if row[1] != 1} for rows in (restated, before))
    rollback = ("rollback", lab.table("out"), "--to", "0", "--reason", "wrong", "--by", "ana")
    for point in ROLLBACK:
        killed(lab, point, *rollback)
        assert lab.rows() in (kept, back)
    project.recover(run, by="ana")
    assert lab.state(run) == "rolled_back"
    assert lab.rows() == back
    assert len(lab.tokens()) == len(set(lab.tokens())) == 2
