"""What the program and the command server of a warm session tell each other.

A command server has loaded the libraries, and forks a process for each command that is typed. The
program connects to its socket, hands over its terminal and all that a process takes over from the
one that starts it, and waits: it passes on the signals that it gets, and ends as the forked process
ends. What a fork cannot take over must be the same for both. Nothing begins before the program says
that it waits.

Loads nothing but small parts of the standard library: each command begins with it.
"""

from __future__ import annotations

import hmac
import json
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lakehouse_backfill.command_lines import VOLATILE_VARIABLES

#: The folder of the files, in a project.
SESSION_FOLDER = ".lakehouse-backfill/session"
_ADDRESS, SOCKET = "commands.json", "commands.socket"
#: Variables that a process may get others of than the server has: nothing that is loaded reads
#: them. They are set in the process of the command, as all are.
_OWN_VARIABLES = VOLATILE_VARIABLES | {"LAKEHOUSE_BACKFILL_DEBUG"}
#: Files of settings that PyIceberg reads when it is loaded.
SETTINGS_FILE = ".pyiceberg.yaml"
#: stdin, stdout and stderr.
STREAMS = (0, 1, 2)
#: Open files of a request: the streams, and a pipe by which the program says that it waits.
_FILES = len(STREAMS) + 1
#: Longest request, in bytes: what Linux allows for arguments and environment is less.
_MAX_BYTES = 16 * 1024 * 1024
_LENGTH = struct.Struct("!I")
_AWAITED = b"w"
#: Differences that are named; the others are counted.
_NAMED = 3


@dataclass(frozen=True)
class CommandRequest:
    """A command as it was typed, and what its process takes over; `token` shows who asks."""

    token: str
    arguments: tuple[str, ...]
    folder: str
    search_path: tuple[str, ...]
    environ: dict[str, str]
    ignored_signals: tuple[int, ...]
    facts: dict[str, str]

    @staticmethod
    def of_this_process(token: str) -> CommandRequest:
        """Describe this process."""
        return CommandRequest(
            token=token,
            arguments=tuple(sys.argv),
            folder=str(Path.cwd()),
            search_path=tuple(sys.path),
            environ=dict(os.environ),
            ignored_signals=ignored_signals(),
            facts=process_facts(),
        )

    def encode(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(asdict(self)).encode("ascii")

    @staticmethod
    def decode(text: bytes) -> CommandRequest:
        """Read it; raises ValueError, TypeError for what is none."""
        fields = json.loads(text)
        for name in ("arguments", "search_path", "ignored_signals"):
            fields[name] = tuple(fields[name])
        return CommandRequest(**fields)


def ignored_signals() -> tuple[int, ...]:
    """Return the signals that this process ignores, as `nohup` makes it; not that of pipes."""
    chosen = signal.valid_signals() - {signal.SIGPIPE, getattr(signal, "SIGXFSZ", 0)}
    ignored = (number for number in chosen if signal.getsignal(number) is signal.SIG_IGN)
    return tuple(sorted(map(int, ignored)))


def process_facts() -> dict[str, str]:
    """Return by name what a forked process cannot take over from the program; values are secret."""
    facts = {
        "the toolkit's folder": str(Path(__file__).parents[2]),
        "the Python": f"{sys.executable} {sys.version}",
        "the options of Python": f"{sys.flags} {sys.warnoptions} {sys._xoptions}",
        "the search path of modules": os.pathsep.join(sys.path[1:]),
        "the working folder": str(Path.cwd()),
        "the mask of new files": _umask(),
        "the user": f"{os.getresuid()} {os.getresgid()} {sorted(os.getgroups())}"
        if sys.platform == "linux"
        else f"{os.geteuid()} {os.getegid()} {sorted(os.getgroups())}",
        "the priority": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "the blocked signals": str(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))),
    }
    facts |= {
        f"the limit {name}": str(resource.getrlimit(getattr(resource, name)))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }
    facts |= _linux_facts()
    return facts | {
        f"the variable {name}": value
        for name, value in os.environ.items()
        if name not in _OWN_VARIABLES
    }


def _linux_facts() -> dict[str, str]:
    """Return what Linux keeps by process: processors, control group, namespaces."""
    if sys.platform != "linux":
        return {}
    facts = {"the processors": str(sorted(os.sched_getaffinity(0)))}
    with suppress(OSError):
        facts["the control group"] = Path("/proc/self/cgroup").read_text(encoding="utf-8")
        spaces = sorted(Path("/proc/self/ns").iterdir())
        facts["the namespaces"] = " ".join(str(space.readlink()) for space in spaces)
    return facts


def _umask() -> str:
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:o}"


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Name what differs, without values; empty when all is the same."""
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def is_private(found: os.stat_result, *, is_folder: bool) -> bool:
    """Return whether a file or folder is this user's, and closed to all others."""
    is_kind = stat.S_ISDIR if is_folder else stat.S_ISREG
    return (
        is_kind(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & 0o077
    )  # fmt: skip


@dataclass(frozen=True)
class CommandAddress:
    """Where a command server is found: its socket and the token, in a folder of the user's."""

    folder: Path

    @property
    def is_there(self) -> bool:
        """Whether there is a server, or was one that was killed."""
        return (self.folder / _ADDRESS).exists()

    def write(self, token: str) -> None:
        """Let programs find the server, which listens already."""
        new = self.folder / f"{_ADDRESS}.new"
        with suppress(FileNotFoundError):
            new.unlink()
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            json.dump({"token": token}, file)
        new.replace(self.folder / _ADDRESS)

    def remove(self) -> None:
        """Let no program find the server any more."""
        for name in (_ADDRESS, SOCKET):
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()

    def touch(self) -> None:
        """Note that a command begins or ends."""
        with suppress(OSError):
            os.utime(self.folder / _ADDRESS)

    def read_token(self) -> str:
        """Return the token; raises OSError or ValueError when it is not to be trusted."""
        if not is_private(self.folder.lstat(), is_folder=True):
            raise PermissionError(f"{self.folder} is not a folder of yours alone")
        path = self.folder / _ADDRESS
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, encoding="ascii") as file:
            if not is_private(os.fstat(handle), is_folder=False):
                raise PermissionError(f"{path} is not a file of yours alone")
            return str(json.load(file)["token"])

    @contextmanager
    def entered(self) -> Iterator[str]:
        """Give the socket's name while the folder is the working one.

        The path of a socket may have some 100 letters, and a project's may have more.
        """
        before = os.open(".", os.O_RDONLY)
        try:
            os.chdir(self.folder)
            yield SOCKET
        finally:
            os.fchdir(before)
            os.close(before)


def peer_user(connection: socket.socket) -> int | None:
    """Return the user of the process at the other end; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1])


def is_same_token(ours: str, theirs: str) -> bool:
    """Compare two tokens in a time that tells nothing."""
    return hmac.compare_digest(ours.encode(), theirs.encode())


def send_request(connection: socket.socket, text: bytes, streams: Sequence[int]) -> None:
    """Send a request, and open files with it."""
    socket.send_fds(connection, [_LENGTH.pack(len(text))], list(streams))
    connection.sendall(text)


def receive_request(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """Return a request and its open files, which are the caller's to close; raises OSError.

    They are the three streams, and the pipe for `is_awaited`.
    """
    head, files, _, _ = socket.recv_fds(connection, _LENGTH.size, _FILES)
    for file in files:
        os.set_inheritable(file, False)  # noqa: FBT003 (the function of `os` has no keyword)
    try:
        text = _receive_text(connection, head, len(files))
    except BaseException:
        for file in files:
            os.close(file)
        raise
    return text, tuple(files)


def _receive_text(connection: socket.socket, head: bytes, files: int) -> bytes:
    size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _MAX_BYTES + 1
    if size > _MAX_BYTES or files != _FILES:
        raise ConnectionError("not a request")
    text = bytearray()
    while len(text) < size:
        part = connection.recv(min(size - len(text), 65536))
        if not part:
            raise ConnectionError("cut off")
        text += part
    return bytes(text)


def is_awaited(pipe: int) -> bool:
    """Wait until the program says that it waits for the command; False when it has given up.

    Until then nothing of the command has begun.
    """
    return os.read(pipe, 1) == _AWAITED


def send_answer(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    """Send one line."""
    connection.sendall(f"{json.dumps(answer)}\n".encode("ascii"))


def receive_answers(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Give the lines of a server until it, and the process of the command, have ended."""
    with connection.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)


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
            for number in STREAMS:
                os.fstat(number)
            # Nothing begins before this is written to; closed, nothing will.
            reading, writing = os.pipe()
            pipe = stack.enter_context(os.fdopen(writing, "wb", buffering=0))
            connection = stack.enter_context(_connect(address, reading))
            answers = receive_answers(connection)
            first = next(answers, {"refused": "it has ended"})
            if "pid" not in first:
                raise NotServed(str(first.get("refused")))
            connection.settimeout(None)
            before = _pass_signals_to(int(first["pid"]))
            pipe.write(_AWAITED)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotServed(_reason(error)) from error
        woken = stack.enter_context(_woken_by_signals())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_SIGNALS)
        try:
            _wait_for_answer(connection, woken)
            last: dict[str, Any] = next(answers, {})
        except (OSError, ValueError):
            last = {}
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if "exit" not in last:
        raise EndUnknown
    return ServedCommand(int(last["exit"]), int(last["signal"]))


@contextmanager
def _woken_by_signals() -> Iterator[socket.socket]:
    """Give a connection on which something arrives with each signal.

    A signal that comes just before a system call that waits is seen by Python only after the call.
    """
    ours, pythons = socket.socketpair()
    with ours, pythons:
        pythons.setblocking(False)  # noqa: FBT003 (the method has no keyword)
        before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)


def _wait_for_answer(connection: socket.socket, woken: socket.socket) -> None:
    """Return when there is an answer to read; until then, each signal is passed on as it comes."""
    with selectors.DefaultSelector() as selector:
        for waited_for in (connection, woken):
            selector.register(waited_for, selectors.EVENT_READ)
        while not any(key.fileobj is connection for key, _ in selector.select()):
            woken.recv(4096)


def _connect(address: CommandAddress, pipe: int) -> socket.socket:
    """Return a connection on which the request is sent; from then on signals wait.

    The pipe's end goes with it, and is closed here.
    """
    with os.fdopen(pipe, "rb", buffering=0):
        return _send(address, (*STREAMS, pipe))


def _send(address: CommandAddress, files: Sequence[int]) -> socket.socket:
    text = CommandRequest.of_this_process(address.read_token()).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_S)
        with address.entered() as name:
            connection.connect(name)
        _require_own(connection)
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_SIGNALS)
        send_request(connection, text, files)
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
