"""The program's side of a command server: this process stands for one that the server forks.

It gives the forked process its terminal, arguments and environment, passes on the signals that it
gets, and ends as the forked process ends. Loads nothing but small parts of the standard library.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lakehouse_backfill.adapters.system.command_channel import (
    SESSION_FOLDER,
    STREAMS,
    CommandAddress,
    CommandRequest,
    peer_user,
    receive_answers,
    send_request,
)

#: Groups of commands, and commands, that make sessions or run without a project.
_OWN_PROCESS = frozenset(("session", "demo", "init", "schema"))
#: Set where the program only completes a line, and where what it calls may ask for a passphrase:
#: that needs the terminal which controls the process, and a forked one has none.
_OWN_PROCESS_VARIABLES = ("_LAKEHOUSE_BACKFILL_COMPLETE", "LAKEHOUSE_BACKFILL_SIGNING_KEY")
#: The same of options; a browser may be one of the terminal.
_OWN_PROCESS_OPTIONS = ("-h", "--help", "--sign-with", "--open")
#: Files that only this process has open, as a shell's <(command) gives them.
_OPEN_FILES = ("/dev/fd/", "/proc/self/")
#: What a terminal sends to all processes of a command, and what is meant for the command alone.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGCONT)
_PASSED_SIGNALS = (
    *_GROUP_SIGNALS, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGTSTP,
)  # fmt: skip
#: Seconds that a server may take to answer: it forks one process, and waits for nobody.
_PATIENCE_S = 5.0


class NotServed(Exception):
    """The command server does not take the command; the text says why, nothing has begun."""


class EndUnknown(Exception):
    """The server was killed while the command worked; nobody knows how the command ended."""


@dataclass(frozen=True)
class ServedCommand:
    """How a command ended: its exit code, or the signal that killed it."""

    exit_code: int
    signal: int = 0

    def end_process(self) -> int:
        """Return the exit code; for a signal, end this process by the same one."""
        if not self.signal:
            return self.exit_code
        if self.signal not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(self.signal, signal.SIG_DFL)
        os.kill(os.getpid(), self.signal)
        return 128 + self.signal


def find_command_server(
    project: str, words: Sequence[str], environ: Mapping[str, str]
) -> CommandAddress | None:
    """Return where the project's command server is; None when this command needs none.

    `words` are the command and its arguments, without the options of the program.
    """
    address = CommandAddress(Path(project or ".", SESSION_FOLDER))
    if not address.is_there or any(map(environ.get, _OWN_PROCESS_VARIABLES)):
        return None
    names = [word for word in words if not word.startswith("-")]
    options = {word.partition("=")[0] for word in words}
    if not names or names[0] in _OWN_PROCESS or options & {*_OWN_PROCESS_OPTIONS}:
        return None
    return address


def run_in_server(address: CommandAddress) -> ServedCommand:
    """Let a process of the server run the command of this process; return how it ended.

    Raises NotServed before anything has begun, EndUnknown when the server was killed meanwhile.
    """
    if any(part in word for word in sys.argv for part in _OPEN_FILES):
        raise NotServed("the command reads a file that only its own process has open")
    with ExitStack() as stack:
        # A signal waits until it can be passed on.
        stack.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, _PASSED_SIGNALS)
        try:
            connection = stack.enter_context(_connect(address))
            answers = receive_answers(connection)
            first = next(answers, {"refused": "it has ended"})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotServed(_reason(error)) from error
        if "pid" not in first:
            raise NotServed(str(first.get("refused")))
        connection.settimeout(None)
        before = _pass_signals_to(int(first["pid"]))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_SIGNALS)
        try:
            last: dict[str, Any] = next(answers, {})
        except (OSError, ValueError):
            last = {}
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if "exit" not in last:
        raise EndUnknown
    return ServedCommand(int(last["exit"]), int(last["signal"]))


def _connect(address: CommandAddress) -> socket.socket:
    """Return a connection on which the request is sent; from then on signals wait."""
    for number in STREAMS:
        os.fstat(number)
    text = CommandRequest.of_this_process(address.read_token()).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_S)
        with address.entered() as name:
            connection.connect(name)
        _require_own(connection)
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_SIGNALS)
        send_request(connection, text, STREAMS)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_own(connection: socket.socket) -> None:
    if peer_user(connection) not in (None, os.geteuid()):
        raise PermissionError("its process is another user's")


def _reason(error: Exception) -> str:
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return "its command server was killed"
    return str(error)


def _pass_signals_to(process: int) -> dict[int, Any]:
    """Give the process the signals that this one gets and does not ignore.

    Returns what they did before.
    """

    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if number in _GROUP_SIGNALS:
                os.killpg(process, number)
            else:
                os.kill(process, number)

    def stop(_: int, __: FrameType | None) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    handlers = {number: stop if number == signal.SIGTSTP else pass_on for number in _PASSED_SIGNALS}
    return {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
