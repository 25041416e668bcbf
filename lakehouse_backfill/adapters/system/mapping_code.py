"""Functions of a project that map partitions of an upstream to those that read them.

They run in the process that plans, so only pure code is loaded: it imports nothing but calendars
and numbers, and touches no file, process or network.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType

from lakehouse_backfill.domain.cascade.graph import Upstream
from lakehouse_backfill.errors import ConfigError, WriteForbidden

_MODULES = frozenset(
    {"__future__", "calendar", "collections", "datetime", "functools", "itertools", "math", "re"}
)
_FORBIDDEN_NAMES = frozenset(
    {
        "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals",
        "input", "locals", "memoryview", "open", "print", "setattr", "vars",
    }
)  # fmt: skip
_FIX = "write a function of the label alone, with no modules but calendars and numbers"


def load_mapping(folder: Path, upstream: Upstream) -> Callable[[str], Iterable[str]]:
    """Return the function that a custom mapping names.

    Raises ConfigError when file or function are missing, or what the function returns is no list of
    texts; WriteForbidden when the file does what a mapping must not.
    """
    file, name = str(upstream.file), str(upstream.function)
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise ConfigError(
            f"{file}, which maps partitions of {upstream.product}, is no file of the project",
            fix="correct `upstreams` of the contract",
            field="upstreams",
        )
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text, file)
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno} is no Python: {error.msg}", fix=_FIX) from error
    _require_pure(tree, file)
    module = ModuleType("mapping")
    allowed = {
        key: value for key, value in vars(builtins).items() if key not in _FORBIDDEN_NAMES
    } | {"__import__": _import_known}
    module.__dict__["__builtins__"] = allowed
    exec(compile(tree, file, "exec"), module.__dict__)  # noqa: S102 (the file was checked)
    function = module.__dict__.get(name)
    if not callable(function):
        raise ConfigError(f"{file} has no function {name}", fix=f"write def {name}(label): …")
    return partial(_call, function, f"{file}: {name}")


def _import_known(name: str, *arguments: object) -> ModuleType:
    if name.partition(".")[0] not in _MODULES:
        raise ImportError(f"{name} may not be imported in a mapping")
    return builtins.__import__(name, *arguments)  # type: ignore[arg-type]


def _call(function: Callable[[str], object], place: str, label: str) -> tuple[str, ...]:
    try:
        found = function(label)
    except Exception as error:
        raise ConfigError(f"{place} fails for {label}: {error}", fix=_FIX) from error
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise ConfigError(f"{place} returns {found!r} for {label}, no list of labels", fix=_FIX)
    labels = tuple(found)
    if not all(isinstance(one, str) for one in labels):
        raise ConfigError(f"{place} returns {labels!r} for {label}, not only texts", fix=_FIX)
    return labels


def _require_pure(tree: ast.AST, file: str) -> None:
    for node in ast.walk(tree):
        named = None
        if isinstance(node, ast.Import):
            named = next((a.name for a in node.names if a.name.split(".")[0] not in _MODULES), None)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or ".").partition(".")[0]
            named = None if module in _MODULES and not node.level else node.module or "."
        elif isinstance(node, ast.Name) and node.id in _FORBIDDEN_NAMES:
            named = node.id
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            named = node.attr
        if named is not None:
            raise WriteForbidden(
                f"{file}:{getattr(node, 'lineno', 0)} uses {named}, which a mapping may not",
                state="nothing was planned, pinned or changed",
                fix=_FIX,
            )
