"""Functions of a project that map partitions of an upstream to those that read them.

They run in the process that plans, so only pure code is loaded: it imports nothing but calendars
and numbers, and gets no name for a file, process or network. It is kept from mistakes, as all code
of a project is; Python has no sandbox for an attacker.
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
        "__import__", "breakpoint", "compile", "copyright", "credits", "delattr", "eval", "exec",
        "exit", "getattr", "globals", "help", "input", "license", "locals", "memoryview", "open",
        "print", "quit", "setattr", "vars",
    }
)  # fmt: skip
#: Attributes without an underscore that lead to the frames of other code.
_FRAMES = frozenset(
    {"ag_frame", "cr_frame", "f_back", "f_builtins", "f_globals", "f_locals", "gi_frame",
     "tb_frame"}
)  # fmt: skip
#: Functions of the known modules that read any attribute by its name.
_READ_ATTRIBUTES = frozenset({"update_wrapper", "wraps"})
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
    try:
        exec(compile(tree, file, "exec"), module.__dict__)  # noqa: S102 (the file was checked)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{file} cannot be loaded: {error}", fix=_FIX) from error
    function = module.__dict__.get(name)
    if not callable(function):
        raise ConfigError(f"{file} has no function {name}", fix=f"write def {name}(label): …")
    return partial(_call, function, f"{file}: {name}")


def _import_known(name: str, *arguments: object) -> ModuleType:
    if name.partition(".")[0] not in _MODULES:
        raise ImportError(f"{name} may not be imported in a mapping")
    return _public(builtins.__import__(name, *arguments))  # type: ignore[arg-type]


def _public(module: ModuleType) -> ModuleType:
    """Return a copy of a known module without what it imports itself, as `calendar.sys`."""
    copy = ModuleType(module.__name__)
    for name, value in vars(module).items():
        if name.startswith("_") or name in _READ_ATTRIBUTES:
            continue
        if not isinstance(value, ModuleType):
            copy.__dict__[name] = value
        elif value.__name__.startswith(f"{module.__name__}."):
            copy.__dict__[name] = _public(value)
    return copy


def _call(function: Callable[[str], object], place: str, label: str) -> tuple[str, ...]:
    try:
        found = function(label)
        # A generator works here.
        made = tuple(found) if isinstance(found, Iterable) else None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{place} fails for {label}: {error}", fix=_FIX) from error
    if made is None or isinstance(found, str):
        raise ConfigError(f"{place} returns {found!r} for {label}, no list of labels", fix=_FIX)
    labels = tuple(one for one in made if isinstance(one, str))
    if len(labels) < len(made):
        raise ConfigError(f"{place} returns {made!r} for {label}, not only texts", fix=_FIX)
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
        elif isinstance(node, ast.Attribute | ast.MatchClass):
            read = [node.attr] if isinstance(node, ast.Attribute) else node.kwd_attrs
            named = next(filter(_is_hidden, read), None)
        if named is not None:
            raise WriteForbidden(
                f"{file}:{getattr(node, 'lineno', 0)} uses {named}, which a mapping may not",
                state="nothing was planned, pinned or changed",
                fix=_FIX,
            )


def _is_hidden(attribute: str) -> bool:
    return attribute.startswith("_") or attribute in _FRAMES
