"""Errors that only show when a plan is made, with the line of the declaration that is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakehouse_backfill.config import places, yaml_lines
from lakehouse_backfill.config.yaml_lines import FieldPath
from lakehouse_backfill.errors import BackfillError, ConfigError, problem_with_faults

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
        document = yaml_lines.load_yaml(path, places.display_path(path, project))
    except ConfigError:
        return  # the file went away or broke meanwhile; the error itself still says what is wrong
    fault = document.fault(_field_path(error.field), error.problem, error.fix)
    error.faults = (fault,)
    error.problem = problem_with_faults(f"{document.file} has 1 fault", error.faults)


def _field_path(field: str) -> FieldPath:
    return tuple(int(index) if index else name for name, index in _STEP.findall(field))
