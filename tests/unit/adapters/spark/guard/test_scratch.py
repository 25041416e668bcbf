"""Scratch folders end with the last process that uses them, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.guard import scratch
from tests.support.spark.guarded import try_lines

_DRIVER = """
import os, sys
from lakehouse_backfill.adapters.spark.guard.driver_guard import scratch_folder
folder = scratch_folder()
open(folder + "/one", "w").close()
print(folder, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.mark.req("E1")
def test_scratch_is_gone_when_the_process_ends_and_found_when_it_was_killed(tmp_path: Path) -> None:
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", _DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    folders = [Path((one.stdout.readline() if one.stdout else "").strip()) for one in drivers]
    drivers[0].communicate("\n")
    drivers[1].send_signal(signal.SIGKILL)
    drivers[1].communicate()
    assert [path.exists() for path in folders] == [False, True, True]
    for path in folders[1:]:
        os.utime(path, (1, 1))

    made = scratch.make_held()

    # The third process lives, and holds its folder.
    assert [path.exists() for path in folders] == [False, False, True]
    assert made.is_dir()
    drivers[2].communicate("\n")
    assert list(tmp_path.iterdir()) == [made]


@pytest.mark.req("E1")
def test_the_last_task_on_an_executor_removes_what_it_wrote(tmp_path: Path) -> None:
    # The process that pickled has ended, with its folder: an executor elsewhere lacks it, too.
    lines = ["open(SCRATCH + '/one', 'w').close()", "import os; return os.listdir(SCRATCH)"]
    found = try_lines(tmp_path / "project", lines, in_worker=True)
    assert [one.attempts for one in found] == [(), ()]
    assert [one.result for one in found] == ["None", "[]"]
    assert list(tmp_path.glob(f"{scratch.PREFIX}*")) == []


def test_a_folder_is_removed_by_the_last_who_holds_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    first, second = scratch.hold(folder), scratch.hold(folder)
    scratch.let_go(folder, first)
    assert Path(folder).exists()
    scratch.let_go(folder, second)
    assert not Path(folder).exists()
