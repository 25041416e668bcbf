"""The demo's restatement with Spark: twice from scratch, and killed on the way."""

from __future__ import annotations

import os
import shutil
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


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A staged restatement, the same folder as it was before, and the run."""
    root = tmp_path_factory.mktemp("once")
    folder, before = root / "demo", root / "before"
    run = begin(folder)
    shutil.copytree(folder, before)
    stage(folder, run)
    return folder, before, run


@pytest.fixture(scope="module")
def expected(once: tuple[Path, Path, str]) -> tuple[dict[str, str], dict[str, tuple[int, str]]]:
    found = digests(once[0]), ledger(once[0])
    assert len(found[0]) == 45
    return found


@pytest.mark.lake
@pytest.mark.req("T1", "D2")
def test_a_restatement_from_scratch_gives_the_same_rows_in_every_partition(
    once: tuple[Path, Path, str],
    expected: tuple[dict[str, str], dict[str, tuple[int, str]]],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "again"
    run = begin(folder)
    # Another number of tasks, so that rows meet in another order.
    profiles = folder / "catalog" / "profiles.yaml"
    profiles.write_text(profiles.read_text().replace("local[2]", "local[1]"))
    stage(folder, run)
    assert (digests(folder), ledger(folder)) == expected


@pytest.mark.lake
@pytest.mark.req("T3")
def test_a_staging_killed_around_sparks_commit_redoes_only_the_chunk_in_flight(
    once: tuple[Path, Path, str], expected: tuple[dict[str, str], dict[str, tuple[int, str]]]
) -> None:
    folder, before, run = once
    shutil.rmtree(folder)
    shutil.copytree(before, folder)
    lake = Oracle(folder, ".lakehouse")

    stage_killed(folder, run, "Spark.overwrite:committing", "2")
    assert (len(lake.attempts()), len(ledger(folder))) == (1, 1)
    # The second chunk lands, its ledger row does not.
    stage_killed(folder, run, "Spark.overwrite:committed", "1")
    assert (len(lake.attempts()), len(ledger(folder))) == (2, 1)
    stage(folder, run)

    assert lake.attempts() == list(dict.fromkeys(lake.attempts()))
    assert (digests(folder), ledger(folder)) == expected
