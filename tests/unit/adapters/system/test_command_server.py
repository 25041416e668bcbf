"""A forked process is what a new one would be, and shares nothing with the one before it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.system.command_channel import (
    CommandAddress,
    CommandRequest,
    difference,
)

PATIENCE_S = 60
#: A server of programs that are given as an argument; `loaded` is what it loads before.
SERVER = """
import os, sys
from pathlib import Path
from lakehouse_backfill.adapters.system.command_channel import CommandAddress
from lakehouse_backfill.adapters.system.command_server import CommandServer
owner = os.dup(0)
server = CommandServer(CommandAddress(Path(sys.argv[1])), owner)
exec(sys.argv[3])
if server.serve(Path(sys.argv[2]), lambda: print("ready", flush=True)) is not None:
    exec(sys.argv[1])
"""
CLIENT = """
import sys
from pathlib import Path
from lakehouse_backfill.adapters.system import command_channel as client
from lakehouse_backfill.adapters.system.command_channel import CommandAddress
try:
    ended = client.run_in_server(CommandAddress(Path(sys.argv.pop())))
except client.NotServed as reason:
    sys.exit(f"not served: {reason}")
except client.EndUnknown:
    sys.exit("end unknown")
sys.exit(ended.end_process())
"""


#: A program that has no more patience when the server answers.
GIVES_UP = """
from lakehouse_backfill.adapters.system import command_channel
def give_up(process):
    raise TimeoutError("given up")
command_channel._pass_signals_to = give_up
"""


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of this process, without the one that changes with each test."""
    found = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**found, **variables}


class Served:
    """A command server, and programs that let it run text of Python."""

    def __init__(self, folder: Path, loaded: str = "import random") -> None:
        self.folder, self.package = folder / "session", folder / "package"
        self.folder.mkdir(mode=0o700, parents=True)
        self.package.mkdir()
        (self.package / "a.py").write_text("", encoding="utf-8")
        self.cwd = folder
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(self.folder), str(self.package), loaded],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.cwd,
            env=environment(),
        )  # fmt: skip
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"

    def start(
        self, code: str, *before: str, client: str = CLIENT, **options: object
    ) -> subprocess.Popen[str]:
        """Start a program; `before` is put in front of its command line."""
        chosen = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": self.cwd}
        chosen["env"] = environment()
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [*before, sys.executable, "-c", client, code, str(self.folder)],
            **{"text": True, **chosen, **options},
        )

    def run(
        self, code: str, *before: str, client: str = CLIENT, **options: object
    ) -> tuple[int, str]:
        """Run a program; return its exit code and what it wrote."""
        program = self.start(code, *before, client=client, **options)
        text, _ = program.communicate(timeout=PATIENCE_S)
        return program.returncode, text

    def end(self) -> int:
        """End the owner; return the server's exit code."""
        assert self.server.stdin is not None
        self.server.stdin.close()
        return self.server.wait(PATIENCE_S)


@pytest.fixture
def _terminal_signals() -> Iterator[None]:
    """Take signals as a command at a terminal does; a test run in the background ignores some."""
    wanted: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def served(tmp_path: Path, _terminal_signals: None) -> Iterator[Served]:
    found = Served(tmp_path)
    yield found
    found.server.kill()
    found.server.wait()


def wait_for(path: Path) -> str:
    """Return the text of a file once a process has written it."""
    end = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text("utf-8")):
        assert time.monotonic() < end
        time.sleep(0.01)
    return path.read_text("utf-8")


def test_a_command_has_the_arguments_streams_folder_and_variables_of_its_program(
    served: Served,
) -> None:
    code = (
        "import json, os, sys; sys.stderr.write('warned\\n'); "
        "print(json.dumps([sys.stdin.read(), sys.argv[0], os.environ['COLUMNS'], os.getcwd(), "
        "os.getpgrp() == os.getpid(), sys.stdout.isatty()])); sys.exit(7)"
    )
    program = served.start(
        code, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(COLUMNS="33")
    )
    found, warned = program.communicate("typed", timeout=PATIENCE_S)
    assert json.loads(found) == ["typed", "-c", "33", str(served.cwd), True, False]
    assert (warned, program.returncode) == ("warned\n", 7)


def test_a_command_writes_to_the_terminal_of_its_program(served: Served) -> None:
    ours, theirs = pty.openpty()
    code = "import sys; print(sys.stdout.isatty(), sys.stdout.line_buffering)"
    assert served.start(code, stdin=theirs, stdout=theirs, stderr=theirs).wait(PATIENCE_S) == 0
    os.close(theirs)
    assert os.read(ours, 1000) == b"True True\r\n"
    os.close(ours)


def test_no_command_finds_what_an_earlier_one_has_left(served: Served) -> None:
    found = [
        served.run(
            "import os, random, sys; "
            "print(getattr(random, 'left', ''), os.environ.get('LEFT', ''), random.random()); "
            "random.left = 'left'; os.environ['LEFT'] = '1'; os.chdir('/'); os.umask(0)",
        )
        for _ in range(2)
    ]
    (_, first), (_, second) = found
    assert first.split(" ")[:2] == second.split(" ")[:2] == ["", ""]
    assert first.split(" ")[2] != second.split(" ")[2]


def test_commands_of_several_programs_run_side_by_side(served: Served, tmp_path: Path) -> None:
    first = served.start(f"open({str(tmp_path / 'first')!r}, 'w').write('x'); input()",
                         stdin=subprocess.PIPE)  # fmt: skip
    wait_for(tmp_path / "first")
    assert served.run("print('second')") == (0, "second\n")
    assert first.communicate("\n", timeout=PATIENCE_S)[1] is None
    assert first.returncode == 0


#: Writes its pid, then works until a signal comes.
WORK = """
import os, sys, time
try:
    with open({file!r}, "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(0.1)  # Python sees a signal that comes just before a wait only after it.
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)]
)
def test_signals_reach_the_command_and_its_end_is_that_of_the_program(
    served: Served, tmp_path: Path, number: int, code: int
) -> None:
    program = served.start(WORK.format(file=str(tmp_path / "pid")))
    wait_for(tmp_path / "pid")
    program.send_signal(number)
    assert (program.communicate(timeout=PATIENCE_S)[0], program.returncode) == ("", code)


def test_a_signal_that_the_program_ignores_is_ignored_by_the_command(
    served: Served, tmp_path: Path
) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    assert served.run(code, "nohup", stdin=subprocess.DEVNULL)[1].endswith("True\n")
    assert served.run(code)[1] == "False\n"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2][1] != "Z"
    except OSError:
        return False


def test_a_command_is_killed_with_its_program(served: Served, tmp_path: Path) -> None:
    program = served.start(WORK.format(file=str(tmp_path / "pid")))
    pid = int(wait_for(tmp_path / "pid"))
    program.kill()
    end = time.monotonic() + PATIENCE_S
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.01)
    program.communicate()
    assert served.run("print('next')") == (0, "next\n")


def test_a_command_outlives_a_server_that_is_killed_and_nobody_knows_its_end(
    served: Served, tmp_path: Path
) -> None:
    program = served.start(WORK.format(file=str(tmp_path / "pid")))
    pid = int(wait_for(tmp_path / "pid"))
    served.server.kill()
    served.server.wait()
    assert is_running(pid)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=PATIENCE_S)[0] == "end unknown\n"
    assert served.run("print('next')")[1] == "not served: its command server was killed\n"


def test_nothing_begins_for_a_program_that_gives_up_and_runs_its_command_by_itself(
    served: Served, tmp_path: Path
) -> None:
    code = f"open({str(tmp_path / 'began')!r}, 'w').write('x')"
    assert served.run(code, client=GIVES_UP + CLIENT)[1] == "not served: given up\n"
    assert served.run("print('next')") == (0, "next\n")
    assert served.end() == 0
    assert not (tmp_path / "began").exists()


def test_a_server_whose_owner_ends_lets_a_command_finish(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "began"
    program = served.start(
        f"open({str(file)!r}, 'w').write('x'); print(input())", stdin=subprocess.PIPE
    )
    wait_for(file)
    assert served.server.stdin is not None
    served.server.stdin.close()
    end = time.monotonic() + PATIENCE_S
    while CommandAddress(served.folder).is_there:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert program.communicate("done\n", timeout=PATIENCE_S)[0] == "done\n"
    assert served.server.wait(PATIENCE_S) == 0
    assert list(served.folder.iterdir()) == []


def test_the_path_of_a_project_may_be_long(tmp_path: Path) -> None:
    served = Served(tmp_path / ("long" * 40))
    assert served.run("print('ran')") == (0, "ran\n")
    assert served.end() == 0


@pytest.mark.parametrize(
    ("before", "options", "reason"),
    [
        ((), {"env": environment(RATE="1")}, "another value of the variable RATE"),
        (("sh", "-c", 'umask 027; exec "$@"', "-"), {}, "the mask of new files"),
        (("sh", "-c", 'ulimit -n 99; exec "$@"', "-"), {}, "the limit RLIMIT_NOFILE"),
        ((), {"cwd": "/"}, "another value of the working folder"),
        (("sh", "-c", 'exec "$@" 2>&-', "-"), {"stderr": None}, "Bad file descriptor"),
    ],
    ids=["variable", "mask", "limit", "folder", "closed stream"],
)
def test_a_command_that_differs_is_not_served(
    served: Served, before: tuple[str, ...], options: dict[str, object], reason: str
) -> None:
    code, text = served.run("print('ran')", *before, **options)
    assert code != 0
    assert "ran" not in text
    assert reason in text or options.get("stderr", "") is None


def test_code_that_has_changed_is_not_served(served: Served) -> None:
    assert served.run("print('ran')") == (0, "ran\n")
    (served.package / "a.py").write_text("x = 1\n", encoding="utf-8")
    changed = f"not served: {served.package / 'a.py'} has changed since it was started\n"
    assert served.run("print('ran')")[1] == changed


def test_code_that_has_changed_while_it_was_loaded_is_not_served(tmp_path: Path) -> None:
    file = tmp_path / "package" / "a.py"
    served = Served(tmp_path, f"open({str(file)!r}, 'w').write('x = 1')")
    reason = f"not served: {file} has changed since it was started\n"
    assert served.run("print('ran')")[1] == reason
    assert served.end() == 0


def test_a_server_with_a_thread_forks_nothing(tmp_path: Path) -> None:
    """A thread that holds a lock would hold it for ever in the forked process."""
    loaded = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True)"
    served = Served(tmp_path, f"{loaded}.start()")
    reason = "not served: a library has started a thread in it\n"
    assert served.run("print('ran')")[1] == reason
    served.server.kill()
    served.server.communicate()


def test_a_server_that_cannot_fork_goes_on(tmp_path: Path) -> None:
    loaded = (
        "import errno, os; whole = os.fork\n"
        "def fork():\n    os.fork = whole\n    raise OSError(errno.EAGAIN, 'too many')\n"
        "os.fork = fork"
    )
    served = Served(tmp_path, loaded)
    assert served.run("print('ran')")[1] == "not served: it cannot fork: too many\n"
    assert served.run("print('ran')") == (0, "ran\n")
    assert served.end() == 0


def test_the_token_is_compared(served: Served) -> None:
    (served.folder / "commands.json").write_text('{"token": "other"}', encoding="ascii")
    assert served.run("print('ran')")[1] == "not served: the token is another one's\n"


@pytest.mark.parametrize("name", ["", "commands.json"])
def test_a_server_that_others_can_reach_is_not_trusted(served: Served, name: str) -> None:
    (served.folder / name).chmod(0o755)
    assert served.run("print('ran')")[1].rstrip().endswith("of yours alone")


def test_what_is_no_request_is_no_harm(served: Served) -> None:
    import socket

    address = CommandAddress(served.folder)
    for text in (b"", b"\0\0\0\1x", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            with address.entered() as name:
                stranger.connect(name)
            stranger.sendall(text)
    assert served.run("print('ran')") == (0, "ran\n")


def test_files_are_for_the_user_alone(served: Served) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in served.folder.iterdir()}
    assert modes == {"commands.json": 0o600, "commands.socket": 0o600}


def test_no_value_is_in_what_differs() -> None:
    assert difference({"a": "secret", "b": "1"}, {"b": "2"}) == "a, b"
    many = dict.fromkeys("abcde", "")
    assert difference(many, {}) == "a, b, c and 2 more"


def test_a_request_is_read_as_it_was_sent() -> None:
    request = CommandRequest.of_this_process("token")
    assert CommandRequest.decode(request.encode()) == request
    assert "token" not in json.dumps(request.facts)
