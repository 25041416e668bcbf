"""Load run manifests; check half-open ranges as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from lakehouse_backfill.config import yaml_lines
from lakehouse_backfill.config.defaults import with_profile_limits, with_project_defaults
from lakehouse_backfill.config.faults import (
    display_path,
    is_file,
    merge_faults,
    path_faults,
    resolve_inside,
    suggest_name,
    validate_document,
)
from lakehouse_backfill.config.project_files import (
    FoundTransform,
    missing_header_lines,
    transforms_in_file,
)
from lakehouse_backfill.config.yaml_lines import FieldPath, YamlDocument, raise_faults
from lakehouse_backfill.core.evidence.run_filter import RunFilter
from lakehouse_backfill.core.guards.anti_patterns import ANTI_PATTERNS, ANY_NAME
from lakehouse_backfill.core.runs.gate_registry import REPORTABLE_GATES
from lakehouse_backfill.core.runs.roles import name_fault, reason_fault
from lakehouse_backfill.domain.guards.safety import PaceLimits
from lakehouse_backfill.domain.labels.instants import as_instant, parse_time_label
from lakehouse_backfill.domain.manifest import NOT_YET_SUPPORTED, NOTHING_PLANNED, RunManifest
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import ConfigError, Fault, Unsupported, problem_with_faults
from lakehouse_backfill.transforms import API_VERSION

_TIME_LABEL = re.compile(r"\d{4}(-\d{2}(-\d{2}([T ]\d{2}(:\d{2}(:\d{2})?)?Z?)?)?)?")
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_KINDS = {"day or instant": "a day or an instant", "number": "a number", "text": "text"}


def range_order_faults(document: YamlDocument, path: FieldPath) -> Iterator[Fault]:
    """Yield the fault of a range whose ends are of two kinds, or whose `to` is not after `from`."""
    first, stop = document.get(*path, "from"), document.get(*path, "to")
    one, other = _comparable_end(first), _comparable_end(stop)
    if one is None or other is None:
        return
    if one[0] != other[0]:
        problem = f"is {_KINDS[other[0]]}, but from is {_KINDS[one[0]]}"
        yield document.fault((*path, "to"), problem, "write both in the same way")
    elif one[1] == other[1]:
        fix = "the range is half-open: write the first value that is not in it any more"
        yield document.fault((*path, "to"), f"equals from ({first}), so nothing is in it", fix)
    elif one[1] > other[1]:
        problem = f"is {stop}, before from ({first})"
        yield document.fault((*path, "to"), problem, f"swap them: from: {stop}, to: {first}")


def _comparable_end(value: Any) -> tuple[str, Any] | None:
    """What kind of end it is, and a value to compare; None when there is none to compare."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return ("day or instant", moment.astimezone(timezone.utc).isoformat())
    if isinstance(value, date):
        return ("day or instant", f"{value.isoformat()}T00:00:00+00:00")
    if isinstance(value, str) and _TIME_LABEL.fullmatch(value):
        return ("day or instant", value)  # 2013-02 < 2013-02-15 < 2013-03: text order is time order
    return None


def check_range(column_type: str, first: str, stop: str) -> None:
    """Raise ConfigError when the ends of a half-open range are reversed, or no such values.

    Texts are left alone: their partitions are named by a list.
    """
    is_number = column_type in ("int", "long")
    if not is_number and column_type not in ("date", "timestamp", "timestamptz"):
        return
    is_value, kind, example = (
        (_is_number, "whole number", "42")
        if is_number
        else (_is_time_label, "day, month, year or instant", "2026-01-31")
    )
    for option, text in (("--from", first), ("--to", stop)):
        if not is_value(text):
            raise ConfigError(
                f"{option} is {text!r}, which is no {kind}",
                state="nothing was written",
                fix=f"write e.g. {option} {example}",
            )
    # The order of times is that of their texts.
    if (int(first) >= int(stop)) if is_number else (first >= stop):
        raise ConfigError(
            f"the range from {first} to {stop} holds nothing: --to is the first partition that is "
            "not restated",
            state="nothing was written",
            fix="write a later --to" if first == stop else f"write --from {stop} --to {first}",
        )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _is_time_label(text: str) -> bool:
    """Return whether the text is a year, month, day or instant that the calendar has."""
    if not _TIME_LABEL.fullmatch(text):
        return False
    try:
        parse_time_label(text)
    except ValueError:
        return False
    return True


def parse_run_filter(
    product: str | None, states: tuple[str, ...], environment: str | None, since: str | None
) -> RunFilter:
    """Read the filter of `list`; raise ConfigError for states and times that there are not."""
    known = [state.value for state in RunState]
    for name in states:
        if name not in known:
            raise ConfigError(
                f"--state is {name!r}, which is no state of a run",
                state="nothing was changed",
                fix=suggest_name(name, known),
            )
    if since is not None and not _is_time_label(since):
        raise ConfigError(
            f"--since is {since!r}, which is no day, month, year or instant",
            state="nothing was changed",
            fix="write e.g. --since 2026-01-31",
        )
    moment = as_instant(since) if since is not None else None
    return RunFilter(product, frozenset(map(RunState, states)), environment, moment)


_PARTITIONS = ("target", "partitions")
_ROWS = ("target", "row_predicate")


def load_manifest(
    path: Path, project: Path, limits: PaceLimits | None = None, *, is_template: bool = False
) -> RunManifest:
    """Load a run manifest; `project` is the folder that its file names are relative to.

    A template of a cascade has no partitions: they follow from what changes upstream.

    Fields that it leaves out are those of the project's `catalog/defaults.yaml`, and `limits` of
    the profile.

    Everything that is wrong is reported at once, each with file, line, field and fix, also what
    only shows between fields. Whether tables, columns and partitions exist is for `plan` to find.

    Raises:
        ConfigError: the manifest is wrong, or its scope has no bounds (M5).
        Unsupported: it is right, but asks for what this release does not do.
    """
    document = yaml_lines.upgrade_document(yaml_lines.load_yaml(path, display_path(path, project)))
    document = with_profile_limits(with_project_defaults(document, project), limits)
    manifest, faults = validate_document(RunManifest, document)
    # First: of two faults of one field, these say what to do instead.
    found = (*_anti_pattern_faults(document), *_pair_faults(document), *_row_faults(document))
    faults = merge_faults([*found, *_key_range_faults(document)], faults)
    scope_faults = _template_faults if is_template else _partition_faults
    faults = merge_faults(faults, scope_faults(document))
    faults = merge_faults(faults, _cross_field_faults(document, project))
    unbuilt = list(_unbuilt_faults(document))
    if faults or not unbuilt:
        raise_faults(document.file, merge_faults(faults, unbuilt))
    else:
        raise _unsupported_error(document.file, tuple(unbuilt))
    # refuse() has raised unless the manifest is there.
    return manifest or RunManifest.model_validate(document.data)


def _cross_field_faults(document: YamlDocument, project: Path) -> Iterator[Fault]:
    yield from _source_faults(document)
    if None not in (document.get("limits", "key_buckets"), document.get("limits", "key_ranges")):
        problem = "is given beside key_buckets, and chunks are cut in one way"
        yield document.fault(("limits", "key_ranges"), problem, "remove one of them")
    yield from _gate_faults(document)
    yield from _file_faults(document, project)
    yield from _suite_faults(document)
    yield from _deadline_faults(document)
    yield from _request_text_faults(document)


def _key_range_faults(document: YamlDocument) -> Iterator[Fault]:
    """Yield the fault of key ranges that are cut in no way, or in several."""
    ranges = document.get("limits", "key_ranges")
    if not isinstance(ranges, dict):
        return
    ways = [name for name in ("bounds", "size", "count") if ranges.get(name) is not None]
    if not ways:
        problem = "names neither bounds nor size nor count"
        fix = "write size: how many rows a chunk has; or count, or bounds"
        yield document.fault(("limits", "key_ranges"), problem, fix)
    elif len(ways) > 1:
        problem = f"is given beside {ways[0]}, and ranges are cut in one way"
        yield document.fault(("limits", "key_ranges", ways[1]), problem, "remove one of them")


def _anti_pattern_faults(document: YamlDocument) -> Iterator[Fault]:
    for wish in ANTI_PATTERNS:
        paths: list[FieldPath] = [wish.path]
        if ANY_NAME in wish.path:
            group, _, field = wish.path
            names = document.get(group)
            paths = [(group, n, field) for n in (names if isinstance(names, dict) else ())]
        for path in paths:
            value = document.get(*path)
            if wish.is_requested(value):
                problem = f"is {value!r}, which {wish.problem} (anti-pattern: {wish.name})"
                yield document.fault(path, problem, wish.instead)


def _pair_faults(document: YamlDocument) -> Iterator[Fault]:
    """Yield the fault of a scope that names partitions by several fields at once."""
    for path in (_PARTITIONS, (*_PARTITIONS, "column")):
        if isinstance(document.get(*path), list):
            yield document.fault(
                path,
                "names several partition fields, and labels are those of one",
                "name the partitions of one field, and the values of the others in "
                "target.row_predicate: all other rows stay",
            )


def _row_faults(document: YamlDocument) -> Iterator[Fault]:
    """Yield the faults of ranges of rows that name no range, or an empty one."""
    named = document.get(*_ROWS)
    for name, given in named.items() if isinstance(named, dict) else ():
        path = (*_ROWS, name)
        if isinstance(given, dict):
            if set(given) != {"from", "to"} or None in given.values():
                fix = "write {from: …, to: …}, without `to` itself, or a list of values"
                yield document.fault(path, "is no range, which has two ends", fix)
            else:
                yield from range_order_faults(document, path)


def _partition_faults(document: YamlDocument) -> Iterator[Fault]:
    if not isinstance(document.get(*_PARTITIONS), dict):
        return
    if document.get(*_PARTITIONS, "whole_table") is True:
        yield from _whole_table_faults(document)
        return
    yield from _no_column_faults(document)
    first, stop = document.get(*_PARTITIONS, "from"), document.get(*_PARTITIONS, "to")
    values = document.get(*_PARTITIONS, "values")
    if values and (first is not None or stop is not None):
        problem = "is given beside from/to, so the scope is said twice"
        yield document.fault((*_PARTITIONS, "values"), problem, "keep the range or the values")
    elif not values and (first is None or stop is None):
        yield _unbounded_fault(document, first is None, stop is None)
    elif not values:
        yield from range_order_faults(document, _PARTITIONS)
    yield from _except_faults(document)


def _no_column_faults(document: YamlDocument) -> Iterator[Fault]:
    scoped = document.get(*_PARTITIONS)
    if isinstance(scoped, dict) and not (scoped.get("column") or scoped.get("whole_table")):
        fix = "name the column that the target is partitioned by, or write whole_table: true"
        yield document.fault((*_PARTITIONS, "column"), "is missing", fix)


def _whole_table_faults(document: YamlDocument) -> Iterator[Fault]:
    for name in ("column", "from", "to", "values", "except"):
        if document.get(*_PARTITIONS, name) is not None:
            problem = "is given beside whole_table, which has no partitions"
            yield document.fault((*_PARTITIONS, name), problem, "remove one of them")


def _template_faults(document: YamlDocument) -> Iterator[Fault]:
    yield from _no_column_faults(document)
    for name in ("from", "to", "values", "except"):
        if document.get(*_PARTITIONS, name):
            problem = "is given, but the partitions of a cascade follow from what changes upstream"
            yield document.fault((*_PARTITIONS, name), problem, "remove it")


def _unbounded_fault(document: YamlDocument, no_from: bool, no_to: bool) -> Fault:  # noqa: FBT001 (a table of cases)
    if no_from and no_to:
        problem = "is unbounded: it names neither from and to, nor values"
        fix = (
            "give from and to (to is the first partition that is not restated), or values: a run "
            "changes declared partitions only"
        )
        return document.fault(_PARTITIONS, problem, fix)
    there, missing = ("to", "from") if no_from else ("from", "to")
    problem = f"is unbounded: it has `{there}` but no `{missing}`"
    fix = {
        "from": "add `from:`, the first partition to restate",
        "to": "add `to:`, the first partition that is not restated; an open end would also change "
        "what live jobs write later",
    }[missing]
    return document.fault((*_PARTITIONS, there), problem, fix)


def _except_faults(document: YamlDocument) -> Iterator[Fault]:
    excepted, values = document.get(*_PARTITIONS, "except"), document.get(*_PARTITIONS, "values")
    if not isinstance(excepted, list):
        return
    for index, item in enumerate(excepted):
        path: FieldPath = (*_PARTITIONS, "except", index)
        if isinstance(values, list) and values:
            if item not in values:
                yield document.fault(path, f"is {item}, which is not in values", "remove it")
        elif item is not None and _is_outside(document, item):
            yield document.fault(path, f"is {item}, which is outside from/to", "remove it")


def _is_outside(document: YamlDocument, item: object) -> bool:
    first, stop = document.get(*_PARTITIONS, "from"), document.get(*_PARTITIONS, "to")
    try:
        return bool(item < first or item >= stop)
    except TypeError:
        return False  # another type than the range: pydantic or the plan names that


def _source_faults(document: YamlDocument) -> Iterator[Fault]:
    sources, references = document.get("sources"), document.get("reference_data")
    for name in sources if isinstance(sources, dict) else ():
        yield from range_order_faults(document, ("sources", name, "range"))
        if isinstance(references, dict) and name in references:
            problem = "is also the name of a source"
            yield document.fault(("reference_data", name), problem, "rename one of them")
    for group in ("sources", "reference_data"):
        if document.get(group, "output") is not None:
            problem = "is called output, which means the result of the run"
            yield document.fault((group, "output"), problem, "rename it")


def _unbuilt_faults(document: YamlDocument) -> Iterator[Fault]:
    for item in NOT_YET_SUPPORTED:
        value = document.get(*item.path)
        if item.refuses(value):
            yield document.fault(item.path, item.problem(value), item.instead)


def _unsupported_error(file: str, faults: tuple[Fault, ...]) -> Unsupported:
    problem = f"{file} asks for what is not built yet"
    fix = faults[0].fix if len(faults) == 1 else f"correct the lines named above in {file}"
    return Unsupported(
        problem_with_faults(problem, faults), state=NOTHING_PLANNED, fix=fix, faults=faults
    )


def _gate_faults(document: YamlDocument) -> Iterator[Fault]:
    gates = document.get("validation", "gates")
    for name in gates if isinstance(gates, dict) else ():
        if name not in REPORTABLE_GATES:
            close = suggest_name(name, list(REPORTABLE_GATES))
            fix = (
                close
                if close.startswith("known")
                else f"{close} known: {', '.join(REPORTABLE_GATES)}"
            )
            problem = "is no gate that a run manifest may name"
            yield document.fault(("validation", "gates", name), problem, fix)


def _file_faults(document: YamlDocument, project: Path) -> Iterator[Fault]:
    suites = document.get("validation", "suites")
    count = len(suites) if isinstance(suites, list) else 0
    wanted: list[FieldPath] = [("transform", "file"), ("validation", "golden")]
    wanted += [("validation", "suites", index, "file") for index in range(count)]
    for path in wanted:
        yield from path_faults(document, path, project, must_exist=True)
    is_committed = document.get("previous_code", "git_commit") is not None
    previous: FieldPath = ("previous_code", "file")
    yield from path_faults(document, previous, project, must_exist=not is_committed)
    file = document.get("transform", "file")
    if isinstance(file, str) and not file.endswith((".py", ".sql")):
        problem = f"is {file!r}, neither a Python nor a SQL file"
        yield document.fault(("transform", "file"), problem, "name a .py or .sql file")
    elif isinstance(file, str):
        yield from _transform_faults(document, project, file)


def _transform_faults(document: YamlDocument, project: Path, file: str) -> Iterator[Fault]:
    path = resolve_inside(project, file)
    if path is not None and file.endswith(".sql") and (missing := missing_header_lines(path)):
        problem = f"names {file}, which lacks {' and '.join(map(repr, missing))}"
        fix = "begin the file with these lines, each with its value"
        yield document.fault(("transform", "file"), problem, fix)
        return
    offered = transforms_in_file(path, file) if path is not None and is_file(path) else None
    yield from _protocol_faults(document, file, offered or ())
    wanted = (document.get("transform", "name"), document.get("transform", "version"))
    if offered is None or None in wanted or wanted in [(t.name, t.version) for t in offered]:
        return
    known = ", ".join(f"{item.name} {item.version}" for item in offered)
    field = "version" if wanted[0] in [item.name for item in offered] else "name"
    problem = f"asks for {wanted[0]} {wanted[1]}, which {file} does not hold"
    yield document.fault(("transform", field), problem, f"it offers {known}")


def _protocol_faults(
    document: YamlDocument, file: str, offered: Iterable[FoundTransform]
) -> Iterator[Fault]:
    """Yield a fault for a transform of another version of the protocol, or with another state."""
    wanted = (document.get("transform", "name"), document.get("transform", "version"))
    for one in offered:
        if one.name == document.get("transform", "name") and one.api_version != API_VERSION:
            problem = f"names {file}, written for api_version {one.api_version}"
            fix = f"upgrade lakehouse-backfill, or write the transform for {API_VERSION}"
            yield document.fault(("transform", "file"), problem, fix)
        if (one.name, one.version) == wanted:
            yield from _state_faults(document, file, one)


def _state_faults(document: YamlDocument, file: str, one: FoundTransform) -> Iterator[Fault]:
    """Yield a fault where only one of manifest and transform says that the job has a state."""
    is_declared = document.get("stateful") is not None
    if one.is_stateful and not is_declared:
        problem = f"names {one.name} {one.version} of {file}, which has a state"
        fix = "declare `stateful` in the run manifest: docs/stateful.md"
        yield document.fault(("transform", "name"), problem, fix)
    elif is_declared and not one.is_stateful:
        problem = f"is given, and {one.name} {one.version} of {file} has no state"
        fix = 'write @transform(..., state="k bigint, …"), or remove it'
        yield document.fault(("stateful",), problem, fix)


def _suite_faults(document: YamlDocument) -> Iterator[Fault]:
    suites = document.get("validation", "suites")
    inputs = [
        name
        for group in ("sources", "reference_data")
        for name in (document.get(group) if isinstance(document.get(group), dict) else ())
    ]
    for index in range(len(suites) if isinstance(suites, list) else 0):
        path: FieldPath = ("validation", "suites", index)
        on, parameters = document.get(*path, "on"), document.get(*path, "parameters")
        if isinstance(on, str) and on not in [*inputs, "output"]:
            fix = suggest_name(on, [*inputs, "output"])
            yield document.fault((*path, "on"), f"is {on!r}, which is no input of the run", fix)
        for name in parameters if isinstance(parameters, dict) else ():
            origin = parameters[name]
            if isinstance(origin, str) and origin.partition(".")[0] not in inputs:
                problem = f"is {origin!r}, which names no input of the run"
                fix = f"write input.column; inputs: {', '.join(sorted(inputs)) or 'none'}"
                yield document.fault((*path, "parameters", name), problem, fix)


def _request_text_faults(document: YamlDocument) -> Iterator[Fault]:
    for name, fault_of in (("reason", reason_fault), ("requested_by", name_fault)):
        said = document.get("run", name)
        problem = fault_of(said) if isinstance(said, str) and said else None
        if problem:
            fix = "write a sentence, and where the rest stands" if name == "reason" else "write who"
            yield document.fault(("run", name), problem, fix)


def _deadline_faults(document: YamlDocument) -> Iterator[Fault]:
    deadline = document.get("run", "deadline")
    if isinstance(deadline, datetime) and deadline.tzinfo is None:
        fix = f"write {deadline.isoformat()}Z, or another offset from UTC"
        yield document.fault(("run", "deadline"), "has no time zone", fix)
