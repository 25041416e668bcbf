"""The base of every value that is written to the lake or to a file."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Value(BaseModel):
    """An immutable value with a strict field list and a JSON form."""

    # Built on first use: a command pays for the values that it handles, not for all of them.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


def added_later(default: Any, description: str, **bounds: Any) -> Any:
    """Declare a field that came after values were stored: it is left out while it has its default.

    So the JSON, and with it the hash, of a value that was stored before stays what it was.
    """
    return Field(
        default, description=description, exclude_if=lambda value: value == default, **bounds
    )


def canonical_json(value: Any) -> str:
    """Give the one JSON text of `value`: sorted keys, no spaces, no NaN; dates as ISO text."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)


def digest(value: Any) -> str:
    """Give the SHA-256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
