"""The one JSON object of `--json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TextIO

from lakehouse_backfill.errors import (
    BackfillError,
    ConfigError,
)

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
