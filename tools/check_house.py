"""Checks the house rules that no linter knows: sizes, folders, names, private APIs, mocks.

    python tools/check_house.py [ROOT]

Prints `file:line: problem (fix)` for each break and exits 1. What is only worth a look (above an
aim, or a small module with a single importer) is listed with `aim:`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "lakehouse_backfill"
MODULE_AIM, MODULE_LINES, TEST_LINES, README_LINES = 400, 500, 700, 150
FUNCTION_LINES, FUNCTION_AIM = 50, 30
CLASS_LINES, CLASS_METHODS = 250, 15
#: Modules of one folder, without `__init__`.
FOLDER_MODULES = 12
#: Below so many lines of code, a module with one importer is better a part of it.
SMALL_MODULE = 100
PARAMETERS = 6
#: They import every adapter, verb or command, so that one importer says nothing.
COMPOSITION_ROOTS = (
    f"{PACKAGE}/project/",
    f"{PACKAGE}/wiring/adapters.py",
    f"{PACKAGE}/cli/main.py",
)
#: Data tables that have no seam to split at.
LONG_TESTS = frozenset({"tests/contract/differ_cases.py"})
#: Names of activities that are the field's standard terms.
ACTIVITIES = frozenset(
    {
        "staging",
        "planning",
        "wiring",
        "measuring",
        "inspecting",
        "onboarding",
        "during",
        "accepted",
        "testing",
    }
)
# Spark Connect has none of these, so few modules may use them: those that open and share sessions,
# and the one that calls Iceberg's Java library, which format 3 needs.
PRIVATE_APIS = frozenset({"_jvm", "_jdf", "_jsparkSession", "_jsc", "sparkContext", "rdd"})
PRIVATE_API_USERS = (
    f"{PACKAGE}/adapters/spark/session/session.py",
    f"{PACKAGE}/adapters/spark/session/warm_jvm.py",
    # Scheduler pools, which classic sessions alone have.
    f"{PACKAGE}/adapters/spark/session/job_tags.py",
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
    package = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / PACKAGE).rglob("*.py"))
    }
    trees = {place: ast.parse(text, filename=place) for place, text in package.items()}
    for place, tree in trees.items():
        found += [*_module(place, package[place]), *_functions(place, tree)]
        found += [*_classes(place, tree), *_private_apis(place, tree)]
    found += [*_folders(package), *_double_classes(trees), *_lone_modules(package, trees)]
    for path in sorted((root / "tests").rglob("*.py")):
        place, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        found += _mocks(place, ast.parse(text, filename=str(path)))
        lines = len(text.splitlines())
        if lines > TEST_LINES and place not in LONG_TESTS:
            problem = f"{lines} lines, {TEST_LINES} allowed (split it by what it tests)"
            found.append(Finding(place, lines, problem))
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
    elif lines > MODULE_AIM:
        yield Finding(place, lines, f"{lines} lines, the aim is {MODULE_AIM}", is_break=False)
    names = place.removesuffix(".py").split("/")
    vague = VAGUE_NAMES.intersection(names)
    if vague:
        problem = f"named {', '.join(sorted(vague))} (name it for what it does)"
        yield Finding(place, 1, problem)
    if names[-1].endswith(("ing", "ed")) and names[-1] not in ACTIVITIES:
        problem = f"{names[-1]} is a gerund or participle (name the thing, or see ACTIVITIES)"
        yield Finding(place, 1, problem)


def _folders(package: Mapping[str, str]) -> Iterator[Finding]:
    modules = Counter(
        place.rpartition("/")[0] for place in package if not place.endswith("/__init__.py")
    )
    for folder, count in sorted(modules.items()):
        if count > FOLDER_MODULES:
            problem = f"{count} modules, {FOLDER_MODULES} allowed (make a folder of a part of them)"
            yield Finding(folder, 1, problem)


def _classes(place: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.end_lineno is None:
            continue
        methods = sum(isinstance(item, Function) for item in node.body)
        lines = node.end_lineno - node.lineno + 1
        if lines > CLASS_LINES:
            problem = f"{node.name} has {lines} lines, {CLASS_LINES} allowed (it has two jobs)"
            yield Finding(place, node.lineno, problem)
        if methods > CLASS_METHODS:
            problem = f"{node.name} has {methods} methods, the aim is {CLASS_METHODS}"
            yield Finding(place, node.lineno, problem, is_break=False)


def _double_classes(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for place, tree in trees.items():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            other = first.setdefault(node.name, place)
            if other != place:
                yield Finding(
                    place, node.lineno, f"{node.name} is also a class of {other} (rename)"
                )


def _lone_modules(package: Mapping[str, str], trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    importers: dict[str, set[str]] = {}
    for place, tree in trees.items():
        for name in {name for node in ast.walk(tree) for name in _imported(node)}:
            importers.setdefault(name.replace(".", "/") + ".py", set()).add(place)
    for place, text in package.items():
        known = importers.get(place, set()) - {place}
        if all(one.startswith(COMPOSITION_ROOTS) for one in known):
            continue
        if len(known) == 1 and _code_lines(text, trees[place]) < SMALL_MODULE:
            problem = f"small, and imported by {known.pop()} alone (fold it into that)"
            yield Finding(place, 1, problem, is_break=False)


def _code_lines(text: str, tree: ast.Module) -> int:
    """Count lines that are no blank, comment or docstring."""
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *Function)) and ast.get_docstring(node):
            first = node.body[0]
            documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in documented
        for number, line in enumerate(text.splitlines(), 1)
    )


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
        parameters = _parameters(node)
        if parameters > PARAMETERS:
            problem = f"{node.name} has {parameters} parameters, the aim is {PARAMETERS}"
            yield Finding(place, node.lineno, problem, is_break=False)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def _private_apis(place: str, tree: ast.Module) -> Iterator[Finding]:
    if place in PRIVATE_API_USERS:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_APIS:
            fix = f"use the DataFrame or SQL API, or add it to {PRIVATE_API_USERS[0]}"
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
    print(f"house rules: {len(breaks)} broken, {len(long)} worth a look")
    return 1 if breaks else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
