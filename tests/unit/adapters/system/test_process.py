"""The driver process and the person who runs it."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.system import process
from lakehouse_backfill.adapters.system.process import (
    is_driver_alive,
    require_valid_reason,
    resolve_actor,
    this_driver,
)
from lakehouse_backfill.errors import ConfigError

HOST = socket.gethostname()
pytestmark = [
    pytest.mark.req("X9"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="states are read from /proc"),
]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def driver_of(process: subprocess.Popen[bytes]) -> str:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return f"{HOST}:{process.pid}@{fields[19]}"


def wait_for_state(process: subprocess.Popen[bytes], state: str) -> None:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == state:
            return
        time.sleep(0.01)
    raise AssertionError(f"{process.pid} did not get into state {state}")


def test_this_process_is_named_with_host_pid_and_start_and_lives():
    name = this_driver()
    assert name.startswith(f"{HOST}:{os.getpid()}@")
    assert name == this_driver()
    assert is_driver_alive(name)


def test_a_process_that_runs_is_alive_until_it_has_gone(sleeper):
    name = driver_of(sleeper)
    assert is_driver_alive(name)
    sleeper.kill()
    sleeper.wait()
    assert not is_driver_alive(name)


def test_a_killed_process_that_nobody_reaped_is_dead(sleeper):
    name = driver_of(sleeper)
    sleeper.kill()
    wait_for_state(sleeper, "Z")
    assert not is_driver_alive(name)


def test_a_stopped_process_is_not_alive_and_is_again_when_it_goes_on(sleeper):
    name = driver_of(sleeper)
    sleeper.send_signal(signal.SIGSTOP)
    wait_for_state(sleeper, "T")
    assert not is_driver_alive(name)
    sleeper.send_signal(signal.SIGCONT)
    wait_for_state(sleeper, "S")
    assert is_driver_alive(name)


def test_another_process_with_the_same_pid_is_not_the_driver(sleeper):
    host_and_pid = driver_of(sleeper).partition("@")[0]
    assert not is_driver_alive(f"{host_and_pid}@1")


def test_a_name_without_a_start_goes_by_the_pid_alone(sleeper):
    name = driver_of(sleeper).partition("@")[0]
    assert is_driver_alive(name)
    sleeper.kill()
    sleeper.wait()
    assert not is_driver_alive(name)


def test_a_driver_of_another_namespace_or_boot_is_taken_for_alive(sleeper):
    own = this_driver()
    place = own.partition("/")[2]
    boot, _, namespace = place.partition("-")
    assert len(boot) == 8
    assert len(own) <= len(f"{HOST}:{os.getpid()}@") + 40
    for other in (f"{boot}-{int(namespace, 16) + 1:x}", f"{'0' * 8}-{namespace}"):
        assert is_driver_alive(f"{HOST}:{sleeper.pid}@1/{other}")
    assert not is_driver_alive(f"{HOST}:{sleeper.pid}@1/{place}")
    assert is_driver_alive(f"{driver_of(sleeper)}/{place}")


def test_a_driver_in_another_container_of_the_same_host_name_is_taken_for_alive():
    """A process that counts its pids anew does not know ours, and cannot tell that we live."""
    code = (
        "import sys; "
        "from lakehouse_backfill.adapters.system.process import is_driver_alive, this_driver; "
        "print(is_driver_alive(sys.argv[1]), this_driver())"
    )
    inside = ["unshare", "-r", "-p", "-f", "--mount-proc", sys.executable, "-c", code]
    found = subprocess.run([*inside, this_driver()], capture_output=True, text=True, check=False)
    if "unshare" in found.stderr:
        pytest.skip("this machine makes no namespaces")
    alive, _, name = found.stdout.strip().partition(" ")
    assert alive == "True"
    assert is_driver_alive(name)  # It has gone, which only its lease can tell from here.


@pytest.mark.parametrize("name", ["elsewhere:1@2", "elsewhere:1", "no driver", "", f"{HOST}:x"])
def test_what_cannot_be_looked_at_is_taken_for_alive(name: str):
    assert is_driver_alive(name)


def test_a_command_may_be_named_anything(sleeper, tmp_path: Path):
    odd = tmp_path / "a ) S 1"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(odd), "60"])
    try:
        assert is_driver_alive(driver_of(process))
    finally:
        process.kill()
        process.wait()


def test_without_proc_a_process_is_known_by_its_pid_alone(sleeper, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(process, "_PROC_FOLDER", tmp_path / "absent")
    assert this_driver() == f"{HOST}:{os.getpid()}"
    assert is_driver_alive(f"{HOST}:{sleeper.pid}")
    sleeper.kill()
    sleeper.wait()
    assert not is_driver_alive(f"{HOST}:{sleeper.pid}")


def test_blanks_around_a_name_make_nobody_else() -> None:
    assert resolve_actor(" ana\n") == "ana"


def test_who_says_no_name_acts_as_logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "bob")
    assert resolve_actor(None) == getpass.getuser() == "bob"


@pytest.mark.parametrize("name", ["", "  ", "a\x1b[2Jna", "a\nb", "\udcff", "WHO"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of who acts"):
        resolve_actor(name)


def test_a_reason_may_have_lines_and_any_language() -> None:
    assert require_valid_reason("zu spät\n\t遅い") == "zu spät\n\t遅い"


@pytest.mark.parametrize("reason", ["a" * 2001, "a\x1b[2J", "a\x9b2J", " TEXT"])
def test_a_reason_that_nobody_could_read_safely_is_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match="the reason"):
        require_valid_reason(reason)
