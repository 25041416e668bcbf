"""Stops calls of job code that reach outside, or outlive the job, and raise no audit event.

Uses the standard library only: its text is sent to Python workers.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import functools
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

#: Functions of `os` that make a file, by the position of its path.
MAKING_FILES: Mapping[str, int] = {"mkfifo": 0, "mknod": 0}
#: Functions of `os` that write to an open file, by the position of its descriptor.
WRITING_TO_DESCRIPTORS: Mapping[str, int] = {
    "write": 0, "writev": 0, "pwrite": 0, "pwritev": 0, "sendfile": 0, "copy_file_range": 1,
    "splice": 1,
}  # fmt: skip
#: Functions of `os` that change the whole process, or another one: a line of a job does not call
#: them. Libraries do, for example to learn the umask.
CHANGING_THE_PROCESS = (
    "umask", "nice", "setpriority", "chroot", "setuid", "seteuid", "setreuid", "setgid",
    "setegid", "setgroups", "setsid", "setpgid", "sched_setaffinity", "sched_setscheduler",
    "pidfd_open", "register_at_fork", "unshare", "setns",
)  # fmt: skip
#: Functions of `os` that end the process at once, whoever calls them for a job.
ENDING_THE_PROCESS = ("_exit", "abort")
_SYSTEM = ("os", "posix", "nt")


def install(guard: Any) -> None:
    """Gate the calls in this process, once; the gates act while the guard is on."""
    for name, position in MAKING_FILES.items():
        _gate_system_call(guard, name, "file", _outside_path(position))
    for name, position in WRITING_TO_DESCRIPTORS.items():
        _gate_system_call(guard, name, "file", _foreign_descriptor(position))
    for name in CHANGING_THE_PROCESS:
        _gate_system_call(guard, name, "process", None)
    for name in ENDING_THE_PROCESS:
        _gate_system_call(guard, name, "process", lambda _guard, _arguments: "")
    _gate_listening(guard)
    _gate_fork_exec(guard)
    _mark_threads(guard)
    _gate_finalizers(guard)


_Check = Callable[[Any, tuple[Any, ...]], "str | None"]


def _gate_system_call(guard: Any, name: str, sink: str, check: _Check | None) -> None:
    original = getattr(os, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if guard.is_on and not guard.is_trusted():
            frame = sys._getframe(1)
            place = guard.origin(frame) if check else guard.direct_caller(frame)
            what = check(guard, (*arguments, *keywords.values())) if place and check else ""
            if place is not None and what is not None:
                guard.stop(sink, f"os.{name}{what}", place)
        return original(*arguments, **keywords)

    for module in _SYSTEM:
        if getattr(sys.modules.get(module), name, None) is original:
            setattr(sys.modules[module], name, call)


def _outside_path(position: int) -> _Check:
    def check(guard: Any, arguments: tuple[Any, ...]) -> str | None:
        path = arguments[position] if len(arguments) > position else None
        if guard.is_scratch(path):
            return None
        return "" if guard.hides_arguments() else f"({path!r})"

    return check


def _foreign_descriptor(position: int) -> _Check:
    def check(guard: Any, arguments: tuple[Any, ...]) -> str | None:
        number = arguments[position] if len(arguments) > position else None
        is_own = not isinstance(number, int) or guard.may_write_to(number)
        return None if is_own else f" to the open file {number}"

    return check


def _gate_listening(guard: Any) -> None:
    """A socket that listens without an address gets one from the system, and no event tells it."""
    owner: Any = socket.socket
    listen = owner.listen

    @functools.wraps(listen)
    def gated_listen(*arguments: Any) -> None:
        found = guard.origin(sys._getframe(1)) if guard.is_on else None
        if found is not None:
            guard.stop("network", "socket.listen", found)
        listen(*arguments)

    owner.listen = gated_listen


def _gate_fork_exec(guard: Any) -> None:
    """`multiprocessing` starts processes below the audit events."""
    try:
        import _posixsubprocess
    except ImportError:
        return
    fork_exec = _posixsubprocess.fork_exec

    def gated_fork_exec(*arguments: Any) -> Any:
        found = guard.origin(sys._getframe(1)) if guard.is_on else None
        if found is not None:
            guard.stop("process", "to start a process", found)
        return fork_exec(*arguments)

    _posixsubprocess.fork_exec = gated_fork_exec


def _mark_threads(guard: Any) -> None:
    """Remember for each thread, and for work that a pool gets, which line of a job began it."""
    for name in ("start_new_thread", "start_joinable_thread"):
        original = getattr(_thread, name, None)
        if original is not None:
            marking = _marking(guard, original, 0)
            setattr(_thread, name, marking)
            setattr(threading, f"_{name}", marking)
    pool: Any = concurrent.futures.ThreadPoolExecutor
    # Its threads may be there before the job.
    pool.submit = _marking(guard, pool.submit, 1)


def _marking(guard: Any, original: Any, position: int) -> Any:
    """Return a function that lets the callable at this position act for the job that gives it."""

    @functools.wraps(original)
    def start(*arguments: Any, **keywords: Any) -> Any:
        found = guard.origin(sys._getframe(1)) if guard.is_on else None
        if found is None:
            return original(*arguments, **keywords)
        function = arguments[position]

        def act(*given: Any, **named: Any) -> Any:
            with guard.acting_for(found):
                return function(*given, **named)

        return original(*arguments[:position], act, *arguments[position + 1 :], **keywords)

    return start


def _gate_finalizers(guard: Any) -> None:
    """A finalizer acts when the job has ended, without a line of it on the stack."""
    finalize: Any = weakref.finalize
    for owner, name, shown in (
        (finalize, "__init__", "weakref.finalize"),
        (threading, "_register_atexit", "threading._register_atexit"),
    ):
        setattr(owner, name, _refused_to_jobs(guard, getattr(owner, name), shown))


def _refused_to_jobs(guard: Any, original: Any, shown: str) -> Any:
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if guard.is_on and not guard.is_trusted() and (place := _asking(guard, sys._getframe(1))):
            guard.stop("after the run", shown, place)
        return original(*arguments, **keywords)

    return call


def _asking(guard: Any, frame: FrameType | None) -> tuple[str, int] | None:
    """Return the line of the job that makes the call itself, also in executed text."""
    # Not past `tempfile`: it removes its own folders in this way.
    while frame is not None and frame.f_code.co_filename == "<string>":
        frame = frame.f_back
    if frame is None or not guard.is_job_file(frame.f_code.co_filename):
        return None
    return frame.f_code.co_filename, frame.f_lineno
