"""Which process drives a run, and whether it can still do so."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

_PROC = Path("/proc")
_DRIVER = re.compile(r"(?P<host>.+):(?P<pid>\d+)(?:@(?P<start>\d+))?")
#: Dead but not reaped, stopped, stopped by a debugger: none of them works.
_IDLE_STATES = frozenset("ZXxTt")


def this_driver() -> str:
    """Name this process: `host:pid@start`, where the start tells it from a later one by its pid.

    Without /proc the start is left out.
    """
    found = _look(os.getpid())
    start = f"@{found[1]}" if found else ""
    return f"{socket.gethostname()}:{os.getpid()}{start}"


def is_alive(driver: str) -> bool:
    """Tell whether a driver can work on its run; on another host assume that it does.

    A process that is stopped cannot. Should it go on later, its writes are refused by the fences
    of whoever took over.
    """
    named = _DRIVER.fullmatch(driver)
    if named is None or named["host"] != socket.gethostname():
        return True
    pid = int(named["pid"])
    if not _PROC.joinpath("self", "stat").exists():
        return _answers(pid)
    found = _look(pid)
    if found is None:
        return False
    state, start = found
    return state not in _IDLE_STATES and named["start"] in (None, start)


def _look(pid: int) -> tuple[str, str] | None:
    """Give state and start (in ticks since boot) of a process; None when there is none."""
    try:
        text = _PROC.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name stands in brackets and may hold anything, brackets and spaces too.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
