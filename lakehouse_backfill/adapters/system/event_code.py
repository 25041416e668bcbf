"""Code of handlers and upcasters: pure functions of a project, loaded without their module.

A handler runs in the process of the command. So only pure code is loaded: it imports calendars,
numbers and this package's words for events, and gets no name for a file, process or network. What
it wants outside goes through `context.send`. It is kept from mistakes, as all code of a project is;
Python has no sandbox for an attacker.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from lakehouse_backfill import events
from lakehouse_backfill.adapters.system.project_code import (
    allowed_builtins,
    public_module,
    require_pure,
)
from lakehouse_backfill.errors import ConfigError

_MODULES = frozenset(
    {
        "__future__", "calendar", "collections", "datetime", "decimal", "functools", "hashlib",
        "itertools", "json", "math", "re",
    }
)  # fmt: skip
_EVENTS = "lakehouse_backfill.events"
_FIX = (
    "write a pure function; it may import calendars, numbers, json, hashlib and "
    f"{_EVENTS}, and sends by context.send"
)


class EventCode:
    """Loads functions by `module:function`, each module once."""

    def __init__(self, project: Path) -> None:
        """Load from the folder of a project."""
        self._project = project.resolve()
        self._module = cache(self._load)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the project.

        Raises ConfigError when it is missing or cannot be loaded, WriteForbidden when its module
        does what a handler must not.
        """
        module, _, wanted = name.partition(":")
        function = self._module(module).__dict__.get(wanted)
        if not callable(function):
            raise ConfigError(f"{module} has no function {wanted}", fix=f"write def {wanted}(…): …")
        return function  # type: ignore[no-any-return]

    def _load(self, name: str) -> ModuleType:
        file = "/".join(name.split(".")) + ".py"
        path = (self._project / file).resolve()
        if not path.is_relative_to(self._project) or not path.is_file():
            raise ConfigError(f"{file}, which has handlers, is no file of the project", fix=_FIX)
        text = path.read_text(encoding="utf-8")
        try:
            tree = ast.parse(text, file)
        except SyntaxError as error:
            raise ConfigError(
                f"{file}:{error.lineno} is no Python: {error.msg}", fix=_FIX
            ) from error
        require_pure(tree, file, _MODULES | {_EVENTS}, "a handler", _FIX)
        module = ModuleType(name.rpartition(".")[2])
        module.__dict__["__builtins__"] = {**allowed_builtins(), "__import__": _import_known}
        try:
            exec(compile(tree, file, "exec"), module.__dict__)  # noqa: S102 (the file was checked)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{file} cannot be loaded: {error}", fix=_FIX) from error
        return module


def _import_known(name: str, *arguments: Any) -> ModuleType:
    # `import a.b` without `from` would bind the package, and lead to all of it.
    wanted = arguments[2] if len(arguments) > 2 else None
    if name == _EVENTS and wanted:
        words = ModuleType("events")
        words.__dict__.update({word: getattr(events, word) for word in events.__all__})
        return words
    if name.partition(".")[0] not in _MODULES:
        raise ImportError(f"{name} may not be imported by a handler; use from … import …")
    return public_module(builtins.__import__(name, *arguments))
