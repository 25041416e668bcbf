"""Refuses clients that job code imports, by whatever function of Python's import system.

Uses the standard library only: its text is sent to Python workers.

The first frame that does not import for its caller decides: a library imports what it needs, while
`importlib`, `runpy`, `pickle`, a thread pool or executed text import what the job names. A module
whose file is loaded past the import functions is seen by the audit events `exec` and `import`.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

_LIBRARY = os.__file__.removesuffix("os.py").replace(os.sep, "/")
_PACKAGE_FOLDERS = ("/site-packages/", "/dist-packages/")
#: Files of the standard library that import what their caller names. All others import clients
#: that belong to the standard library for themselves.
_IMPORTERS = (
    "importlib/", "runpy.py", "pkgutil.py", "pickle.py", "copyreg.py", "functools.py",
    "operator.py", "threading.py", "concurrent/futures/thread.py", "concurrent/futures/_base.py",
    "contextlib.py", "contextvars.py", "types.py", "copy.py", "code.py", "codeop.py", "pydoc.py",
    "timeit.py", "cProfile.py", "profile.py", "trace.py", "bdb.py", "unittest/", "doctest.py",
    "logging/config.py", "weakref.py", "sched.py", "inspect.py", "typing.py",
)  # fmt: skip
#: Clients that hold tables and files of their own: no library needs them for a job's rows.
_REFUSED_BELOW = frozenset({"duckdb", "_duckdb", "pyiceberg", "pyiceberg_core"})
#: Functions of loaders that run a module.
_NATIVE_LOADS = frozenset({"create_module", "exec_module"})
#: So many imports are remembered: names come from job code, too.
_MOST_KNOWN = 2_000
#: Files that unpickle what a job has made, or run it in a thread.
_UNPICKLERS = (
    "/pyspark/cloudpickle/", "/pyspark/serializers.py", "/pyspark/core/broadcast.py",
    "/cloudpickle/", "/spark/guard/unaudited_calls.py",
)  # fmt: skip
#: Files that call functions of a job, or load them.
_CALLERS = ("/pyspark/worker.py", "/pyspark/util.py", "/pyspark/sql/worker/", "/guarded_command.py")


class ImportGate:
    """Judges imports by the code that asked for them."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        #: By name and members of an import: the clients that it names, in this table of clients.
        self._found: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}
        self._found_for: Mapping[str, str] = {}

    def check(self, name: str, members: tuple[str, ...], frame: FrameType | None) -> None:
        """Refuse a client, or a member that is one, when job code asked for it."""
        root = name.partition(".")[0]
        if root in self._guard.own_modules:
            return
        # Who asked is the same for all that one import names.
        for wanted, sink in self._clients_named(name, members)[:1]:
            self._stop(sink, wanted, frame)

    def _clients_named(self, name: str, members: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Return the clients that an import names, with their sinks."""
        clients = self._guard.clients
        if clients is not self._found_for:
            self._found, self._found_for = {}, clients
        names = (name, *members)
        # A text of another class may pass for one that is known.
        is_plain = all(type(each) is str for each in names)
        found = self._found.get(names) if is_plain else None
        if found is None:
            wanted = (name, *(f"{name}.{member}" for member in members))
            named = ((each, client_in(each, clients)) for each in wanted)
            found = tuple((each, sink) for each, sink in named if sink)
            if is_plain and len(self._found) < _MOST_KNOWN:
                self._found[names] = found
        return found

    def check_file(self, file: str, frame: FrameType | None) -> None:
        """Refuse a client whose file is loaded past the functions that import."""
        name = module_of(file)
        sink = client_in(name, self._guard.clients) if name else None
        if sink:
            self._stop(sink, name, frame, is_file=True)

    def _stop(
        self, sink: str, name: str, frame: FrameType | None, *, is_file: bool = False
    ) -> None:
        with self._guard.trusted():
            place = self._importer(frame, name.partition(".")[0], is_file=is_file)
        # A thread that the toolkit has trusted stays trusted.
        if place is not None and not self._guard.is_trusted():
            self._guard.stop(sink, f"to import {name}", place)

    def _importer(
        self, frame: FrameType | None, root: str, *, is_file: bool
    ) -> tuple[str, int] | None:
        """Return the line of the job that asked for a module; None: other code did."""
        is_standard = root in sys.stdlib_module_names
        is_refused_below = root in _REFUSED_BELOW
        guard = self._guard
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if guard.is_job_file(file):
                return file, frame.f_lineno
            # Most frames are of other functions: asked here, it costs no call.
            if code.co_name in _NATIVE_LOADS and not is_file and _loads_native_code(frame):
                return None
            if not is_refused_below and not _imports_for_its_caller(file, is_standard=is_standard):
                text = file.replace(os.sep, "/")
                calls_jobs = any(part in text for part in _CALLERS)
                return guard.thread_origin() if calls_jobs else None
            frame = frame.f_back
        found: tuple[str, int] | None = self._guard.thread_origin()
        return found


def client_in(name: str, clients: Mapping[str, str]) -> str | None:
    """Return the sink of the client that a dotted name leads to."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((clients[prefix] for prefix in prefixes if prefix in clients), None)


def module_of(file: str) -> str:
    """Return the dotted name of an installed module's file; empty for other files."""
    text = file.replace(os.sep, "/")
    inside = ""
    for mark in (*_PACKAGE_FOLDERS, "/lib-dynload/", _LIBRARY):
        _, found, inside = text.rpartition(mark)
        if found:
            break
    else:
        return ""
    parts = inside.split("/")
    parts[-1] = parts[-1].partition(".")[0]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def install(guard: Any) -> None:
    """Gate the functions through which all imports of Python pass, once for the process."""
    gate = ImportGate(guard)
    guard.check_import = gate.check
    guard.check_file = gate.check_file
    import_: Any = builtins.__import__
    bootstrap: Any = importlib._bootstrap
    find = bootstrap._gcd_import

    def gated_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:  # fmt: skip
        name = _plain(name)
        # A thread of native code that imports has no caller.
        full = name if level == 0 else _absolute(name, globals, level)
        root = full.partition(".")[0]
        if guard.is_on and root in guard.client_roots:
            gate.check(full, tuple(fromlist or ()), sys._getframe().f_back)
        module = import_(name, globals, locals, fromlist, level)
        if level == 0:
            guard.after_import(root)
        return module

    def gated_find(name: str, package: Any = None, level: int = 0) -> Any:
        name = _plain(name)
        full = name if level == 0 else _absolute(name, {"__package__": package}, level)
        root = full.partition(".")[0]
        if guard.is_on and root in guard.client_roots:
            gate.check(full, (), sys._getframe().f_back)
        module = find(name, package, level)
        guard.after_import(root)
        return module

    # Pickled by these names: a function of a job may hold them.
    gated_import.__module__ = "builtins"
    gated_import.__name__ = gated_import.__qualname__ = "__import__"
    gated_find.__module__ = bootstrap.__name__
    gated_find.__name__ = gated_find.__qualname__ = "_gcd_import"
    builtins.__import__ = gated_import
    # `importlib.import_module` and `importlib.__import__` call it.
    bootstrap._gcd_import = gated_find


def _plain(name: str) -> str:
    """Return a text whose class is Python's own: of another class it may pass for another text."""
    return str.__str__(name) if type(name) is not str and isinstance(name, str) else name


def _absolute(name: str, globals: Any, level: int) -> str:
    package = (globals or {}).get("__package__") or (globals or {}).get("__name__") or ""
    if not isinstance(package, str):
        return name
    base = package.rsplit(".", level - 1)[0] if level > 1 else package
    return f"{base}.{name}" if name else base


@lru_cache(4096)
def _imports_for_its_caller(path: str, *, is_standard: bool) -> bool:
    """Return whether code of a file imports what its caller names."""
    file = path.replace(os.sep, "/")
    # Executed text, and what Python has frozen, has no path.
    if not file.startswith("/") and ":" not in file[:3]:
        return True
    if any(part in file for part in _UNPICKLERS):
        return True
    if not file.startswith(_LIBRARY) or any(part in file for part in _PACKAGE_FOLDERS):
        return False
    # The standard library needs no other module: it imports those for its caller.
    return not is_standard or file.removeprefix(_LIBRARY).startswith(_IMPORTERS)


def _loads_native_code(frame: FrameType) -> bool:
    """Return whether a frame of such a function runs native code, which imports what it needs."""
    return isinstance(frame.f_locals.get("self"), importlib.machinery.ExtensionFileLoader)


def loaded_file(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the file whose code an audit event is about to run; empty for others."""
    if event == "exec":
        code = arguments[0] if arguments else None
        is_module = isinstance(code, CodeType) and code.co_name == "<module>"
        return code.co_filename if is_module else ""  # type: ignore[union-attr]
    file = arguments[1] if len(arguments) > 1 else None
    return file if isinstance(file, str) else ""
