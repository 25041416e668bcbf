"""Troubles that Spark itself meets: a disk that is full, a clock that is off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse_backfill.errors import EnvironmentDown
from tests.chaos.troubled_spark import SCOPE, begin, committed_chunks, restated, staged_rows
from tests.support.skew import build_skew

REPOSITORY = Path(__file__).resolve().parents[2]


def program(
    *words: str, before: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-m", "tests.chaos.troubled_spark", *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def chunks() -> list[str]:
    return [f"c{number:04}-{day}" for number, day in enumerate(SCOPE, 1)]


@pytest.mark.lake
@pytest.mark.timeout(400)
@pytest.mark.req("T8", "X3")
def test_a_restatement_by_spark_converges_once_the_disk_is_no_longer_full(tmp_path: Path) -> None:
    """It is a small disk, where this user may mount one, and a limit for the size of files."""
    may_mount = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    before = () if may_mount.returncode else ("unshare", "-rm")
    ended = program("full", str(tmp_path), before=before)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told.pop("mounted") is bool(before)
    # Whether the swap landed cannot be looked up, or it failed for certain.
    *staging, publishing = told.pop("codes")
    assert staging == [6, 6, 6]
    assert publishing in (5, 6)
    assert told == {
        "untouched until published": True, "rows are right": True, "state": "published",
        "intact": True, "publications": 1, "commits": chunks(),
    }  # fmt: skip


@pytest.fixture(scope="module")
def skewed_clock(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_skew(tmp_path_factory.mktemp("clock"))


@pytest.mark.lake
@pytest.mark.timeout(400)
@pytest.mark.req("T8", "X3")
def test_a_driver_whose_clock_is_a_day_behind_commits_nothing_and_the_next_one_all(
    tmp_path: Path, skewed_clock: str
) -> None:
    """The clocks of Python and of Java: Iceberg takes no snapshot that is older than the last."""
    lab, run = begin(tmp_path)
    off = program("stage", str(tmp_path), run, LD_PRELOAD=skewed_clock, SKEW_S="-86400")
    assert off.returncode == EnvironmentDown.exit_code, off.stderr
    assert "a clock is wrong" in off.stderr
    assert committed_chunks(lab) == []
    ended = program("stage", str(tmp_path), run)
    assert ended.returncode == 0, ended.stderr
    assert committed_chunks(lab) == chunks()
    assert staged_rows(lab) == {row for row in restated() if row[0] in SCOPE}
