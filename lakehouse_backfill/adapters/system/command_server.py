"""A command server: a process that has loaded the libraries, and forks one for each command.

It does nothing else: it opens no catalog, starts no thread, and reads no declaration, so that a
forked process finds what a new one finds after its imports. It serves its own user, and only where
nothing differs that a fork cannot take over; and no longer once code that it has loaded changes.
"""

from __future__ import annotations

import gc
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

from lakehouse_backfill.adapters.system.command_channel import (
    SETTINGS_FILE,
    STREAMS,
    CommandAddress,
    CommandRequest,
    difference,
    is_awaited,
    is_same_token,
    peer_user,
    process_facts,
    receive_request,
    send_answer,
)

#: Seconds that a program may take to send its request, which it has ready.
_PATIENCE_S = 2.0
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
#: What the server waits for.
_PROGRAM_CONNECTS, _OWNER_ENDS, _CHILD_ENDS = "program connects", "owner ends", "child ends"
#: Signals that Python ignores when it starts.
_PYTHON_IGNORES = frozenset((signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)))
Stamp = tuple[int, int]


def code_stamps(package: Path) -> dict[str, Stamp | None]:
    """Return size and time of what decides what a new process would load, by path.

    The files of all loaded modules and of the package; the folders of installed packages, which
    change when one is installed; the settings that PyIceberg reads when it is loaded.
    """
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    installed = [path for path in sys.path if path.endswith(_PACKAGE_FOLDERS)]
    paths = {*filter(None, loaded), *installed, *map(str, package.rglob("*.py"))}
    homes = (os.environ.get("PYICEBERG_HOME"), str(Path.home()), str(Path.cwd()))
    paths |= {str(Path(home, SETTINGS_FILE)) for home in homes if home}
    return {path: _stamp(path) for path in sorted(paths)}


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (thousands of paths for each command)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


@dataclass
class _Child:
    """A forked process, and the program that waits for it."""

    pid: int
    program: socket.socket


class CommandServer:
    """Serves commands until `owner`, an open file, ends; made before anything is loaded."""

    def __init__(self, address: CommandAddress, owner: int) -> None:
        """Note what this process has taken over from the one that started it."""
        self._address, self._owner = address, owner
        self._token, self._began_ns = secrets.token_hex(32), time.time_ns()
        self._facts = process_facts()
        self._stamps: dict[str, Stamp | None] = {}
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wake: tuple[socket.socket, ...] = ()

    def serve(self, package: Path, on_ready: Callable[[], None]) -> CommandRequest | None:
        """Return None when the server is to end; in a forked process, the command to run.

        The forked process has the terminal, folder, arguments and environment of the program.
        `package` is the folder of our own code, of which not all is loaded.
        """
        # What was written while it was loaded may have been loaded before that, or after.
        self._stamps = {
            path: None if stamp and self._began_ns <= stamp[1] <= time.time_ns() else stamp
            for path, stamp in code_stamps(package).items()
        }
        # What is loaded stays: no search for cycles copies its pages in a forked process.
        gc.collect()
        gc.freeze()
        self._listen()
        on_ready()
        is_wanted = True
        while is_wanted or self._children:
            for key, _ in self._selector.select():
                if key.data == _PROGRAM_CONNECTS:
                    request = self._accept()
                    if request is not None:
                        return request
                elif key.data == _OWNER_ENDS:
                    is_wanted = False
                    self._stop_listening()
                elif key.data == _CHILD_ENDS:
                    self._wake[0].recv(4096)
                    self._report_ended()
                else:
                    self._kill_left_alone(key.data)
        return None

    def _listen(self) -> None:
        self._address.remove()
        mask = os.umask(0o177)
        try:
            with self._address.entered() as name:
                self._listener.bind(name)
        finally:
            os.umask(mask)
        self._listener.listen()
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)  # noqa: FBT003 (the method has no keyword)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for file, what in (
            (self._listener.fileno(), _PROGRAM_CONNECTS),
            (self._owner, _OWNER_ENDS),
            (self._wake[0].fileno(), _CHILD_ENDS),
        ):
            self._selector.register(file, selectors.EVENT_READ, what)
        self._address.write(self._token)

    def _stop_listening(self) -> None:
        self._address.remove()
        self._selector.unregister(self._owner)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> CommandRequest | None:
        """Fork a process for a program that connects; in the forked one, return the command."""
        try:
            program, _ = self._listener.accept()
            program.settimeout(_PATIENCE_S)
            text, files = receive_request(program)
        except OSError:
            # The program has gone, or is none; its end of the connection ends with ours.
            return None
        try:
            request = CommandRequest.decode(text)
            reason = self._refusal(request, program)
        except (ValueError, TypeError, KeyError, AttributeError):
            request, reason = None, "it has another version"
        if request is None or reason:
            with suppress(OSError):
                send_answer(program, {"refused": reason})
            program.close()
        elif self._fork(request, program, files):
            return request
        for file in files:
            os.close(file)
        return None

    def _refusal(self, request: CommandRequest, program: socket.socket) -> str:
        """Say why a command is to run in a process of its own; empty when it may be forked."""
        if peer_user(program) not in (None, os.geteuid()):
            return "it serves another user"
        if not is_same_token(self._token, request.token):
            return "the token is another one's"
        differing = difference(self._facts, request.facts)
        if differing:
            return f"it was started with another value of {differing}"
        changed = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp]
        if changed:
            return f"{changed[0]} has changed since it was started"
        if threading.active_count() > 1:
            return "a library has started a thread in it"
        return ""

    def _fork(self, request: CommandRequest, program: socket.socket, files: Sequence[int]) -> bool:
        """Return True in the forked process, which is then that of the command.

        It begins once the program waits for it: one that has given up runs the command by itself.
        """
        *streams, pipe = files
        # What the program passes on before the process can take it waits.
        everything = signal.valid_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, everything)
        try:
            pid = os.fork()
        except OSError as error:
            # Too many processes, or too little memory: the command tries it by itself.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, everything)
            with suppress(OSError):
                send_answer(program, {"refused": f"it cannot fork: {error.strerror}"})
            program.close()
            return False
        if pid == 0:
            os.setpgid(0, 0)
            self._leave_server()
            if not is_awaited(pipe):
                os._exit(0)
            os.close(pipe)
            #: Open until the process ends: the program waits for that, also without the server.
            self._program = program
            become_command(request, streams)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, everything)
            return True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, everything)
        with suppress(OSError):
            os.setpgid(pid, pid)
        child = _Child(pid, program)
        self._children.append(child)
        self._selector.register(program, selectors.EVENT_READ, child)
        self._address.touch()
        with suppress(OSError):
            send_answer(program, {"pid": pid})
        return False

    def _leave_server(self) -> None:
        """Close in a forked process what belongs to the server and to other programs."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._listener.close()
        for end in (*self._wake, *(child.program for child in self._children)):
            end.close()
        os.close(self._owner)
        self._children.clear()

    def _report_ended(self) -> None:
        """Tell the programs how their processes ended."""
        for child in list(self._children):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            code = os.waitstatus_to_exitcode(status)
            self._children.remove(child)
            self._address.touch()
            with suppress(OSError):
                send_answer(child.program, {"exit": max(code, 0), "signal": max(-code, 0)})
            self._forget(child)

    def _kill_left_alone(self, child: _Child) -> None:
        """Kill a process whose program was killed: a command ends with what was typed."""
        self._forget(child)
        if child in self._children:
            os.kill(child.pid, signal.SIGKILL)

    def _forget(self, child: _Child) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(child.program)
        child.program.close()


def become_command(request: CommandRequest, streams: Sequence[int]) -> None:
    """Make a forked process what the program's own would be: terminal, folder, environment."""
    for number, stream in zip(STREAMS, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    _take_signals(request.ignored_signals)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environ)
    sys.argv[:] = request.arguments
    sys.path[:] = request.search_path
    sys.stdin = _text_stream(0, sys.stdin)
    sys.stdout = _text_stream(1, sys.stdout)
    sys.stderr = _text_stream(2, sys.stderr)
    # All forked processes would draw the same random numbers; Python seeds its own anew.
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()


def _take_signals(ignored: Sequence[int]) -> None:
    """Set each signal to what it is when Python starts."""
    for number in signal.valid_signals():
        if number in ignored or number in _PYTHON_IGNORES:
            wanted: Any = signal.SIG_IGN
        elif number == signal.SIGINT:
            wanted = signal.default_int_handler
        else:
            wanted = signal.SIG_DFL
        if signal.getsignal(number) not in (wanted, None):
            signal.signal(number, wanted)


def _text_stream(number: int, like: TextIOWrapper | Any) -> TextIOWrapper:
    """Return a stream on an open file, as Python makes it when it starts."""
    # PYTHONUNBUFFERED or -u, which the program has too.
    is_input, is_unbuffered = number == 0, bool(getattr(sys.__stdout__, "write_through", False))
    raw = FileIO(number, "rb" if is_input else "wb", closefd=False)
    buffer: Any = BufferedReader(raw) if is_input else raw if is_unbuffered else BufferedWriter(raw)
    return TextIOWrapper(
        buffer, encoding=like.encoding, errors=like.errors,
        line_buffering=not is_input and (number == 2 or raw.isatty()),
        write_through=is_unbuffered and not is_input,
    )  # fmt: skip
