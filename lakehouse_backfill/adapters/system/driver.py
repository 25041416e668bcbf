"""Which process drives a run, and whether it can still do so."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

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
