"""Driver identity, acting person, git state, clock.

The machine's clock.

Which process drives a run, and whether it can still do so.

Which commit a project is at, and whether it has changes that are in none.

Who acts: as they say, or as the machine knows them.

Progress for callers that watch nothing; the one for a terminal is in `cli.progress`.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path

from lakehouse_backfill.core.runs.roles import name_fault, reason_fault
from lakehouse_backfill.errors import ConfigError


class SystemClock:
    """Implements `ports.clock.Clock`."""

    def now(self) -> datetime:
        """The current instant, timezone-aware UTC."""
        return datetime.now(timezone.utc)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


_PROC_FOLDER = Path("/proc")
_DRIVER_PATTERN = re.compile(
    r"(?P<host>.+):(?P<pid>\d+)(?:@(?P<start>\d+))?(?:/(?P<place>[0-9a-f]+-\w+))?"
)
#: Dead but not reaped, stopped, stopped by a debugger: none of them works.
_IDLE_STATES = frozenset("ZXxTt")


def this_driver() -> str:
    """Name this process: `host:pid@start/boot-namespace`.

    The start tells it from a later one by its pid; the boot and the namespace of its pids tell
    machines and containers apart that have one host name. Without /proc they are left out.
    """
    found = _read_process_state(os.getpid())
    start = f"@{found[1]}" if found else ""
    place = _boot_and_namespace()
    return f"{socket.gethostname()}:{os.getpid()}{start}{'/' + place if place else ''}"


def is_driver_alive(driver: str) -> bool:
    """Tell whether a driver can work on its run; in another place assume that it does.

    That is another host, another container, or the time before a boot: pids mean nothing there,
    and the end of its lease decides. A process that is stopped cannot work. Should it go on later,
    its writes are refused by the fences of whoever took over.
    """
    named = _DRIVER_PATTERN.fullmatch(driver)
    if named is None or named["host"] != socket.gethostname():
        return True
    if named["place"] not in (None, _boot_and_namespace()):
        return True
    pid = int(named["pid"])
    if not _PROC_FOLDER.joinpath("self", "stat").exists():
        return _is_pid_alive(pid)
    found = _read_process_state(pid)
    if found is None:
        return False
    state, start = found
    return state not in _IDLE_STATES and named["start"] in (None, start)


def _read_process_state(pid: int) -> tuple[str, str] | None:
    """Give state and start (in ticks since boot) of a process; None when there is none."""
    try:
        text = _PROC_FOLDER.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name stands in brackets and may hold anything, brackets and spaces too.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def _boot_and_namespace() -> str | None:
    """Give the boot of this machine and the namespace of this process's pids, both shortened."""
    try:
        boot = _PROC_FOLDER.joinpath("sys", "kernel", "random", "boot_id").read_text(
            encoding="ascii"
        )
        namespace = _PROC_FOLDER.joinpath("self", "ns", "pid").stat().st_ino
    except OSError:
        return None
    return f"{boot[:8]}-{namespace:x}"


def _is_pid_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_GIT_TIMEOUT_S = 10


def describe_git_commit(folder: Path, files: tuple[str, ...] = ()) -> str | None:
    """Name the commit of the folder; `-dirty` at its end: files that decide are not in it.

    Those are files that changed since, and those of `files` that git does not know. None: it is no
    repository, has no commit, or there is no git.
    """
    head = _run_git(folder, "describe", "--always", "--dirty", "--abbrev=40")
    if not head or head.endswith("-dirty") or not files:
        return head or None
    unknown = _run_git(folder, "ls-files", "--others", "--", *files)
    return f"{head}-dirty" if unknown else head


def _run_git(folder: Path, *arguments: str) -> str:
    try:
        # A fixed command on a folder that the user named.
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607 (whichever git is installed)
            capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


_NOTHING_CHANGED = "nothing was changed"


def resolve_actor(by: str | None) -> str:
    """Name the acting person, without blanks around: as given, or as logged in.

    Raises ConfigError for a name that is blank or holds control characters, and where the machine
    knows no user, as in some containers.
    """
    if by is not None:
        fault = name_fault(by)
        if fault:
            raise ConfigError(
                f"the name of who acts {fault}", state=_NOTHING_CHANGED, fix="write --by WHO"
            )
        return by.strip()
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError) as error:
        raise ConfigError(
            "this machine does not say who you are", state=_NOTHING_CHANGED, fix="add --by WHO"
        ) from error


def require_valid_reason(reason: str) -> str:
    """Give a reason back; raises ConfigError when it is too long or holds control characters."""
    fault = reason_fault(reason)
    if fault:
        raise ConfigError(
            f"the reason {fault}",
            state=_NOTHING_CHANGED,
            fix="say it in a sentence, and where the rest is written: --reason TEXT",
        )
    return reason


class NullProgress:
    """Implements `ports.progress.Progress` and says nothing."""

    def start(self, label: str, total: int, unit: str) -> None:
        """Do nothing."""

    def advance(self, amount: int = 1, rows: int = 0) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""
