"""Stops job code that writes through pandas, PyArrow, PyIceberg: native code has no audit events.

Uses the standard library only: its text is sent to Python workers. Patched members look at their
caller; for all but job code they do what they did before. They are those through which public and
inner functions pass, so it makes no difference by which one a job, or a library that it calls,
begins.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

_Check = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], bool]

#: By module: members that write to a path, with the position of the path.
PATH_WRITERS: Mapping[str, Mapping[str, int]] = {
    "pandas": {
        "DataFrame.to_parquet": 1, "DataFrame.to_orc": 1, "DataFrame.to_feather": 1,
    },
    "pyarrow.lib": {"create_memory_map": 0, "output_stream": 0},
    "pyarrow.ipc": {
        "new_file": 0, "new_stream": 0, "RecordBatchFileWriter.__init__": 1,
        "RecordBatchStreamWriter.__init__": 1,
    },
    "pyarrow.parquet.core": {"ParquetWriter.__init__": 1, "write_metadata": 1},
    "pyarrow.dataset": {"write_dataset": 1},
    "pyarrow.orc": {"ORCWriter.__init__": 1},
    "pyarrow.feather": {"write_feather": 1},
    "pyarrow.csv": {"write_csv": 1},
    "scipy.io._fast_matrix_market": {"_get_write_cursor": 0},
}  # fmt: skip
#: By module: members that may open an address natively, with its position.
ADDRESS_READERS: Mapping[str, Mapping[str, int]] = {
    "pandas": {"read_parquet": 0, "read_orc": 0, "read_feather": 0},
    "pandas.io.common": {"_get_filepath_or_buffer": 0},
    "pandas.io.parquet": {"_get_path_or_handle": 0},
    "pyarrow.fs": {"_resolve_filesystem_and_path": 0},
    "pyarrow.parquet.core": {"_resolve_filesystem_and_path": 0},
}
#: By module: members that open a file natively to read it, with the position of its path.
FILE_READERS: Mapping[str, Mapping[str, int]] = {
    "pyarrow.lib": {"input_stream": 0},
    "pyarrow.json": {"read_json": 0, "open_json": 0},
    "pandas.io.common": {"_get_filepath_or_buffer": 0},
    "pandas.io.parquet": {"_get_path_or_handle": 0},
}
#: By module: members of PyIceberg that write or delete a file, before anything is committed.
TABLE_FILES: Mapping[str, tuple[str, ...]] = {
    "pyiceberg.io.pyarrow": ("PyArrowFile.create", "PyArrowFileIO.delete"),
    "pyiceberg.io.fsspec": ("FsspecOutputFile.create", "FsspecFileIO.delete"),
}
#: By module: attributes of PyIceberg's objects that hold a file system of native code.
FILE_SYSTEMS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "pyiceberg.io.pyarrow": (("PyArrowFile", "_filesystem"), ("PyArrowFileIO", "fs_by_scheme")),
}
#: By module: members that reach outside in any case.
CLIENT_CALLS: Mapping[str, tuple[str, ...]] = {
    "pandas": (
        "DataFrame.to_sql", "Series.to_sql", "DataFrame.to_hdf", "Series.to_hdf",
        "DataFrame.to_iceberg", "DataFrame.to_clipboard", "Series.to_clipboard", "read_sql",
        "read_sql_query", "read_sql_table", "read_iceberg", "read_hdf",
    ),
    "pandas.io.sql": (
        "pandasSQL_builder", "SQLDatabase.__init__", "ADBCDatabase.__init__",
        "SQLiteDatabase.__init__",
    ),
    "pandas.io.pytables": ("HDFStore.__init__",),
    "pandas.io.iceberg": ("read_iceberg", "to_iceberg"),
}  # fmt: skip
#: By module: members that connect in native code, also for Spark Connect's client.
CONNECTING: Mapping[str, tuple[str, ...]] = {
    "grpc._channel": ("Channel.__init__",), "grpc.aio._channel": ("Channel.__init__",),
}  # fmt: skip
#: By module: members by which Spark Connect's server writes files of models and pipelines.
MODEL_WRITERS: Mapping[str, tuple[str, ...]] = {
    "pyspark.ml.connect.readwrite": ("RemoteMLWriter.save", "RemoteMLWriter.saveInstance"),
}
#: Classes of PyArrow's inner module that open files; its own code does not look them up by name.
_HIDDEN_CLASSES = frozenset({"OSFile", "MemoryMappedFile", "CompressedOutputStream",
                             "_RecordBatchFileWriter", "_RecordBatchStreamWriter"})  # fmt: skip
#: Parameters that hold a path.
_PATH_NAMES = (
    "path", "sink", "where", "base_dir", "dest", "output_file", "filepath_or_buffer",
    "path_or_handle", "source", "fname",
)  # fmt: skip


class NativeWriters:
    """Patches the modules once they are loaded."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self._is_done: set[str] = set()
        #: Packages of which nothing is left to patch.
        self._is_whole: set[str] = set()
        #: The clients inside PyArrow, in this table of clients.
        self._in_pyarrow: set[str] = set()
        self._found_for: Mapping[str, str] = {}
        self._hidden: dict[str, dict[str, Any]] = {"pyarrow": {}, "pyarrow.lib": {}}

    def patch(self, root: str) -> None:
        """Patch what an import has just loaded of a package; others are left alone."""
        if root == "pyarrow":
            self._hide_members()
        if root in _CHECKS and root not in self._is_whole:
            self._patch_members(root)

    def _patch_members(self, root: str) -> None:
        if self._is_done.issuperset(_CHECKS[root]):
            self._is_whole.add(root)
        for name in _CHECKS[root]:
            module = sys.modules.get(name)
            if name not in self._is_done and module is not None and _is_loaded(module):
                self._is_done.add(name)
                for owner, attribute in FILE_SYSTEMS.get(name, ()):
                    _hide_attribute(self._guard, getattr(module, owner), attribute)
                for member, check, sink in _CHECKS[root][name]:
                    self._check_first(module, member, check, sink)

    def patch_loaded(self) -> None:
        """Patch what the process has loaded before."""
        for root in _CHECKS:
            if root in sys.modules:
                self.patch(root)

    def _hide_members(self) -> None:
        """Let clients in PyArrow's dictionaries be found by `__getattr__` only, which is gated."""
        pyarrow = sys.modules.get("pyarrow")
        if pyarrow is None or not _is_loaded(pyarrow):
            return
        if self._found_for is not self._guard.clients:
            self._found_for = self._guard.clients
            named = (name for name in self._found_for if name.startswith("pyarrow."))
            self._in_pyarrow = {name.removeprefix("pyarrow.") for name in named}
        for name, wanted in (("pyarrow", self._in_pyarrow), ("pyarrow.lib", _HIDDEN_CLASSES)):
            module = sys.modules[name]
            members = vars(module)
            for member in members.keys() & wanted:
                self._hidden[name][member] = members.pop(member)
            if f"{name}.__getattr__" not in self._is_done:
                self._is_done.add(f"{name}.__getattr__")
                setattr(module, "__getattr__", self._getattr(name, members.get("__getattr__")))  # noqa: B010

    def _getattr(self, module: str, before: Callable[[str], Any] | None) -> Callable[[str], Any]:
        """Return a module's `__getattr__`: it is called for names that its dictionary lacks."""

        def get(name: str) -> Any:
            if self._guard.is_on:
                self._guard.check_import(module, (name,), sys._getframe(1))
            if name in self._hidden[module]:
                return self._hidden[module][name]
            if before is not None:
                return before(name)
            raise AttributeError(f"module {module!r} has no attribute {name!r}")

        return get

    def _check_first(self, module: Any, member: str, is_outside: _Check, sink: str) -> None:
        named, _, name = member.rpartition(".")
        owner = getattr(module, named, None) if named else module
        # A class may inherit it.
        original = getattr(owner, name, None)
        if owner is None or original is None:
            return
        guard, shown = self._guard, named if name == "__init__" else member

        @functools.wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if guard.is_on and is_outside(guard, arguments, keywords):
                place = guard.origin(sys._getframe(1))
                if place is not None:
                    guard.stop(sink, f"{module.__name__}.{shown}", place)
            return original(*arguments, **keywords)

        setattr(owner, name, call)
        # The module that defines it: others import it from there, and pickle looks there.
        home = sys.modules.get(getattr(original, "__module__", None) or "")
        if not isinstance(owner, type) and getattr(home, name, None) is original:
            setattr(home, name, call)


def _hide_attribute(guard: Any, owner: Any, name: str) -> None:
    """Refuse an attribute of an object to a line of a job; its class needs it."""

    def get(self: Any) -> Any:
        if guard.is_on and not guard.is_trusted():
            place = guard.direct_caller(sys._getframe(1))
            if place is not None:
                guard.stop("table", f"to reach {owner.__name__}.{name}", place)
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def put(self: Any, value: Any) -> None:
        vars(self)[name] = value

    setattr(owner, name, property(get, put))


def _is_loaded(module: Any) -> bool:
    # While a module is being imported, its classes are not there yet.
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _path_outside(position: int) -> _Check:
    """Return a check whether the path argument leads outside of the scratch folder."""

    def is_outside(guard: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        path = _path(position, arguments, named)
        if path is None:
            return False
        return named.get("filesystem") is not None or not guard.is_scratch(path)

    return is_outside


def _is_address(position: int) -> _Check:
    """Return a check whether the path argument is an address."""

    def is_address(_guard: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        path = _path(position, arguments, named)
        return path is not None and "://" in path

    return is_address


def _has_credentials(position: int) -> _Check:
    """Return a check whether the path argument is a file that holds credentials."""

    def has_credentials(guard: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        path = _path(position, arguments, named)
        return path is not None and guard.holds_credentials(path)

    return has_credentials


def _path(position: int, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    given = arguments[position] if len(arguments) > position else None
    path = next((named[name] for name in _PATH_NAMES if name in named), given)
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None


def _always(_guard: Any, _arguments: tuple[Any, ...], _named: Mapping[str, Any]) -> bool:
    return True


def _is_written_map(_guard: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    mode = named.get("mode", arguments[1] if len(arguments) > 1 else "r")
    return mode not in ("r", "rb")


def _is_written_handle(guard: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    mode = named.get("mode", arguments[3] if len(arguments) > 3 else "rb")
    return "w" in str(mode) and _path_outside(0)(guard, arguments, named)


def _checks() -> dict[str, dict[str, list[tuple[str, _Check, str]]]]:
    """Return by package and module what is checked before which member, and its sink."""
    by_path = (
        (PATH_WRITERS, _path_outside, "file"),
        (ADDRESS_READERS, _is_address, "network"),
        (FILE_READERS, _has_credentials, "file"),
    )
    known = [
        (module, member, check(position), sink)
        for members, check, sink in by_path
        for module, positions in members.items()
        for member, position in positions.items()
    ]
    known += [
        (module, member, _always, sink)
        for members, sink in (
            (CLIENT_CALLS, "database"),
            (TABLE_FILES, "table"),
            (CONNECTING, "network"),
            (MODEL_WRITERS, "file"),
        )
        for module, calls in members.items()
        for member in calls
    ]
    known.append(("pyarrow.lib", "memory_map", _is_written_map, "file"))
    known.append(("pandas.io.parquet", "_get_path_or_handle", _is_written_handle, "file"))
    found: dict[str, dict[str, list[tuple[str, _Check, str]]]] = {}
    for module, member, check, sink in known:
        modules = found.setdefault(module.partition(".")[0], {})
        modules.setdefault(module, []).append((member, check, sink))
    return found


_CHECKS = _checks()
