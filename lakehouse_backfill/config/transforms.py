"""Which transforms a project has, found by reading its code, never by running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SQL_FIELD = re.compile(r"^--\s*(name|version|inputs):\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class FoundTransform:
    """A transform as its code declares it; `file` is relative to the project."""

    name: str
    version: str
    inputs: tuple[str, ...]
    file: str


def find_transforms(project: Path) -> tuple[FoundTransform, ...]:
    """List the transforms under `jobs/`, by file and version; files that do not parse are left out.

    Only literal arguments of `@transform` are understood, and `-- name:` lines of SQL files.
    """
    found: list[FoundTransform] = []
    for path in sorted((project / "jobs").rglob("*")):
        file = path.relative_to(project).as_posix()
        if path.suffix == ".py":
            found += _python_transforms(path, file)
        elif path.suffix == ".sql":
            found += _sql_transforms(path, file)
    return tuple(found)


def transforms_in_file(path: Path, file: str) -> tuple[FoundTransform, ...] | None:
    """List what a file declares; None when it cannot be told without running it."""
    if path.suffix == ".sql":
        return tuple(_sql_transforms(path, file)) or None
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    decorators = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())]
    found = [_decorator_arguments(one) for one in decorators]
    if not found or None in found:
        return None
    return tuple(FoundTransform(*item, file=file) for item in found if item is not None)


def newest_transform(project: Path, name: str) -> FoundTransform | None:
    """Give the highest version of the transform called `name`, or None."""
    named = [item for item in find_transforms(project) if item.name == name]
    return max(named, key=_version_order, default=None)


def _version_order(item: FoundTransform) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in item.version.split("."))


def _python_transforms(path: Path, file: str) -> Iterator[FoundTransform]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return  # `plan` names what is wrong with a transform; here it only cannot be suggested
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            declared = _decorator_arguments(decorator)
            if declared is not None:
                yield FoundTransform(*declared, file=file)


def _decorator_arguments(node: ast.expr) -> tuple[str, str, tuple[str, ...]] | None:
    if not isinstance(node, ast.Call):
        return None
    called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
    if called != "transform":
        return None
    try:
        given = {item.arg: ast.literal_eval(item.value) for item in node.keywords if item.arg}
        return str(given["name"]), str(given["version"]), tuple(map(str, given["inputs"]))
    except (KeyError, ValueError, TypeError):
        return None


def _sql_transforms(path: Path, file: str) -> Iterator[FoundTransform]:
    try:
        fields = dict(_SQL_FIELD.findall(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return
    if {"name", "version"} <= fields.keys():
        inputs = tuple(part.strip() for part in fields.get("inputs", "").split(",") if part.strip())
        yield FoundTransform(fields["name"], fields["version"], inputs, file)
