"""The demo's restatement with Spark: twice from scratch, once of them killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.oracle import Oracle

REPOSITORY = Path(__file__).resolve().parents[2]
#: All but the lineage, which says when and by which run.
COLUMNS = (
    "arrival_date, dest, carrier, flights, arrived, diverted, cancelled, delayed, total_delay, "
    "mean_delay, flown_minutes"
)
NO_POINT = ("nowhere", "1")


def program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos.restate", str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def begin(folder: Path) -> str:
    begun = program(folder, "begin")
    assert begun.returncode == 0, begun.stderr
    return begun.stdout


def stage(folder: Path, run: str) -> None:
    staged = program(folder, *NO_POINT, "stage", run, "--by", "ana")
    assert staged.returncode == 0, staged.stderr


def stage_killed(folder: Path, run: str, point: str, nth: str) -> None:
    staged = program(folder, point, nth, "stage", run, "--by", "ana")
    assert staged.returncode == -signal.SIGKILL, staged.stderr


def digests(folder: Path) -> dict[str, str]:
    return Oracle(folder, ".lakehouse").digests(COLUMNS)


def ledger(folder: Path) -> dict[str, tuple[int, str]]:
    columns = ("chunk_id", "output_rows", "checksum")
    found = Oracle(folder, ".lakehouse").log("backfill_chunk_run", *columns)
    return {row["chunk_id"]: (row["output_rows"], row["checksum"]) for row in found}


# Five processes, three of which start Spark, beside other suites on two cores.
@pytest.mark.timeout(900)
@pytest.mark.lake
@pytest.mark.req("T1", "D2", "T3")
def test_restatements_from_scratch_give_the_same_rows_also_where_a_staging_was_killed(
    tmp_path: Path,
) -> None:
    """One is killed behind a commit of Spark, and takes up what landed without a ledger row.

    The kill before a commit of Spark, after which the chunk in flight is redone: test_java_kills.
    """
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = begin(whole)
    # Another number of tasks, so that rows meet in another order.
    profiles = whole / "catalog" / "profiles.yaml"
    profiles.write_text(profiles.read_text().replace("local[2]", "local[1]"))
    stage(whole, run)
    expected = digests(whole), ledger(whole)
    assert len(expected[0]) == 45

    run = begin(killed)
    lake = Oracle(killed, ".lakehouse")
    # The second chunk lands, its ledger row does not.
    stage_killed(killed, run, "Spark.overwrite:committed", "2")
    assert (len(lake.attempts()), len(ledger(killed))) == (2, 1)
    stage(killed, run)

    assert lake.attempts() == list(dict.fromkeys(lake.attempts()))
    assert (digests(killed), ledger(killed)) == expected
