"""YAML with line numbers, and nothing in it that surprises.

Three rules differ from PyYAML's defaults, because each default has changed somebody's data:
only `true` and `false` are booleans (else the country `NO` and the field `on` become booleans), a
number with a leading zero stays text (else `010` is 8), and a key that is written twice is refused
(else the first is lost). Anchors, aliases and tags are refused: a file of a few lines can stand for
gigabytes, or for a call of Python code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import yaml

from lakehouse_backfill.errors import ConfigError, Fault

MAX_BYTES = 1_000_000
#: The version of the format of all declarations that this release writes.
API_VERSION = "lakehouse-backfill/v1"
MAX_DEPTH = 40
FieldPath = tuple[str | int, ...]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's safe loader (the C one where it is built in) with YAML 1.2's plain scalars."""


_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    "int": (r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    "float": (
        r"^[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$",
        list("-+0123456789"),
    ),
    "timestamp": (
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?"
        r"(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?)?$",
        list("0123456789"),
    ),
}
_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), _first)


@dataclass(frozen=True)
class YamlDocument:
    """What a file says, and on which line each of its fields stands."""

    file: str
    data: dict[str, Any]
    lines: dict[FieldPath, int] = field(default_factory=dict)

    def line(self, path: FieldPath) -> int:
        """Return the line of the field, or of the nearest field around it that is written down."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def get(self, *path: str | int) -> Any:
        """Return the value at a path, or None when something on the way is absent."""
        found: Any = self.data
        for step in path:
            if isinstance(found, dict):
                found = found.get(step)
            elif isinstance(found, list) and isinstance(step, int):
                found = found[step] if step < len(found) else None
            else:
                return None
        return found

    def fault(self, path: FieldPath, problem: str, fix: str) -> Fault:
        """Make the fault of the field at `path`."""
        return Fault(self.file, self.line(path), dotted_path(path), problem, fix)


class Migration(NamedTuple):
    """How a declaration of one version of the format becomes one of the next version.

    `change` gets the fields of the file, and returns those of the next version; a field that keeps
    its path keeps its line.
    """

    old: str
    new: str
    change: Callable[[dict[str, Any]], dict[str, Any]]


#: From each version that was ever written, in order, to `API_VERSION`. There is one so far.
MIGRATIONS: tuple[Migration, ...] = ()


def upgrade_document(
    document: YamlDocument, migrations: Sequence[Migration] = MIGRATIONS, newest: str = API_VERSION
) -> YamlDocument:
    """Return a declaration in the newest version of the format; the file stays as it is.

    Raises ConfigError for a version that this release cannot read. A declaration without a version
    is returned unchanged: its reader says that the field is missing.
    """
    steps = {one.old: one for one in migrations}
    written = document.get("api_version")
    if not isinstance(written, str):
        return document
    while (version := document.get("api_version")) != newest:
        step = steps.get(str(version))
        if step is None:
            raise_faults(document.file, [_unknown_version_fault(document, written, newest)])
            return document
        data = {**step.change(dict(document.data)), "api_version": step.new}
        document = replace(document, data=data)
    return document


def _unknown_version_fault(document: YamlDocument, written: str, newest: str) -> Fault:
    family, _, number = newest.rpartition("/v")
    theirs = written.removeprefix(f"{family}/v")
    if theirs.isdigit() and int(theirs) > int(number):
        problem = f"is {written!r}, newer than this release reads"
        fix = f"upgrade lakehouse-backfill, or write the file for {newest}"
        return document.fault(("api_version",), problem, fix)
    problem = f"is {written!r}, which is no version of this format"
    return document.fault(("api_version",), problem, f"write one of: {newest}")


def dotted_path(path: FieldPath) -> str:
    """Write a path as people do: `target.partitions.values[2]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "(file)"


def raise_faults(file: str, faults: list[Fault]) -> None:
    """Raise ConfigError with all faults in the order of their lines; return if there is none."""
    if not faults:
        return
    ordered = tuple(sorted(faults, key=lambda fault: (fault.file, fault.line, fault.field)))
    count = "1 fault" if len(ordered) == 1 else f"{len(ordered)} faults"
    fix = f"correct the lines named above in {file}"
    raise ConfigError(f"{file} has {count}", faults=ordered, fix=fix)


def _single_fault_error(fault: Fault) -> ConfigError:
    fix = f"correct the line named above in {fault.file}"
    return ConfigError(f"{fault.file} has 1 fault", faults=(fault,), fix=fix)


#: Files of a folder that an error names.
_MAX_FILES = 5


def _describe_files_near(path: Path, file: str) -> str:
    """Name the YAML files where a missing one was looked for, the most alike first."""
    folder, shown = (path, file) if path.is_dir() else (path.parent, str(PurePath(file).parent))
    names = sorted(each.name for each in folder.glob("*.yaml"))
    near = get_close_matches(path.name, names, _MAX_FILES, 0.6) or names[:_MAX_FILES]
    found = ", ".join((PurePath(shown) / name).as_posix() for name in near)
    return f"; in this folder: {found}" if found else ""


def load_yaml(path: Path, shown_as: str | None = None) -> YamlDocument:
    """Read a YAML file with the line of every field.

    Raises ConfigError when it is absent, over 1 MB, not UTF-8, not YAML, or not a mapping.
    """
    file = shown_as or str(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        fix = f"check the path{_describe_files_near(path, file)}"
        raise ConfigError(f"{file} cannot be read: {reason}", fix=fix) from error
    if len(content) > MAX_BYTES:
        fix = "check the path: a declaration is a short text file"
        raise ConfigError(f"{file} is larger than 1 MB", fix=fix)
    try:
        return parse_yaml(content.decode("utf-8-sig"), file)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        fault = Fault(file, line, "(file)", "is not UTF-8 text", "save the file as UTF-8")
        raise _single_fault_error(fault) from error


def parse_yaml(text: str, file: str) -> YamlDocument:
    """Read YAML text; raises ConfigError with the lines of everything that is wrong."""
    faults: list[Fault] = []
    try:
        _check_events(text, file, faults)
        raise_faults(file, faults)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _single_fault_error(_syntax_fault(error, file)) from error
    if not isinstance(node, yaml.MappingNode):
        what = "is empty" if node is None else "does not start with a field"
        fix = "write `api_version: lakehouse-backfill/v1` as its first line"
        raise _single_fault_error(Fault(file, 1, "(file)", what, fix))
    lines: dict[FieldPath, int] = {(): 1}
    data = _NodeBuilder(file, lines, faults).build(node, ())
    raise_faults(file, faults)
    return YamlDocument(file, data, lines)


def _line_number(mark: object) -> int:
    return int(getattr(mark, "line", 0)) + 1


def _check_events(text: str, file: str, faults: list[Fault]) -> None:
    """Look at the events only: nothing is built yet, so nothing can blow up."""
    depth, documents = 0, 0
    for event in yaml.parse(text, Loader=_Loader):
        line = _line_number(event.start_mark)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            fix = "remove everything from the second `---` on"
            faults.append(Fault(file, line, "(file)", "holds more than one document", fix))
            return
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            problem = f"is nested deeper than {MAX_DEPTH} levels"
            faults.append(Fault(file, line, "(file)", problem, "no declaration needs that"))
            return
        faults.extend(_forbidden_faults(event, file, line))


def _forbidden_faults(event: yaml.Event, file: str, line: int) -> list[Fault]:
    found = []
    anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
    if isinstance(event, yaml.AliasEvent):
        problem = f"uses the alias *{anchor}"
        found.append(Fault(file, line, "(file)", problem, "write the value out"))
    elif anchor:
        problem = f"sets the anchor &{anchor}"
        found.append(Fault(file, line, "(file)", problem, "remove it, and write values out"))
    if tag not in (None, "!"):
        problem = f"uses the tag {tag}"
        found.append(Fault(file, line, "(file)", problem, "write a plain value"))
    return found


def _syntax_fault(error: yaml.YAMLError, file: str) -> Fault:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML")
    fix = "check indentation (spaces, no tabs), colons and quotes on this line and the one before"
    return Fault(file, _line_number(mark), "(file)", f"is not YAML: {problem}", fix)


@dataclass
class _NodeBuilder:
    """Turns nodes into plain values, and notes lines and faults on the way."""

    file: str
    lines: dict[FieldPath, int]
    faults: list[Fault]

    def build(self, node: yaml.Node, path: FieldPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: FieldPath) -> Any:
        self.lines[path] = _line_number(node.start_mark)
        return self.build(node, path)

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = _line_number(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                self._fault(line, path, "has a field name that is no text", "use a plain name")
                continue
            # The text as written: `on` and `2013-02-15` are names here, whatever they look like.
            name, inner = key.value, (*path, key.value)
            if name in found:
                problem = f"is written twice, first on line {self.lines[inner]}"
                self._fault(line, inner, problem, "keep one of them")
                continue
            self.lines[inner] = line
            found[name] = self.build(value, inner)
        return found

    def _scalar(self, node: yaml.Node, path: FieldPath) -> Any:
        kind = node.tag.removeprefix(_TAG)
        try:
            return _SCALAR_PARSERS.get(kind, str)(node.value)
        except (ValueError, OverflowError) as error:
            line = _line_number(node.start_mark)
            self._fault(line, path, f"is no {kind}: {error}", "correct it, or quote it as text")
            return None

    def _fault(self, line: int, path: FieldPath, problem: str, fix: str) -> None:
        self.faults.append(Fault(self.file, line, dotted_path(path), problem, fix))


def _parse_timestamp(text: str) -> date | datetime:
    if len(text) == len("2013-02-15"):
        return date.fromisoformat(text)
    loader = yaml.SafeLoader("")
    node = yaml.ScalarNode(_TAG + "timestamp", text)
    moment: date | datetime = loader.construct_yaml_timestamp(node)
    return moment


_SCALAR_PARSERS: dict[str, Any] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": float,
    "timestamp": _parse_timestamp,
}
