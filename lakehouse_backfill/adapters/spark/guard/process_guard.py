"""Stops outside effects of job code in one process, by Python's audit events.

Uses the standard library only: its text is sent to Python workers, which may lack this package.

An audit hook cannot be removed, so a process gets one; while `is_on` is false it returns at once.
Code counts as the job's by its origin: a file of the job on the stack, a thread that such code
started, or, in a worker, any function that the job sent there. What PySpark, Py4J and the import
system do themselves passes: the innermost frame decides. Native code raises no audit events;
`import_gate` and `native_writers` cover known clients.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

#: Begins the text of an error in a worker; the driver finds the attempts by it.
MARKER = "lakehouse-backfill side effects: "
#: Stands for the arguments of an attempt, where they may hold a restricted value.
HIDDEN_ARGUMENTS = "whose arguments may hold a restricted value, and are not shown"
#: Audit events that are looked at, by the kind of sink that they reach.
EVENTS: Mapping[str, tuple[str, ...]] = {
    "network": (
        "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
        "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo", "urllib.Request",
        "http.client.connect", "ftplib.connect", "smtplib.connect", "imaplib.open",
        "poplib.connect", "webbrowser.open", "syslog.openlog", "syslog.syslog",
        "socket.sethostname",
    ),
    "process": (
        "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
        "os.forkpty", "pty.spawn", "os.kill", "os.killpg", "signal.pthread_kill",
        "cpython.PyInterpreterState_New", "resource.setrlimit", "resource.prlimit",
    ),
    "file": (
        "open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link",
        "os.symlink", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr",
        "os.chdir", "shutil.rmtree",
    ),
    "database": ("sqlite3.connect",),
    "native code": ("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function"),
    "environment": ("os.putenv", "os.unsetenv"),
    "after the run": ("sys.addaudithook", "sys.settrace", "sys.setprofile"),
    "toolkit": (
        "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames",
        "sys._current_exceptions",
    ),
}  # fmt: skip
#: Events that count where a line of a job itself makes the call; libraries may.
_ONLY_DIRECT = frozenset({*EVENTS["after the run"], *EVENTS["toolkit"]})
#: Events that tell of code that is loaded.
_LOADING = frozenset({"exec", "import"})
_SINKS = {event: sink for sink, events in EVENTS.items() for event in events}
#: What a library may do while it is imported: some try whether the machine has IPv6.
_ALLOWED_ON_IMPORT = frozenset({*EVENTS["native code"], *EVENTS["environment"], "socket.bind"})
#: A path is refused in any case: the link could lead out of the scratch folder later.
_ALWAYS_OUTSIDE = frozenset({"os.link", "os.symlink", "os.chdir"})
#: Standard output and errors.
_PRINTED = (1, 2)
#: What begins the name of an open file that is none.
_NO_FILES = ("pipe:", "/memfd:", os.devnull)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Files whose credentials a job must not see: folders, and ends of paths.
_SECRET_FILES = (
    "/environ", "/catalog/profiles.yaml", "/.aws/", "/.pyiceberg.yaml", "/.ssh/", "/.netrc",
    "/.config/gcloud/", "/.azure/", "/.kube/",
)  # fmt: skip
_LIBRARY = os.__file__.removesuffix("os.py")
#: Modules of the standard library that act for their caller, and text that is executed.
_TRANSPARENT = frozenset(
    f"{_LIBRARY}{name}.py"
    for name in ("socket", "ssl", "tempfile", "threading", "os", "_collections_abc")
) | {"<frozen os>", "<frozen _collections_abc>", "<string>", __file__}
_IMPORT_SYSTEM = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
#: Methods of loaders that read or write a file for their caller.
_FILE_METHODS = ("get_data", "set_data", "_cache_bytecode", "_write_atomic")
#: Files of PySpark that call functions of the job, or write files for it: an effect right below
#: them is the job's.
_CALLERS = (
    "/worker.py", "/util.py", "/sql/worker/", "/sql/udf.py", "/sql/udtf.py", "/core/rdd.py",
    "/serializers.py", "/cloudpickle/", "/profiler.py", "/ml/", "/mllib/", "/pandas/",
)  # fmt: skip
#: Functions of PySpark's broadcast variables that unpickle what a job has made.
_LOADS_BROADCAST = ("load", "load_from_path", "value")
_CONNECTING = ("local_connect_and_auth", "_create_local_socket", "_load_from_socket")

Place = tuple[str, int]


class SideEffectStopped(PermissionError):
    """An outside effect of job code was stopped in a worker; nothing was sent or written."""


class ProcessGuard:
    """What this process knows of job code: where it lies, and what it tried."""

    def __init__(self) -> None:
        self.is_on = False
        #: Whether arguments, which may hold a restricted value, are left out of attempts.
        self.hides_arguments: Callable[[], bool] = lambda: False
        #: Folders of jobs.
        self.folders: tuple[str, ...] = ()
        #: Folders inside them that hold other code.
        self.other_folders: tuple[str, ...] = ()
        self.scratch: tuple[str, ...] = ()
        self.clients: Mapping[str, str] = {}
        self.client_roots: frozenset[str] = frozenset()
        #: Modules of projects, which may have the name of a client.
        self.own_modules: frozenset[str] = frozenset()
        self.error: Callable[[dict[str, Any]], Exception] = _worker_error
        #: Refuses clients by name and members, and by the file that is loaded: `import_gate`.
        self.check_import: Callable[[str, tuple[str, ...], FrameType | None], None]
        self.check_file: Callable[[str, FrameType | None], None] = lambda _file, _frame: None
        #: Returns the file whose code an event is about to run: `import_gate`.
        self.loaded_file: Callable[[str, tuple[Any, ...]], str] = lambda _event, _arguments: ""
        #: Called after an import, with the first part of the module's name.
        self.after_import: Callable[[str], None] = lambda _: None
        self.attempts: list[dict[str, Any]] = []
        #: In a worker: where the job made the function that runs now.
        self.running: Place | None = None
        self._thread = threading.local()
        #: Which files are a job's, as found for these folders.
        self._known: dict[str, bool] = {}
        self._known_for: tuple[str, ...] = ()

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Let this thread act for the toolkit, below code of a job."""
        before = self.is_trusted()
        self._thread.is_trusted = True
        try:
            yield
        finally:
            self._thread.is_trusted = before

    def is_trusted(self) -> bool:
        """Return whether this thread acts for the toolkit."""
        return getattr(self._thread, "is_trusted", False)

    @contextmanager
    def acting_for(self, place: Place) -> Iterator[None]:
        """Count what this thread does in the block as the job's; it unpickles what the job made."""
        before = getattr(self._thread, "place", None)
        self._thread.place = place
        try:
            yield
        finally:
            self._thread.place = before

    def thread_origin(self) -> Place | None:
        """Return the line of the job for which this thread works when the stack has none."""
        return getattr(self._thread, "place", None) or self.running

    def check_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Stop what an audit event announces, if job code does it."""
        if self.is_trusted():
            return
        sink = _SINKS[event]
        # The stack first: to resolve a path costs more, and most files are the toolkit's own.
        # A thread may run a function of native code: then there is no frame.
        frame = sys._getframe(1).f_back
        is_direct = event in _ONLY_DIRECT
        found = self.direct_caller(frame) if is_direct else self._origin(frame, event)
        if found is None:
            return
        with self.trusted():
            what = _describe(event, arguments, self.scratch)
        if what:
            shown = f"{event}, {HIDDEN_ARGUMENTS}" if self.hides_arguments() else what
            self.stop(sink, shown, found)

    def stop(self, sink: str, what: str, place: Place) -> None:
        """Record the attempt and raise the error of this process."""
        raise self.error(self._record(sink, what, place))

    def note(self, sink: str, what: str, frame: FrameType | None) -> None:
        """Record an attempt that other code refuses, if a line of a job is its origin."""
        place = self.maker(frame) if self.is_on else None
        if place is not None:
            self._record(sink, what, place)

    def _record(self, sink: str, what: str, place: Place) -> dict[str, Any]:
        folder, file = self._inside(place[0])
        attempt = {"sink": sink, "what": what, "file": file, "line": place[1]}
        self.attempts.append({**attempt, "folder": folder})
        return attempt

    def origin(self, frame: FrameType | None) -> Place | None:
        """Return the line of the job that is the origin of a call; None: it is not the job's."""
        if self.is_trusted():
            return None
        return self._origin(frame, "")

    def maker(self, frame: FrameType | None) -> Place | None:
        """Return the line of the job on the stack, also below PySpark's own code."""
        return None if self.is_trusted() else self._on_stack(frame, "")

    def is_scratch(self, path: Any) -> bool:
        """Return whether job code may write to a path."""
        return is_scratch(path, self.scratch)

    def holds_credentials(self, path: Any) -> bool:
        """Return whether a file is one whose credentials a job must not see."""
        return holds_credentials(path)

    def may_write_to(self, descriptor: int) -> bool:
        """Return whether job code may write to an open file."""
        return may_write_to(descriptor, self.scratch)

    def is_job_file(self, file: str) -> bool:
        """Return whether code of this file is a job's."""
        if self._known_for is not self.folders:
            self._known, self._known_for = {}, self.folders
        found = self._known.get(file)
        if found is None:
            found = file.startswith(self.folders) and not file.startswith(self.other_folders)
            self._known[file] = found
        return found

    def _origin(self, frame: FrameType | None, event: str) -> Place | None:
        frame = _caller(frame)
        # A project may lie in a folder that is called `pyspark`.
        if frame is not None and not self.is_job_file(frame.f_code.co_filename):
            code = frame.f_code
            imports = code.co_filename == _IMPORT_SYSTEM[1] and _imports(frame)
            if imports or _is_engine(code.co_filename, code.co_name):
                return None
        return self._on_stack(frame, event)

    def _on_stack(self, frame: FrameType | None, event: str) -> Place | None:
        known = self._known
        while frame is not None:
            file = frame.f_code.co_filename
            is_jobs = known.get(file)
            if self.is_job_file(file) if is_jobs is None else is_jobs:
                return file, frame.f_lineno
            if file in _IMPORT_SYSTEM and event in _ALLOWED_ON_IMPORT:
                return None
            frame = frame.f_back
        return self.thread_origin()

    def direct_caller(self, frame: FrameType | None) -> Place | None:
        """Return the line of job code that made the call itself, also through exec."""
        frame = _caller(frame)
        if frame is None or not self.is_job_file(frame.f_code.co_filename):
            return None
        return frame.f_code.co_filename, frame.f_lineno

    def _inside(self, file: str) -> tuple[str, str]:
        """Return the folder of the job, and the file's path inside it."""
        folder = max((one for one in self.folders if file.startswith(one)), key=len, default="")
        return folder, file[len(folder) :]


def _caller(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_filename in _TRANSPARENT:
        frame = frame.f_back
    return frame


def _imports(frame: FrameType) -> bool:
    """Return whether a frame of the import system imports; else its caller uses it for files."""
    while frame.f_back is not None and frame.f_back.f_code.co_filename in _IMPORT_SYSTEM:
        frame = frame.f_back
    return frame.f_code.co_name not in _FILE_METHODS


@lru_cache(4096)
def _is_engine(path: str, function: str) -> bool:
    """Return whether a function is Py4J's, or PySpark's own communication."""
    file = path.replace(os.sep, "/")
    if "/py4j/" in file:
        return True
    _, found, inside = file.rpartition("/pyspark/")
    if not found:
        return False
    if function in _CONNECTING or inside == "daemon.py":
        return True
    if inside == "core/broadcast.py":
        return function not in _LOADS_BROADCAST
    return not f"/{inside}".startswith(_CALLERS)


def _describe(event: str, arguments: tuple[Any, ...], scratch: tuple[str, ...]) -> str:
    """Return what is tried, without contents or passwords; empty when it is harmless."""
    if event == "open":
        return _describe_open(arguments, scratch)
    sink = _SINKS[event]
    if sink == "file":
        paths = _paths(event, arguments)
        if event not in _ALWAYS_OUTSIDE and all(is_scratch(path, scratch) for path in paths):
            return ""
        return f"{event}({', '.join(repr(_text(path)) for path in paths)})"
    if event == "ctypes.dlopen" and arguments[0] is None:
        return ""
    if event == "urllib.Request":
        return f"a request to {_host(str(arguments[0]))}"
    if sink == "network" and event.startswith("socket."):
        address = arguments[-1] if event in _WITH_SOCKET else arguments[:2]
        shown = address[:2] if isinstance(address, tuple) else address
        return f"{event} {shown!r}"
    if event == "subprocess.Popen":
        return f"subprocess.Popen of {_text(arguments[0])}"
    # Commands may hold passwords: the program alone is named.
    text = arguments[0] if arguments and isinstance(arguments[0], (str, bytes)) else ""
    is_named = sink not in ("environment", "native code")
    return f"{event} {_text(text).split(' ')[0][:80] if is_named else ''}".rstrip()


def _paths(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the paths of an event; a relative one may begin at an open folder, its last values."""
    count = 2 if event == "os.rename" else 1
    folders = arguments[-count:] if event in _WITH_FOLDER else (None,) * count
    return tuple(map(_at_folder, arguments[:count], folders))


def _at_folder(path: Any, folder: Any) -> Any:
    if isinstance(path, int):
        return _path_of(path) or path
    if not isinstance(folder, int) or folder < 0 or not isinstance(path, (str, bytes)):
        return path
    base = _path_of(folder)
    return path if base is None else os.path.join(base, _text(path))  # noqa: PTH118


def _path_of(descriptor: int) -> str | None:
    """Return the path of an open file; None where the system does not say."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return None


#: The last arguments are descriptors of folders, or -1.
_WITH_FOLDER = ("os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.chmod", "os.utime")
_WITH_SOCKET = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg")


def _describe_open(arguments: tuple[Any, ...], scratch: tuple[str, ...]) -> str:
    path, mode, flags = (*arguments, None, 0)[:3]
    if isinstance(mode, str):
        is_write = any(letter in mode for letter in "wax+")
    else:
        is_write = bool((flags or 0) & _WRITE_FLAGS)
    if isinstance(path, int):
        is_harmless = not is_write or may_write_to(path, scratch)
        return "" if is_harmless else f"to write to the open file {path}"
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    text = _text(path)
    if is_write:
        if text == os.devnull or is_scratch(path, scratch):
            return ""
        return f"to open {text!r} for writing"
    return f"to read {text!r}, which may hold credentials" if holds_credentials(path) else ""


def holds_credentials(path: Any) -> bool:
    """Return whether a file is one of those that hold credentials of the user or the process."""
    # Relative names, and links, may mean them too.
    full = os.path.realpath(_text(path)).replace(os.sep, "/")
    if any(part in full if part.endswith("/") else full.endswith(part) for part in _SECRET_FILES):
        return full.startswith("/proc/") or not full.endswith("/environ")
    return False


def may_write_to(descriptor: int, scratch: tuple[str, ...]) -> bool:
    """Return whether a job may write to an open file: of scratch, a pipe, or where it prints."""
    path = None if descriptor in _PRINTED else _path_of(descriptor)
    return path is None or path.startswith(_NO_FILES) or is_scratch(path, scratch)


def is_scratch(path: Any, scratch: tuple[str, ...]) -> bool:
    """Return whether a path lies in a scratch folder, links resolved."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    full = os.path.realpath(_text(path))
    return any(full == folder or full.startswith(folder + os.sep) for folder in scratch)


def _text(path: Any) -> str:
    try:
        return os.fsdecode(path)
    except (TypeError, ValueError):
        return type(path).__name__


def _host(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{host}"


def _worker_error(attempt: dict[str, Any]) -> Exception:
    return SideEffectStopped(describe_attempts([attempt]))


def describe_attempts(attempts: list[dict[str, Any]]) -> str:
    """Return the text by which the driver recognises attempts in the error of a worker."""
    # Imported here: the text is made once, in a worker that fails.
    import json

    return MARKER + json.dumps(attempts, sort_keys=True)


GUARD = ProcessGuard()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not GUARD.is_on:
        return
    if event in _SINKS:
        GUARD.check_event(event, arguments)
    elif event in _LOADING and (file := GUARD.loaded_file(event, arguments)):
        GUARD.check_file(file, sys._getframe(1))


def install() -> None:
    """Install the hook in this process, once; it acts while the guard is on."""
    sys.addaudithook(_audit)
