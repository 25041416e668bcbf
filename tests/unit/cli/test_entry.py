"""The program asks for a command server before it loads anything, and does not need one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.system.command_channel import SESSION_FOLDER, find_command_server
from lakehouse_backfill.command_lines import split_arguments

REPOSITORY = Path(__file__).parents[3]
#: Ends instead of loading the program.
ENTRY = """
import sys
import lakehouse_backfill.cli.entry as entry
class Stop:
    def find_spec(self, name, path, target=None):
        if name == "lakehouse_backfill.cli.main":
            sys.stdout.write(" ".join(sorted(name for name in sys.modules if "." not in name)))
            sys.exit(9)
sys.meta_path.insert(0, Stop())
entry.run()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ENTRY, *words], cwd=folder, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


def run_closed(
    folder: Path, closed: str, program: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run a program without one of its streams, as the shell closes it."""
    line = f'exec "$0" -c "$@" {closed}'
    return subprocess.run(
        ["sh", "-c", line, sys.executable, program, *words], cwd=folder, capture_output=True,
        text=True, check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


def make_killed_server(project: Path) -> Path:
    """Leave what a server leaves that was killed."""
    folder = project / SESSION_FOLDER
    folder.mkdir(parents=True, mode=0o700)
    address = folder / "commands.json"
    address.write_text(json.dumps({"token": "t"}), encoding="ascii")
    address.chmod(0o600)
    return address


def test_without_a_session_nothing_is_loaded_before_the_program(tmp_path: Path) -> None:
    done = run(tmp_path, "status")
    assert (done.returncode, done.stderr) == (9, "")
    assert not {"typer", "rich", "pydantic", "yaml", "importlib.metadata", "asyncio", "logging"} & {
        *done.stdout.split()
    }


def test_a_command_ends_in_order_but_takes_nothing_apart(tmp_path: Path) -> None:
    program = """
import atexit, sys
import lakehouse_backfill.cli.entry as entry
class Kept:
    def __del__(self):
        sys.stderr.write("taken apart")
entry.kept = Kept()
atexit.register(lambda: sys.stdout.write("in order"))
entry.run()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("in order")


@pytest.mark.parametrize(("closed", "code"), [("2>&-", 0), (">&-", 3)])
def test_a_command_without_a_stream_has_its_own_exit_code(
    tmp_path: Path, closed: str, code: int
) -> None:
    program = f"import lakehouse_backfill.cli.entry as it; it.end_process(SystemExit({code}))"
    done = run_closed(tmp_path, closed, program)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_an_error_without_stderr_has_its_exit_code(tmp_path: Path) -> None:
    program = "import lakehouse_backfill.cli.entry as it; it.run()"
    done = run_closed(tmp_path, "2>&-", program, "--project", "nowhere", "status")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status",), True),
        (("--project", "here", "status"), True),
        (("status", "--json"), False),
        (("status", "--quiet"), False),
        (("session", "stop"), False),
        (("plan", "--help"), False),
        (("--project", "elsewhere", "status"), False),
    ],
    ids=lambda found: " ".join(found) if isinstance(found, tuple) else "",
)
def test_a_command_runs_in_its_own_process_and_says_so_where_a_server_was_killed(
    tmp_path: Path, words: tuple[str, ...], said: bool
) -> None:
    for project in (tmp_path, tmp_path / "here"):
        make_killed_server(project)
    done = run(tmp_path, *words)
    reason = "the warm session does not run this command: its command server was killed\n"
    assert (done.returncode, done.stderr) == (9, reason if said else "")


@pytest.mark.parametrize("file", ["/dev/fd/63", "--file=/proc/self/fd/9"])
def test_a_file_that_only_the_program_has_open_keeps_the_command_there(
    tmp_path: Path, file: str
) -> None:
    make_killed_server(tmp_path)
    assert "that only its own process has open" in run(tmp_path, "plan", file).stderr


@pytest.mark.parametrize(
    ("line", "is_served"),
    [
        ("status", True), ("--json list", True), ("--profile p plan a.yaml", True),
        ("session start", False), ("demo", False), ("init x", False), ("schema", False),
        ("", False), ("--version", False), ("run -h", False),
        ("--sign-with key approve bf-1", False), ("approve bf-1 --sign-with=key", False),
        ("evidence bf-1 --open", False),
    ],
)  # fmt: skip
def test_commands_that_work_in_a_project_are_served(
    tmp_path: Path, line: str, is_served: bool
) -> None:
    make_killed_server(tmp_path)
    words = split_arguments(line.split()).command_arguments
    found = find_command_server(str(tmp_path), words, {})
    assert (found is not None) is is_served
    for variable in ("_LAKEHOUSE_BACKFILL_COMPLETE", "LAKEHOUSE_BACKFILL_SIGNING_KEY"):
        assert find_command_server(str(tmp_path), words, {variable: "x"}) is None
