"""Writes docs/api.md from the signatures and docstrings of `Project` and its results.

Run it after a change of either: `.venv/bin/python -m tools.write_api_reference`. A test compares
the page with what it would write.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from lakehouse_backfill import errors
from lakehouse_backfill.project import Project
from lakehouse_backfill.results import base, comparison, origins, plans, proof, publications, runs

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
_MODULES = (base, plans, runs, comparison, publications, proof, origins)
_HEAD = """\
# Python API

Written by `tools/write_api_reference.py` from signatures and docstrings; do not edit it.

`Project` has one method for each command. Each returns an immutable result: its fields are those
of `--json`, `to_dict()` gives them as plain JSON types, and `error()` gives the error with which
the command would end, or None. `PlanResult`, `DiffResult` and `StatusResult` draw themselves in a
notebook.

```python
from lakehouse_backfill import Project

project = Project.open(".")
plan = project.plan("jobs/arrivals/run.yaml", dry_run=True)
print(plan.run_id, plan.estimate.input_rows)
```
"""


def make_page() -> str:
    """Return the text of the page."""
    return "\n".join((_HEAD, *_methods(), *_results(), *_errors()))


def _methods() -> Iterator[str]:
    yield "## Methods of `Project`\n"
    for name, member in vars(Project).items():
        if name.startswith("_"):
            continue
        method = member.__func__ if isinstance(member, staticmethod) else member
        if not inspect.isfunction(method):
            continue
        yield f"### `{name}`\n"
        yield f"```python\n{_signature(name, method)}\n```\n"
        yield f"{inspect.getdoc(method)}\n"


def _signature(name: str, method: object) -> str:
    found = inspect.signature(method)  # type: ignore[arg-type]
    names = [one for one in found.parameters.values() if one.name != "self"]
    kept = str(found.replace(parameters=names))
    # Annotations are texts: their quotes say nothing to a reader.
    plain = re.sub(r"'([^']*)'", lambda match: match[1], _without_defaults_quoted(kept))
    return _without_modules(f"{name}{plain}")


def _without_modules(text: str) -> str:
    """Leave out the modules of classes, which say nothing to a reader."""
    return re.sub(r"\b[a-z_]+\.(?=[A-Z])", "", text)


def _without_defaults_quoted(text: str) -> str:
    """Write texts that are defaults with double quotes, so that only annotations have single."""
    return re.sub(r"= '([^']*)'", r'= "\1"', text)


def _results() -> Iterator[str]:
    yield "## Results\n"
    for module in _MODULES:
        for name, found in vars(module).items():
            if _is_public_class(module, name, found):
                yield f"### `{name}`\n"
                yield f"{_summary(found)}\n"
                yield from _fields(found)


def _is_public_class(module: ModuleType, name: str, found: object) -> bool:
    return (
        dataclasses.is_dataclass(found)
        and isinstance(found, type)
        and found.__module__ == module.__name__
        and not name.startswith("_")
    )


def _fields(found: type) -> Iterator[str]:
    lines = [
        f"- `{field.name}`: `{_without_modules(str(field.type))}`"
        + (", left out of JSON while it is None" if field.metadata else "")
        for field in dataclasses.fields(found)
    ]
    if lines:
        yield "\n".join(lines) + "\n"


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    yield "Each has `problem`, `state` (is my data safe), `fix`, and the exit code of a command.\n"
    lines = [
        f"- `{name}` ({found.exit_code}): {_summary(found)}"
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.BackfillError)
    ]
    yield "\n".join(lines) + "\n"


def _summary(found: type) -> str:
    return inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0]


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
