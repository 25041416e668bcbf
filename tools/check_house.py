"""Checks the house rules that no linter knows: sizes, Spark's private doors, names, mocks.

    python tools/check_house.py [ROOT]

Prints `file:line: problem (fix)` for each break and exits 1. Functions above the aim are only
listed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "lakehouse_backfill"
MODULE_LINES, FUNCTION_LINES, FUNCTION_AIM, README_LINES = 300, 50, 30, 150
# Spark Connect has none of these, so two modules may know them and the rest must not: the one that
# opens sessions, and the door to Iceberg's own library, which format 3 needs.
PRIVATE_DOORS = frozenset({"_jvm", "_jdf", "_jsparkSession", "_jsc", "sparkContext", "rdd"})
DOOR_KEEPERS = (
    f"{PACKAGE}/adapters/spark/session/session.py",
    f"{PACKAGE}/adapters/spark/commits/java_api.py",
)
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "managers"})
MOCKS = ("unittest.mock", "mock", "pytest_mock")
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Finding:
    """A place where a rule is broken; `is_break` is false for one that is only worth a look."""

    place: str
    line: int
    problem: str
    is_break: bool = True

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.problem}"


def findings(root: Path) -> list[Finding]:
    """Check a whole clone: the package, its tests, the README."""
    found = list(_readme(root))
    for path in sorted((root / PACKAGE).rglob("*.py")):
        place, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(path))
        found += [*_module(place, text), *_functions(place, tree), *_doors(place, tree)]
    for path in sorted((root / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        found += _mocks(path.relative_to(root).as_posix(), tree)
    return found


def _readme(root: Path) -> Iterator[Finding]:
    path = root / "README.md"
    lines = len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else 0
    if lines > README_LINES:
        yield Finding("README.md", lines, f"{lines} lines, {README_LINES} allowed (move to docs/)")


def _module(place: str, text: str) -> Iterator[Finding]:
    lines = len(text.splitlines())
    if lines > MODULE_LINES:
        problem = f"{lines} lines, {MODULE_LINES} allowed (split it by what it knows)"
        yield Finding(place, lines, problem)
    vague = VAGUE_NAMES.intersection(place.removesuffix(".py").split("/"))
    if vague:
        problem = f"named {', '.join(sorted(vague))} (name it for what it does)"
        yield Finding(place, 1, problem)


def _functions(place: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if not isinstance(node, Function) or node.end_lineno is None:
            continue
        lines = node.end_lineno - node.lineno + 1
        if lines > FUNCTION_LINES:
            problem = f"{node.name} has {lines} lines, {FUNCTION_LINES} allowed (name its steps)"
            yield Finding(place, node.lineno, problem)
        elif lines > FUNCTION_AIM:
            problem = f"{node.name} has {lines} lines, the aim is {FUNCTION_AIM}"
            yield Finding(place, node.lineno, problem, is_break=False)


def _doors(place: str, tree: ast.Module) -> Iterator[Finding]:
    if place in DOOR_KEEPERS:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_DOORS:
            fix = f"use the DataFrame or SQL API, or add it to {DOOR_KEEPERS[0]}"
            yield Finding(place, node.lineno, f".{node.attr} is not in Spark Connect ({fix})")


def _mocks(place: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if any(name in MOCKS or name.startswith("unittest.mock.") for name in _imported(node)):
            yield Finding(place, node.lineno, "imports a mock (write a fake of the port)")


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return []


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    found = findings(root)
    breaks = [finding for finding in found if finding.is_break]
    long = [finding for finding in found if not finding.is_break]
    for finding in long:
        print(f"aim: {finding}")
    for finding in breaks:
        print(f"broken: {finding}")
    print(f"house rules: {len(breaks)} broken, {len(long)} function(s) above the aim")
    return 1 if breaks else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
