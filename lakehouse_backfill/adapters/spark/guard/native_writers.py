"""Stops job code that writes through pandas and PyArrow, whose native code raises no audit events.

Uses the standard library only: its text is sent to Python workers. Patched members look at their
caller; for all but job code they do what they did before.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

#: Writers of pandas that may hand a path to native code, and those that always reach outside.
PANDAS_PATH_WRITERS = ("to_parquet", "to_orc", "to_feather")
PANDAS_WRITERS = ("to_sql", "to_hdf", "to_iceberg", "to_clipboard")
#: Readers of pandas that open addresses natively, and those that always reach outside.
PANDAS_PATH_READERS = ("read_parquet", "read_orc", "read_feather")
PANDAS_READERS = ("read_sql", "read_sql_query", "read_sql_table", "read_iceberg", "read_hdf")
#: Members of PyArrow that open files natively.
PYARROW_MEMBERS = (
    "OSFile", "MemoryMappedFile", "memory_map", "create_memory_map", "output_stream",
    "fs", "parquet", "dataset", "csv", "feather", "orc", "flight",
)  # fmt: skip
#: Functions of PyArrow that accept a path as well as an open file.
PYARROW_PATH_WRITERS = ("new_file", "new_stream")


class NativeWriters:
    """Patches the modules once they are loaded."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self._is_done: set[str] = set()
        self._hidden: dict[str, Any] = {}

    def patch(self, root: str) -> None:
        """Patch a module that an import has just loaded; others are left alone."""
        if root == "pyarrow":
            self._patch_pyarrow(sys.modules.get("pyarrow"))
        elif root == "pandas" and root not in self._is_done:
            self._patch_pandas(sys.modules.get("pandas"))

    def patch_loaded(self) -> None:
        """Patch what the process has loaded before."""
        for root in ("pyarrow", "pandas"):
            if root in sys.modules:
                self.patch(root)

    def _patch_pandas(self, pandas: Any) -> None:
        # While pandas is being imported, its classes are not there yet.
        if not hasattr(pandas, "DataFrame") or not hasattr(pandas, "read_parquet"):
            return
        self._is_done.add("pandas")
        for owner in (pandas.DataFrame, getattr(pandas, "Series", None)):
            for name in PANDAS_PATH_WRITERS:
                self._check_first(owner, name, _path_outside(1, is_address=False))
            for name in PANDAS_WRITERS:
                self._check_first(owner, name, _always)
        for name in PANDAS_PATH_READERS:
            self._check_first(pandas, name, _path_outside(0, is_address=True))
        for name in PANDAS_READERS:
            self._check_first(pandas, name, _always)

    def _patch_pyarrow(self, pyarrow: Any) -> None:
        if pyarrow is None or not hasattr(pyarrow, "ipc"):
            return
        members = vars(pyarrow)
        for name in members.keys() & PYARROW_MEMBERS:
            self._hidden[name] = members.pop(name)
        if "pyarrow" not in self._is_done:
            self._is_done.add("pyarrow")
            pyarrow.__getattr__ = self._gated_getattr(members.get("__getattr__"))
            for name in PYARROW_PATH_WRITERS:
                self._check_first(pyarrow.ipc, name, _path_outside(0, is_address=False))
            for name in ("RecordBatchFileWriter", "RecordBatchStreamWriter"):
                writer = getattr(pyarrow.ipc, name)
                self._check_first(writer, "__init__", _path_outside(1, is_address=False))

    def _gated_getattr(self, before: Callable[[str], Any] | None) -> Callable[[str], Any]:
        """Return PyArrow's `__getattr__`: it is called for names that its dictionary lacks."""

        def get(name: str) -> Any:
            if name in PYARROW_MEMBERS and self._guard.is_on:
                self._guard.check_import("pyarrow", (name,), sys._getframe(1))
            if name in self._hidden:
                return self._hidden[name]
            if before is not None:
                return before(name)
            raise AttributeError(f"module 'pyarrow' has no attribute {name!r}")

        return get

    def _check_first(self, owner: Any, name: str, is_outside: Callable[..., bool]) -> None:
        # A class may inherit it.
        original = getattr(owner, name, None)
        if original is None:
            return
        guard = self._guard

        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            if guard.is_on and is_outside(guard, arguments, named):
                place = guard.origin(sys._getframe(1))
                if place is not None:
                    what = getattr(owner, "__name__", "")
                    guard.stop("file", f"{what}.{name}", place)
            return original(*arguments, **named)

        setattr(owner, name, call)
        # The module that defines it: others import it from there, and pickle looks there.
        home = sys.modules.get(getattr(original, "__module__", None) or "")
        if not isinstance(owner, type) and getattr(home, name, None) is original:
            setattr(home, name, call)


def _path_outside(position: int, *, is_address: bool) -> Callable[..., bool]:
    """Return a check whether the path argument leads outside of the scratch folder."""

    def is_outside(guard: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        given = arguments[position] if len(arguments) > position else None
        path = next((named[name] for name in ("path", "sink") if name in named), given)
        if not isinstance(path, (str, os.PathLike)):
            return False
        text = os.fspath(path)
        if is_address:
            return "://" in str(text)
        return not guard.is_scratch(path)

    return is_outside


def _always(_guard: Any, _arguments: tuple[Any, ...], _named: dict[str, Any]) -> bool:
    return True
