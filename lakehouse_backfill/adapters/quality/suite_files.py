"""Suite files of Great Expectations: reading them, and checks that report all faults at once.

Great Expectations itself drops an expectation that it does not know and passes the rest: a misspelt
check would always pass. Here each expectation is built separately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.errors import ConfigError, Fault

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

#: Arguments of expectations that hold column names.
_SINGLE_COLUMNS = ("column", "column_A", "column_B")
_COLUMN_ARGUMENTS = (*_SINGLE_COLUMNS, "column_list", "column_set")
_SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True)
class LoadedSuite:
    """A checked suite: its expectations in file order, each with its entry in the file."""

    name: str
    expectations: tuple[tuple[Expectation, dict[str, Any]], ...]

    def columns_to_read(self, available: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns to read; all of them where an expectation may read any.

        Conditions, queries and checks of the table's shape are not parsed: `columns` in the `meta`
        of an expectation names the columns that it reads.
        """
        named: list[str] = []
        for _, entry in self.expectations:
            kwargs = entry["kwargs"]
            if declared_columns := (entry.get("meta") or {}).get("columns"):
                named += declared_columns
                continue
            if not _is_column_bound(entry["type"], kwargs):
                return available
            for argument in _COLUMN_ARGUMENTS:
                value = kwargs.get(argument, ())
                named += [value] if isinstance(value, str) else list(value)
        return tuple(name for name in available if name in named) or available[:1]


def load_suite(path: Path, parameters: Mapping[str, Any], columns: tuple[str, ...]) -> LoadedSuite:
    """Read and check a suite file; raises ConfigError with every fault and its fix."""
    document = _read_suite(path)
    entries = document["expectations"]
    built, faults = [], []
    for number, entry in enumerate(entries, start=1):
        fault = _entry_fault(entry) or _usage_fault(entry, parameters, columns)
        if fault is None:
            expectation, fault = _build_expectation(entry)
            built.append((expectation, entry))
        if fault is not None:
            kind = entry.get("type", "") if isinstance(entry, dict) else ""
            field = f"expectations[{number}] {kind}".strip()
            faults.append(Fault(str(path), _entry_line(path, entry), field, *fault))
    if faults:
        raise ConfigError(
            f"the suite {path} has {len(faults)} fault(s)", faults=tuple(faults),
            fix="correct the suite file",
        )  # fmt: skip
    name = str(document.get("name") or path.stem)
    return LoadedSuite(name, tuple(built))


def check_suite_form(path: Path, file: str) -> None:
    """Check a suite without its data and without loading the library.

    Raises ConfigError, with file and line, for a file that is not a suite, an entry that is not an
    expectation, and an expectation that the library does not have.
    """
    try:
        entries = _read_suite(path)["expectations"]
    except ConfigError as error:
        line = getattr(error.__cause__, "lineno", 1)
        reason = str(error.__cause__ or "it holds no list of expectations")
        unreadable = Fault(file, line, "(file)", f"is no suite: {reason}", error.fix)
        raise ConfigError(
            f"{file} cannot be read", faults=(unreadable,), fix=f"correct {file}"
        ) from error
    known = _library_expectations()
    faults = []
    for number, entry in enumerate(entries, start=1):
        fault = _entry_fault(entry)
        if fault is None and known and entry["type"] not in known:
            fault = _unknown_expectation(entry["type"], known)
        if fault is not None:
            field = f"expectations[{number}]"
            faults.append(Fault(file, _entry_line(path, entry), field, *fault))
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError(f"{file} has {count}", faults=tuple(faults), fix=f"correct {file}")


def _library_expectations() -> list[str]:
    """Return the library's expectations by its file names: loading it takes seconds."""
    spec = find_spec("great_expectations")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        return []
    core = Path(next(iter(folders))) / "expectations" / "core"
    return sorted(path.stem for path in core.glob("*expect*.py"))


def _unknown_expectation(kind: str, known: list[str]) -> tuple[str, str]:
    close = get_close_matches(kind, known, n=1)
    hint = f"write {close[0]}" if close else "see the Great Expectations gallery"
    return f"expectation {kind} is unknown", hint


def _read_suite(path: Path) -> dict[str, Any]:
    fix = 'write {"name": …, "expectations": [{"type": …, "kwargs": {…}}]}'
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"the suite {path} cannot be read: {error}", fix=fix) from error
    entries = document.get("expectations") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"the suite {path} holds no list of expectations", fix=fix)
    return dict(document)


def _entry_fault(entry: Any) -> tuple[str, str] | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        return "it has no type", 'write {"type": "expect_…", "kwargs": {…}}'
    if not isinstance(entry.get("kwargs"), dict):
        return "it has no kwargs", 'write "kwargs": {"column": …}'
    if entry.get("severity", "critical") not in _SEVERITIES:
        return f"severity {entry['severity']!r} is unknown", f"use one of {', '.join(_SEVERITIES)}"
    unknown = sorted(set(entry) - {"type", "kwargs", "meta", "severity", "id", "notes",
                                   "description", "rendered_content", "windows"})  # fmt: skip
    return (f"unknown field {unknown[0]}", "remove it") if unknown else _name_fault(entry)


def _name_fault(entry: dict[str, Any]) -> tuple[str, str] | None:
    """Return the fault of an argument that should name columns, and holds something else."""
    meta = entry.get("meta") or {}
    if not isinstance(meta, dict):
        return f"meta is {meta!r}", 'write "meta": {"columns": […]}, or remove it'
    given = entry["kwargs"] | ({"columns": meta["columns"]} if "columns" in meta else {})
    for argument in _SINGLE_COLUMNS:
        if argument in given and not isinstance(given[argument], str):
            return f"{argument} is {given[argument]!r}", "write the name of a column, in quotes"
    for argument in ("column_list", "columns"):
        names = given.get(argument, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return f"{argument} is {names!r}", "write a list of names of columns, in quotes"
    return None


def _usage_fault(
    entry: dict[str, Any], parameters: Mapping[str, Any], columns: tuple[str, ...]
) -> tuple[str, str] | None:
    for name in _parameter_names(entry["kwargs"]):
        if name not in parameters:
            declared = ", ".join(parameters) or "none"
            hint = f"declare it beside the suite (given: {declared})"
            return f"parameter {name} is not given", hint
    named = entry["kwargs"] | {"columns": (entry.get("meta") or {}).get("columns", ())}
    for argument in (*_SINGLE_COLUMNS, "column_list", "columns"):
        value = named.get(argument, ())
        for column in [value] if isinstance(value, str) else value:
            if column not in columns:
                close = get_close_matches(str(column), columns, n=1)
                hint = f"write {close[0]}" if close else f"use one of {', '.join(columns)}"
                return f"the data has no column {column}", hint
    return None


def _parameter_names(value: Any) -> list[str]:
    if isinstance(value, dict):
        if set(value) == {"$PARAMETER"}:
            return [str(value["$PARAMETER"])]
        return [name for inner in value.values() for name in _parameter_names(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in _parameter_names(inner)]
    return []


def _build_expectation(entry: dict[str, Any]) -> tuple[Any, tuple[str, str] | None]:
    """Return the expectation of an entry, or its fault."""
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )

    kind = entry["type"]
    try:
        expectation_class = get_expectation_impl(kind)
    except ExpectationNotFoundError:
        return None, _unknown_expectation(kind, list_registered_expectation_implementations())
    extra = {name: entry[name] for name in ("meta", "severity", "notes") if entry.get(name)}
    try:
        return expectation_class(**entry["kwargs"], **extra), None
    except (ValueError, TypeError) as error:
        problem = "; ".join(line.strip() for line in str(error).splitlines()[1:]) or str(error)
        return None, (problem, "correct its kwargs")


def _is_column_bound(kind: str, kwargs: dict[str, Any]) -> bool:
    if kwargs.get("row_condition") or kind == "unexpected_rows_expectation":
        return False
    if kind.startswith("expect_table_"):
        return kind.startswith("expect_table_row_count")
    return any(argument in kwargs for argument in _COLUMN_ARGUMENTS)


def _entry_line(path: Path, entry: Any) -> int:
    kind = entry.get("type") if isinstance(entry, dict) else None
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((n for n, text in enumerate(lines, start=1) if f'"{kind}"' in text), 1)
