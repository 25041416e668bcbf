"""Code of a project: its functions that map partitions, and the code of a run as it was planned.

Functions map partitions of an upstream to those that read them. They run in the process that plans,
so only pure code is loaded: it imports nothing but calendars and numbers, and gets no name for a
file, process or network. It is kept from mistakes, as all code of a project is; Python has no
sandbox for an attacker. The code of a run is restored into a folder that is named by its content.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.planning.job_code import code_files
from lakehouse_backfill.domain.cascade.graph import Upstream
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import ApprovalMissing, ConfigError, Tampered, WriteForbidden

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
    require_pure(tree, file, _MODULES, "a mapping")
    module = ModuleType("mapping")
    module.__dict__["__builtins__"] = {**allowed_builtins(), "__import__": _import_known}
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
    return public_module(builtins.__import__(name, *arguments))  # type: ignore[arg-type]


def allowed_builtins() -> dict[str, Any]:
    """Return the builtins of pure code: no file, process, or name that leads out of it."""
    return {key: value for key, value in vars(builtins).items() if key not in _FORBIDDEN_NAMES}


def public_module(module: ModuleType) -> ModuleType:
    """Return a copy of a known module without what it imports itself, as `calendar.sys`."""
    copy = ModuleType(module.__name__)
    for name, value in vars(module).items():
        if name.startswith("_") or name in _READ_ATTRIBUTES:
            continue
        if not isinstance(value, ModuleType):
            copy.__dict__[name] = value
        elif value.__name__.startswith(f"{module.__name__}."):
            copy.__dict__[name] = public_module(value)
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


def require_pure(
    tree: ast.AST, file: str, modules: frozenset[str], who: str, fix: str = _FIX
) -> None:
    """Raise WriteForbidden when code imports other modules, or uses a name that leads out of it."""
    for node in ast.walk(tree):
        named = None
        if isinstance(node, ast.Import):
            named = next((a.name for a in node.names if not _is_among(a.name, modules)), None)
        elif isinstance(node, ast.ImportFrom):
            is_known = not node.level and _is_among(node.module or ".", modules)
            named = None if is_known else node.module or "."
        elif isinstance(node, ast.Name) and node.id in _FORBIDDEN_NAMES:
            named = node.id
        elif isinstance(node, ast.Attribute | ast.MatchClass):
            read = [node.attr] if isinstance(node, ast.Attribute) else node.kwd_attrs
            named = next(filter(_is_hidden, read), None)
        if named is not None:
            raise WriteForbidden(
                f"{file}:{getattr(node, 'lineno', 0)} uses {named}, which {who} may not",
                state="nothing was planned, pinned or changed",
                fix=fix,
            )


def _is_among(module: str, modules: frozenset[str]) -> bool:
    return module in modules or module.partition(".")[0] in modules


def _is_hidden(attribute: str) -> bool:
    return attribute.startswith("_") or attribute in _FRAMES


#: The archive of a run: path, SHA-256 and text (None: too large) of each file.
ArchivedFiles = list[dict[str, Any]]


class CodeArchive:
    """Restores a plan's code exactly as it was planned."""

    def __init__(self, project: Path, folder: Path, kept: Callable[[str], ArchivedFiles]) -> None:
        """Restore into `folder` the files that `kept` returns for a run."""
        self._project = project
        self._folder = folder
        self._kept = kept

    def restore_folder(self, plan: Plan) -> Path:
        """Restore the code of the plan into a folder of its own; the same again changes nothing.

        A file that is not kept (of an older release, or too large) is taken from the project if it
        is the planned one. Raises ApprovalMissing when it is not, Tampered when a name leads out of
        the folder.
        """
        digests = code_files(plan.resolved)
        _refuse_outside(plan, digests)
        target = self._folder / digest(digests)[:16]
        if not _is_complete(target, digests):
            # The code that is named for old rows may have files with the names of the run's own.
            texts = [
                (file["file"], str(file["text"]).encode())
                for file in self._kept(plan.code_of or plan.run_id)
                if file["text"] is not None
            ]
            kept = {(name, _sha256(data)): data for name, data in texts}
            data = {
                name: kept[name, sha256]
                if (name, sha256) in kept
                else self._project_bytes(plan, name, sha256)
                for name, sha256 in digests.items()
            }
            _write_folder(target, data)
        return target

    def _project_bytes(self, plan: Plan, name: str, sha256: str) -> bytes:
        with suppress(OSError):
            data = (self._project / name).read_bytes()
            if _sha256(data) == sha256:
                return data
        raise ApprovalMissing(
            f"{name} as {plan.run_id} was planned with is not kept, and the file changed since",
            state="nothing was computed",
            fix=f"put {name} back, or "
            f"{plan_command(plan.manifest_file, plan.run_id)}, and let it "
            "be approved again",
        )


def _refuse_outside(plan: Plan, names: Mapping[str, str]) -> None:
    """Check that no file name leads out of the folder: stored names may have been edited."""
    paths = {name: PurePosixPath(name) for name in names}
    outside = [name for name, path in paths.items() if path.is_absolute() or ".." in path.parts]
    if outside:
        raise Tampered(
            f"the plan of {plan.run_id} names code outside the project: {', '.join(outside)}",
            state="nothing was written or computed",
            fix=f"name it without .. and {plan_command(plan.manifest_file, plan.run_id)}",
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_complete(folder: Path, wanted: Mapping[str, str]) -> bool:
    """Return whether the folder holds exactly these contents: a file may have been edited."""
    try:
        return all(_sha256((folder / name).read_bytes()) == mark for name, mark in wanted.items())
    except OSError:
        return False


def _write_folder(folder: Path, data: Mapping[str, bytes]) -> None:
    """Write the files to a temporary folder, then rename it: readers see all files or none."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    for name, content in data.items():
        path = temporary.joinpath(*PurePosixPath(name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary.rename(folder)
    except OSError:
        # Another process wrote the same folder first.
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():
            raise
