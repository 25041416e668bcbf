"""The process and its machine: driver identity, acting person, git commit, clock, secrets of masks.

Secrets are read by name, from an environment variable or a file. The progress for callers that show
none is here too; the one for a terminal is in `cli.progress`.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING

from lakehouse_backfill.core.runs.roles import name_fault, reason_fault
from lakehouse_backfill.domain.guards.privacy import MIN_SECRET_BYTES, MaskKey
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class SystemClock:
    """Implements `ports.system.Clock`."""

    def now(self) -> datetime:
        """Return the current instant, timezone-aware UTC."""
        return datetime.now(timezone.utc)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        time.sleep(seconds)


_PROC_FOLDER = Path("/proc")
_DRIVER_PATTERN = re.compile(
    r"(?P<host>.+):(?P<pid>\d+)(?:@(?P<start>\d+))?(?:/(?P<place>[0-9a-f]+-\w+))?"
)
#: States of a process that does not run: dead but not reaped, stopped, stopped by a debugger.
_IDLE_STATES = frozenset("ZXxTt")


def this_driver() -> str:
    """Return the name of this process."""
    return driver_name(os.getpid())


def driver_name(pid: int) -> str:
    """Return the name of a process of this machine: `host:pid@start/boot-namespace`.

    The start distinguishes it from a later process with its pid; boot and pid namespace distinguish
    machines and containers with the same host name. Without /proc they are left out.
    """
    process_state = _read_process_state(pid)
    start = f"@{process_state[1]}" if process_state else ""
    machine = _boot_and_namespace()
    return f"{socket.gethostname()}:{pid}{start}{'/' + machine if machine else ''}"


def is_driver_alive(driver: str) -> bool:
    """Return whether a driver can work on its run; True if it runs elsewhere.

    Elsewhere is another host, another container, or the time before a boot: pids mean nothing
    there, and the end of its lease decides. A stopped process cannot work. If it continues later,
    its writes are refused by the fences of the process that took over.
    """
    parts = _DRIVER_PATTERN.fullmatch(driver)
    if parts is None or parts["host"] != socket.gethostname():
        return True
    if parts["place"] not in (None, _boot_and_namespace()):
        return True
    pid = int(parts["pid"])
    if not _PROC_FOLDER.joinpath("self", "stat").exists():
        return _is_pid_alive(pid)
    process_state = _read_process_state(pid)
    if process_state is None:
        return False
    state, start = process_state
    return state not in _IDLE_STATES and parts["start"] in (None, start)


def _read_process_state(pid: int) -> tuple[str, str] | None:
    """Return state and start (in ticks since boot) of a process; None when there is none."""
    try:
        text = _PROC_FOLDER.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name is in brackets and may contain any text, also brackets and spaces.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def _boot_and_namespace() -> str | None:
    """Return the boot id of this machine and this process's pid namespace, both shortened."""
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


def describe_head(folder: Path) -> str:
    """Return the commit of the folder, ending in `-dirty` for changed files; empty without one."""
    return _run_git(folder, "describe", "--always", "--dirty", "--abbrev=40")


def describe_git_commit(
    folder: Path, files: tuple[str, ...] = (), head_of: Callable[[], str] | None = None
) -> str | None:
    """Return the commit of the folder, ending in `-dirty` when code is not in the commit.

    Such code is in changed files, and in those of `files` that git does not track. None: the folder
    is no repository or has no commit, or git is missing. `head_of` says what `describe_head` said
    before.
    """
    head = head_of() if head_of else describe_head(folder)
    if not head or head.endswith("-dirty") or not files:
        return head or None
    unknown = _run_git(folder, "ls-files", "--others", "--", *files)
    return f"{head}-dirty" if unknown else head


def find_commit(folder: Path, commit: str) -> str | None:
    """Return the full id of a commit of the folder's repository; None without it."""
    return _run_git(folder, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") or None


def read_committed_code(folder: Path, commit: str) -> dict[str, bytes]:
    """Return the Python and SQL files below the folder as a commit holds them, by path.

    Links are left out: they may lead out of the folder.
    """
    listed = _run_git(folder, "ls-tree", "-r", "-z", commit)
    ids: dict[str, str] = {}
    for entry in filter(None, listed.split("\0")):
        facts, _, name = entry.partition("\t")
        mode, _, blob = facts.split()
        if mode.startswith("100") and name.endswith((".py", ".sql")):
            ids[name] = blob
    rest = _git_output(folder, "cat-file", "--batch", given="\n".join(ids.values()).encode())
    found: dict[str, bytes] = {}
    for name in ids:
        head, _, rest = rest.partition(b"\n")
        size = int(head.split()[-1])
        found[name], rest = rest[:size], rest[size + 1 :]
    return found


def _run_git(folder: Path, *arguments: str) -> str:
    return _git_output(folder, *arguments).decode("utf-8", "surrogateescape").strip()


def _git_output(folder: Path, *arguments: str, given: bytes = b"") -> bytes:
    try:
        # A fixed command on a folder that the user named.
        process = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607 (whichever git is installed)
            input=given, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return process.stdout if process.returncode == 0 else b""


def resolve_actor(by: str | None) -> str:
    """Return the name of the acting person, without surrounding blanks: as given, or as logged in.

    Raises ConfigError for a name that is blank or holds control characters, and where the machine
    has no user name, as in some containers.
    """
    if by is not None:
        fault = name_fault(by)
        if fault:
            raise ConfigError(
                f"the name of who acts {fault}", fix="leave --by out, or write your name behind it"
            )
        return by.strip()
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError) as error:
        raise ConfigError(
            "this machine does not say who you are", fix="add --by and your name"
        ) from error


def require_valid_reason(reason: str) -> str:
    """Return the reason; raises ConfigError if it is too long or has control characters."""
    fault = reason_fault(reason)
    if fault:
        raise ConfigError(
            f"the reason {fault}",
            fix="the same command, with a sentence in quotes behind --reason",
        )
    return reason


class NullProgress:
    """Implements `ports.system.Progress` without output."""

    def start(self, label: str, total: int, unit: str) -> None:
        """Do nothing."""

    def count(self, label: str, total: int, unit: str) -> None:
        """Do nothing."""

    @contextmanager
    def within(self, label: str, total: int, unit: str) -> Iterator[None]:
        """Do nothing."""
        self.count(label, total, unit)
        yield

    def advance(self, amount: int = 1, rows: int = 0, *, was_done: bool = False) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""


#: How long the end of a command waits for threads that are busy with other work.
_RELEASE_S = 0.1


def release_memory() -> None:
    """Give freed memory that Arrow and the C library keep back to the system; takes milliseconds.

    Arrow keeps memory for each thread that used it, and gives it back in that thread alone. The
    threads of PyIceberg read and write Parquet files, and live as long as the process: in hundreds
    of runs they came to keep 80 megabytes.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        return
    release = arrow.default_memory_pool().release_unused
    if library := sys.modules.get("pyiceberg.utils.concurrent"):
        _call_in_each_thread(library.ExecutorFactory.get_or_create(), release)
    release()
    if trim := sys.platform == "linux" and getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _call_in_each_thread(executor: ThreadPoolExecutor, act: Callable[[], None]) -> None:
    """Call once in each thread that the executor has; threads that stay busy are left out."""
    from concurrent.futures import wait

    threads = len(executor._threads)
    if not threads:
        return
    meeting = Barrier(threads)

    def act_and_meet() -> None:
        act()
        with suppress(BrokenBarrierError):  # so that no thread takes a second turn
            meeting.wait(_RELEASE_S)

    with suppress(RuntimeError):  # the interpreter shuts down
        wait([executor.submit(act_and_meet) for _ in range(threads)], _RELEASE_S)


@dataclass(frozen=True)
class LocalSecrets:
    """Implements `ports.system.Secrets`; files are relative to the project's folder."""

    folder: Path

    def read(self, key: MaskKey) -> bytes:
        """Return the secret without white space at its ends; it is never part of an error."""
        if key.env:
            found = os.environ.get(key.env, "").encode()
        else:
            try:
                found = (self.folder / str(key.file)).read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"the secret of the masks cannot be read from {key.place}: {error.strerror}",
                    fix=f"put it there; at least {MIN_SECRET_BYTES} random bytes",
                ) from error
        secret = found.strip()
        if len(secret) < MIN_SECRET_BYTES:
            length = f"has {len(secret)} bytes" if secret else "is missing"
            raise ConfigError(
                f"the secret of the masks, {key.place}, {length}",
                fix=f"set it to the secret of version {key.version}; a new one has at least "
                f"{MIN_SECRET_BYTES} random bytes",
            )
        return secret
