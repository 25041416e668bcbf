"""The command server of a warm session, with all that it loads, on a real lake without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.system.command_channel import SESSION_FOLDER, CommandAddress
from tests.chaos.lab import Lab

REPOSITORY = Path(__file__).parents[2]
PROGRAM = "from lakehouse_backfill.cli.entry import run; run()"
PATIENCE_S = 120
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
    "PYTHONPATH": str(REPOSITORY),
}


class Shell:
    """A project with a command server, and commands that are typed in it."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.lab.make()
        self.folder = self.lab.folder
        session = self.folder / SESSION_FOLDER
        session.mkdir(parents=True, mode=0o700, exist_ok=True)
        self.address = CommandAddress(session)
        self.server = subprocess.Popen(
            [sys.executable, "-m", "lakehouse_backfill.cli.command_server", str(session),
             str(self.folder)],
            cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"

    def do(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words], cwd=self.folder, capture_output=True,
            text=True, check=False, env=ENVIRONMENT, timeout=PATIENCE_S,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    found = Shell(tmp_path_factory.mktemp("shell"))
    yield found
    assert found.server.stdin is not None
    found.server.stdin.close()
    assert found.server.wait(PATIENCE_S) == 0


def test_commands_do_the_same_in_a_server_and_in_a_process_of_their_own(shell: Shell) -> None:
    manifest = shell.lab.manifest("run.yaml", "2024-01-02", "2024-01-03")
    commands = (
        ("--json", "plan", manifest, "--by", "ana", "--dry-run"), ("status", "bf-nope"), ("plan",),
        ("--json", "doctor"), ("--profile", "none", "status"), ("log", "bf-\x1b[2J"),
    )  # fmt: skip
    began = shell.address.folder.joinpath("commands.json").stat().st_mtime_ns
    served = [shell.do(*words) for words in commands]
    assert shell.address.folder.joinpath("commands.json").stat().st_mtime_ns > began
    hidden = shell.address.folder / "hidden"
    shell.address.folder.joinpath("commands.json").rename(hidden)
    own = [shell.do(*words) for words in commands]
    hidden.rename(shell.address.folder / "commands.json")
    assert [code for code, _, _ in served] == [0, 2, 2, served[3][0], 2, 2]
    for words, one, other in zip(commands, served, own, strict=True):
        assert _stable(one) == _stable(other), words


def _stable(ended: tuple[int, str, str]) -> tuple[int, str, str]:
    """Leave out the lines that tell of time."""
    code, out, err = ended
    kept = [line for line in err.splitlines() if " s" not in line]
    return code, out, "\n".join(kept)


def test_a_plan_that_is_killed_with_its_program_can_be_made_again(shell: Shell) -> None:
    manifest = shell.lab.manifest("killed.yaml", "2024-01-03", "2024-01-04")
    for pause_s in (0.1, 0.3, 0.6):
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "plan", manifest, "--by", "ana"], cwd=shell.folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT,
        )  # fmt: skip
        time.sleep(pause_s)
        program.send_signal(signal.SIGKILL)
        program.wait()
    code, text, _ = shell.do("plan", manifest, "--by", "ana")
    assert (code, "the whole plan: lakehouse-backfill show bf-" in text) == (0, True), text


def test_a_reader_that_goes_away_is_no_error(shell: Shell) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "list"], cwd=shell.folder, stdout=writing,
        stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT, timeout=PATIENCE_S,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
