"""The base of all results: fields, their JSON form, and the error that a result stands for.

HTML of results for notebooks: tables and small bars; Jinja2 escapes every text in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    from jinja2 import Template
    from typing_extensions import Self

    from lakehouse_backfill.domain.comparison.diff import PartitionDiff
    from lakehouse_backfill.errors import BackfillError
    from lakehouse_backfill.results.comparison import DiffResult
    from lakehouse_backfill.results.plans import PlanResult
    from lakehouse_backfill.results.runs import StatusResult

_OMITTED = {"omitted": True}
#: Fields whose texts hold commands to type.
_COMMAND_FIELDS = frozenset(
    {
        "command", "fix", "next", "next_command", "note_command", "notes", "result", "undo",
        "warnings", "why_not",
    }
)  # fmt: skip


def optional() -> Any:
    """Declare a field that the JSON form leaves out while it is None."""
    return field(default=None, metadata=_OMITTED)


def to_plain(value: Any) -> Any:
    """Return the form of a value that JSON can hold."""
    if isinstance(value, Record):
        return value.to_dict()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, tuple | list) else value


def complete_commands(value: Any, complete: Callable[[str], str]) -> Any:
    """Return a result whose commands are completed, also those of its parts."""
    if isinstance(value, tuple):
        parts = tuple(complete_commands(each, complete) for each in value)
        return (
            parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
        )
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for each in fields(value):
        old = getattr(value, each.name)
        new = (
            _complete_texts(old, complete)
            if each.name in _COMMAND_FIELDS
            else complete_commands(old, complete)
        )
        if new is not old:
            changed[each.name] = new
    return replace(value, **changed) if changed else value


def _complete_texts(value: Any, complete: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        text = complete(value)
        return value if text == value else text
    if isinstance(value, tuple):
        texts = tuple(_complete_texts(each, complete) for each in value)
        return value if texts == value else texts
    return complete_commands(value, complete)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Record:
    """A part of a result: named fields, and their JSON form.

    Each class below it is a dataclass that cannot be changed.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def from_fields(cls, source: object, **others: Any) -> Self:
        """Take the fields of the same names from `source`, except `others`."""
        names = (each.name for each in fields(cls) if each.name not in others)
        return cls(
            **{name: getattr(source, name) for name in names if hasattr(source, name)}, **others
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types; an optional field without a value is left out."""
        return {
            each.name: to_plain(value)
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None or not each.metadata
        }


class Result(Record):
    """What a method of `Project` returns.

    `report` is the path of the evidence page that the method wrote, `warnings` are sentences for
    people.
    """

    report: str | None = optional()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types: the `data` of `--json`, and `warnings`."""
        data = super().to_dict()
        last = {name: data.pop(name) for name in ("report", "warnings") if data.get(name)}
        data.pop("warnings", None)
        return data | last

    def error(self) -> BackfillError | None:
        """Return the error that the result stands for, such as closed gates; None if all is well.

        The command line prints it and exits with its code.
        """
        return None


class RunResult(Result):
    """The result of a method that works on one run: `state` is where the run stands after it."""

    run_id: str
    product: str
    state: str
    next_command: str | None = optional()


#: More rows than this are counted below the table, not drawn.
MAX_ROWS = 50
#: Blue, orange and grey: told apart by people who do not see red and green apart.
_COLOURS = {"added": "#2b6cb0", "removed": "#c05621", "changed": "#718096"}
_BAR_WIDTH = 240


def plan_html(plan: PlanResult) -> str:
    """Draw a plan: what it changes, the pinned snapshots, open questions and notes."""
    return _template("plan.html").render(plan=plan)


def diff_html(diff: DiffResult) -> str:
    """Draw a diff: the sums, a bar for each differing partition, changed columns and samples."""
    differing = [one for one in diff.partitions if _differing_rows(one)]
    most = max(map(_differing_rows, differing), default=1)
    return _template("diff.html").render(diff=diff, differing=differing, most=most)


def status_html(status: StatusResult) -> str:
    """Draw one run as the answers to three questions and its gates, several as a table."""
    return _template("status.html").render(runs=status.runs)


def _differing_rows(one: PartitionDiff) -> int:
    return one.added + one.removed + one.changed


@cache
def _template(name: str) -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("lakehouse_backfill.results"),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        finalize=lambda value: "\N{EN DASH}" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"max_rows": MAX_ROWS, "colours": _COLOURS, "bar_width": _BAR_WIDTH}
    environment.filters["thousands"] = "{:,}".format
    return environment.get_template(name)
