"""Faults of declarations: each with file, line, field, and what to write instead.

They come from pydantic's errors, from paths that a declaration names, from the name of its file,
and from errors that only show when a plan is made.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lakehouse_backfill.config import yaml_lines
from lakehouse_backfill.config.yaml_lines import FieldPath, YamlDocument, raise_faults
from lakehouse_backfill.domain.labels.names import BadTableName
from lakehouse_backfill.domain.serialization import COLUMN_PATTERN
from lakehouse_backfill.errors import (
    BackfillError,
    ConfigError,
    Fault,
    NotFound,
    problem_with_faults,
)

Model = TypeVar("Model", bound=BaseModel)

_PATTERN_WORDS = {
    r"^[A-Za-z_][A-Za-z0-9_]{0,63}$": "a name of letters, digits and _, at most 64",
    COLUMN_PATTERN: "the name of a column, without control characters",
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$": "namespace.table, e.g. silver.orders",
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": 'a time of day in UTC, quoted, e.g. "22:00"',
    r"^\d+\.\d+\.\d+$": "a semantic version of three numbers, e.g. 1.2.0",
    r"^[0-9a-f]{7,40}$": "a git commit, 7 to 40 hexadecimal digits, quoted",
    r"^sha256:[0-9a-f]{64}$": "sha256: and 64 hexadecimal digits, as `docker inspect` shows it",
}
_TYPE_WORDS = {
    "string": "text (quote it)",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "date": "a day, e.g. 2013-02-15",
    "datetime": "an instant, e.g. 2013-02-15T06:00:00Z",
    "none": "null",
    "model": "fields below it, indented",
    "dict": "fields below it, indented",
    "tuple": "a list, e.g. [a, b]",
}


def validate_document(
    model: type[Model], document: YamlDocument
) -> tuple[Model | None, list[Fault]]:
    """Check a document against a model: the value, or every fault at once."""
    try:
        value = model.model_validate(document.data)
    except ValidationError as error:
        return None, _faults_of_error(model, document, error)
    odd = list(_coerced_value_faults(document, document.data, value.model_dump(by_alias=True), ()))
    return (None, odd) if odd else (value, [])


def load_model(
    model: type[Model],
    path: Path,
    project: Path,
    cross_field_faults: Callable[[YamlDocument], Iterable[Fault]],
) -> Model:
    """Load a YAML file as a model; raise ConfigError with all faults, also those between fields."""
    document = yaml_lines.upgrade_document(yaml_lines.load_yaml(path, display_path(path, project)))
    value, faults = validate_document(model, document)
    yaml_lines.raise_faults(document.file, merge_faults(faults, cross_field_faults(document)))
    # `raise_faults` has raised unless the value is there.
    return value or model.model_validate(document.data)


def merge_faults(faults: list[Fault], more: Iterable[Fault]) -> list[Fault]:
    """Join the faults of fields with those between fields; a field is named once."""
    known = {(fault.line, fault.field) for fault in faults}
    return faults + [fault for fault in more if (fault.line, fault.field) not in known]


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None where none is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def suggest_name(name: str, known: list[str]) -> str:
    """Describe which known name was probably meant, or which there are."""
    close = closest_name(name, known)
    if close:
        return f"did you mean `{close}`?"
    return f"known: {', '.join(sorted(known)) or 'none'}"


def describe_value(value: Any) -> str:
    """Describe what a value is, for a person who wrote it in YAML."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true/false)"
    if isinstance(value, dict):
        return "a group of fields"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    return f"{text[:60] + '…' if len(text) > 60 else text!r}" if isinstance(value, str) else text


def _faults_of_error(
    model: type[BaseModel], document: YamlDocument, error: ValidationError
) -> list[Fault]:
    grouped: dict[FieldPath, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        grouped.setdefault(_written_path(document, detail), []).append(detail)
    return [_fault_of_field(model, document, path, details) for path, details in grouped.items()]


def _written_path(document: YamlDocument, detail: ErrorDetails) -> FieldPath:
    """The part of pydantic's location that stands in the file; unions add steps of their own."""
    path: FieldPath = ()
    for step in detail["loc"]:
        if (*path, step) not in document.lines:
            is_lacking = detail["type"] == "missing" and step == detail["loc"][-1]
            return (*path, step) if is_lacking else path
        path = (*path, step)
    return path


def _fault_of_field(
    model: type[BaseModel], document: YamlDocument, path: FieldPath, details: list[ErrorDetails]
) -> Fault:
    first = details[0]
    parent, name = _model_at(model, path[:-1]), str(path[-1]) if path else ""
    if first["type"] == "missing":
        where = f"below line {document.line(path[:-1])}" if path[:-1] else "at the top level"
        return document.fault(
            path, "is missing", f"add `{name}:` {where}{_field_hint(parent, name)}"
        )
    if first["type"] == "extra_forbidden":
        known = _names(parent)
        return document.fault(path, "is no field here", suggest_name(name, known))
    problem, fix = _wrong_value(first, details)
    return document.fault(path, problem, fix)


def _wrong_value(first: ErrorDetails, details: list[ErrorDetails]) -> tuple[str, str]:
    context, kind = first.get("ctx", {}), first["type"]
    shown = f"is {describe_value(first['input'])}"
    if kind == "literal_error":
        choices = context["expected"].replace("'", "").replace(" or ", ", ")
        guess = difflib.get_close_matches(str(first["input"]), choices.split(", "), n=1)
        hint = f"did you mean {guess[0]}? " if guess else ""
        return shown, f"{hint}write one of: {choices}"
    if kind == "string_pattern_mismatch":
        return shown, f"write {_PATTERN_WORDS.get(context['pattern'], context['pattern'])}"
    if kind in ("too_short", "string_too_short"):
        return "is empty", "write at least one entry" if kind == "too_short" else "write some text"
    if kind == "string_too_long":
        return f"{shown}, {len(first['input'])} characters", (
            f"write at most {context['max_length']} characters"
        )
    limits = {"greater_than_equal": "ge", "greater_than": "gt", "less_than_equal": "le"}
    if kind in limits:
        words = {"ge": "at least", "gt": "more than", "le": "at most"}[limits[kind]]
        return shown, f"write {words} {context[limits[kind]]}"
    expected = [_expected_text(detail) for detail in details]
    if all(expected):
        return shown, f"write {', or '.join(dict.fromkeys(text for text in expected if text))}"
    fix = "correct the value"
    if isinstance(context.get("error"), BadTableName):
        fix = "write namespace.table, e.g. silver.orders; a part with other signs in backticks"
    return f"{shown}: {first['msg']}", fix


def _expected_text(detail: ErrorDetails) -> str | None:
    """The words for what a type error wanted: from `int_parsing` to `int`."""
    if detail["type"] == "literal_error":
        return str(detail["ctx"]["expected"]).replace("'", "")
    return _TYPE_WORDS.get(detail["type"].split("_", 1)[0])


def _field_hint(parent: type[BaseModel] | None, name: str) -> str:
    for key, info in (parent.model_fields if parent else {}).items():
        if name in (key, info.alias) and info.description:
            return f"; {info.description}"
    return ""


def _names(parent: type[BaseModel] | None) -> list[str]:
    return [info.alias or key for key, info in (parent.model_fields if parent else {}).items()]


def _model_at(model: type[BaseModel], path: FieldPath) -> type[BaseModel] | None:
    found: Any = model
    for step in path:
        if isinstance(found, type) and issubclass(found, BaseModel):
            fields = found.model_fields
            info = next((info for key, info in fields.items() if step in (key, info.alias)), None)
            found = _unwrap_annotation(info.annotation) if info else None
        else:
            arguments = [item for item in get_args(found) if item is not Ellipsis]
            found = _unwrap_annotation(arguments[-1]) if arguments else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _unwrap_annotation(annotation: Any) -> Any:
    """Take off Annotated and `| None`."""
    if get_origin(annotation) is Annotated:
        return _unwrap_annotation(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [item for item in get_args(annotation) if item is not type(None)]
        return _unwrap_annotation(rest[0]) if len(rest) == 1 else None
    return annotation


def _coerced_value_faults(
    document: YamlDocument, raw: Any, value: Any, path: FieldPath
) -> Iterator[Fault]:
    """Values that pydantic takes with another meaning: `true` as 1, 2.5 as a time in 1970."""
    if isinstance(raw, dict) and isinstance(value, dict):
        for key, inner in raw.items():
            yield from _coerced_value_faults(document, inner, value.get(key), (*path, key))
    elif isinstance(raw, list) and isinstance(value, list | tuple):
        for index, (inner, taken) in enumerate(zip(raw, value, strict=True)):
            yield from _coerced_value_faults(document, inner, taken, (*path, index))
    elif isinstance(raw, bool) and not isinstance(value, bool):
        yield document.fault(path, f"is {describe_value(raw)}", f'quote it if it is text: "{raw}"')
    elif isinstance(raw, int | float) and isinstance(value, date):
        yield document.fault(
            path,
            f"is the number {raw}, and no day or instant",
            f'write one, e.g. 2013-02-15, or quote it where a decimal is meant: "{raw}"',
        )
    elif isinstance(value, float) and not math.isfinite(value):
        yield document.fault(
            path, f"is {describe_value(raw)}, which has no bound", "write a number"
        )


CONTRACTS_FOLDER = Path("catalog") / "contracts"
PROFILES_FILE = Path("catalog") / "profiles.yaml"


def display_path(path: Path, project: Path) -> str:
    """Return a path as people type it: relative to the project where it lies inside."""
    try:
        return path.resolve().relative_to(_real_path(project)).as_posix()
    except ValueError:
        return str(path)


def _real_path(folder: Path) -> Path:
    """Resolve the links of an absolute path once: a cascade asks for each of its files."""
    return _resolved_once(folder) if folder.is_absolute() else folder.resolve()


@lru_cache(maxsize=16)
def _resolved_once(folder: Path) -> Path:
    return folder.resolve()


def resolve_inside(project: Path, name: str) -> Path | None:
    """Return the file that `name` means in the project; None when it lies outside, also by a link.

    None too for a name with `..`: the archived code of a run is put back under the same name.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    root = _real_path(project)
    try:
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError):
        return None
    return path if path.is_relative_to(root) else None


def path_faults(
    document: YamlDocument, path: FieldPath, project: Path, *, must_exist: bool
) -> list[Fault]:
    """Check that the field at `path` names a file inside the project."""
    name = document.get(*path)
    if not isinstance(name, str) or not name:
        return []
    found = resolve_inside(project, name)
    if found is None:
        fix = "write a path relative to the project's folder, without .."
        what = "which lies outside the project, or leaves it by .."
        return [document.fault(path, f"is {name!r}, {what}", fix)]
    if must_exist and not is_file(found):
        return [
            document.fault(
                path, f"is {name!r}, which does not exist", _suggest_file(project, found)
            )
        ]
    return []


def is_file(path: Path) -> bool:
    """Return whether there is such a file; no file has a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def _suggest_file(project: Path, missing: Path) -> str:
    if not missing.parent.is_dir():
        return f"there is no folder {display_path(missing.parent, project)}; correct the path"
    names = [item.name for item in missing.parent.iterdir() if item.is_file()]
    return f"in {display_path(missing.parent, project)}: {suggest_name(missing.name, names)}"


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@contextmanager
def locate_errors(path: Path, project: Path, prefix: str = "") -> Iterator[None]:
    """Add file and line to an error that names a field (below `prefix`) of the file at `path`."""
    try:
        yield
    except BackfillError as error:
        if error.field and not error.faults:
            error.field = prefix + error.field
            _add_location(error, path, project)
        raise


def _add_location(error: BackfillError, path: Path, project: Path) -> None:
    try:
        document = yaml_lines.load_yaml(path, display_path(path, project))
    except ConfigError:
        return  # the file went away or broke meanwhile; the error itself still says what is wrong
    fault = document.fault(_field_path(error.field), error.problem, error.fix)
    error.faults = (fault,)
    error.problem = problem_with_faults(f"{document.file} has 1 fault", error.faults)


def _field_path(field: str) -> FieldPath:
    return tuple(int(index) if index else name for name, index in _STEP.findall(field))


#: A name that may become part of a path.
_FILE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class NamedFiles(Generic[Model]):
    """A folder of declarations of one kind: `catalog/sources/NAME.yaml`.

    `field` holds the name in a file; `command` is tried with a name, `{}`; `rename` mends a name.
    """

    folder: Path
    model: type[Model]
    rules: Callable[[YamlDocument], Iterator[Fault]]
    kind: str
    field: str
    command: str
    page: str
    rename: str

    def names(self, project: Path) -> tuple[str, ...]:
        """List the declarations that have a file."""
        return tuple(sorted(path.stem for path in (project / self.folder).glob("*.yaml")))

    def find(self, project: Path, name: str) -> Model:
        """Load one; raises NotFound with the known names, ConfigError with all faults."""
        known = self.names(project)
        # The name becomes part of a path, so it is checked before a path is made of it.
        if not _FILE_NAME.fullmatch(name) or name not in known:
            near = closest_name(name, known)
            raise NotFound(
                f"there is no {self.kind} {name!r} in {self.folder.as_posix()}; "
                f"{suggest_name(name, list(known))}",
                fix=self.command.format(near)
                if near
                else f"declare it in {self.folder.as_posix()}/{name}.yaml: see {self.page}",
            )
        path = project / self.folder / f"{name}.yaml"
        declared = load_model(self.model, path, project, self.rules)
        if (own := getattr(declared, self.field)) != name:
            file = display_path(path, project)
            document = yaml_lines.load_yaml(path, file)
            problem = f"is {own}, but the file is called {name}.yaml"
            raise_faults(file, [document.fault((self.field,), problem, self.rename)])
        return declared
