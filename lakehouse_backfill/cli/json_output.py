"""The one JSON object of `--json`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from lakehouse_backfill.errors import BackfillError, ConfigError, EnvironmentDown
from lakehouse_backfill.fault_points import describe_commits

Data = Mapping[str, Any]


def build_envelope(
    command: str, data: Data | None = None, error: BackfillError | None = None
) -> dict[str, Any]:
    """Make the object that `--json` prints; its fields are the CLI contract."""
    shown = dict(data or {})
    warnings = list(shown.pop("warnings", ()))
    return {
        "command": command,
        "ok": error is None,
        "exit_code": error.exit_code if error else 0,
        "data": shown,
        "warnings": warnings,
        "error": None if error is None else error_fields(error),
    }


def error_fields(error: BackfillError) -> dict[str, Any]:
    """Return the fields of an error; one about declarations also lists its faults."""
    fields: dict[str, Any] = {
        "code": error.code,
        "problem": error.problem,
        "state": error.state,
        "fix": error.fix,
    }
    if isinstance(error, ConfigError) or error.faults:
        fields["faults"] = [vars(fault) for fault in error.faults]
    if error.data:
        fields["data"] = error.data
    return fields


class OutputLost(EnvironmentDown):
    """The command has ended, and its result could not be written."""

    code = "output-lost"


@contextmanager
def output_to_stdout() -> Iterator[None]:
    """Translate a closed or full stdout into OutputLost; a reader that went away is no error."""
    if sys.stdout is None:
        raise _output_lost_error("stdout is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python flushes stdout again on exit and would complain: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _output_lost_error(f"stdout cannot be written: {error}") from error


def _output_lost_error(problem: str) -> OutputLost:
    return OutputLost(
        f"the command has ended, but its result is not shown: {problem}",
        state=describe_commits(),
        fix="lakehouse-backfill status, with a stdout that can be written",
    )


def write_json(value: Any, stream: TextIO) -> None:
    """Write one JSON object and a newline; numbers that JSON does not know become text."""
    text = json.dumps(_finite_values(value), ensure_ascii=False, allow_nan=False, default=str)
    stream.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    stream.flush()


def _finite_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
