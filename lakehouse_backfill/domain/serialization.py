"""Base class and field types of stored values, JSON forms of cells, canonical JSON, digests."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from lakehouse_backfill.domain.labels import names

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
#: A column of a table, whatever its name holds; only characters that nobody sees are refused.
COLUMN_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]+$"
ColumnName = Annotated[str, StringConstraints(pattern=COLUMN_PATTERN, max_length=255)]
TableName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$", max_length=200
    ),
]
#: A table of the lake, whatever its name holds; the text that `names` writes for it.
TableText = Annotated[str, AfterValidator(names.normal_table_text)]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


_StoredText = TypeAdapter[Any](date | datetime | str)


def _keep_numeric_text(
    value: Any, parse: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> Any:
    """Keep texts that are no ISO time: in JSON, pydantic reads `"12"` as seconds since 1970."""
    if info.mode == "json" and isinstance(value, str):
        return _StoredText.validate_json(json.dumps(value)) if value[4:5] == "-" else value
    return parse(value)


#: Reads a text from JSON as the text that was written, unless it is an ISO date or instant.
KeepNumericText = WrapValidator(_keep_numeric_text)
PartitionValue = Annotated[date | datetime | int | str | None, KeepNumericText]
RunMode = Literal["live", "backfill", "replay", "dry_run", "reconciliation"]


def to_json_value(value: Any) -> Any:
    """Return `value` in a form that JSON can hold.

    Decimals and UUIDs become text, dates and times ISO text, bytes base64, NaN and infinities
    `"NaN"`, `"Infinity"`, `"-Infinity"`; lists, structs and maps are converted inside.
    """
    if isinstance(value, float):
        return _float_to_json(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, dict):
        return {str(name): to_json_value(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_value(inner) for inner in value]
    return value


def _float_to_json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value + 0.0  # -0.0 and 0.0 are the same value, so both become 0.0


def show_amount(value: Any) -> str:
    """Write a number, also one that is stored as text, with thousands separated."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return str(value)
    is_plain = number.is_finite() and not isinstance(value, bool)
    return f"{number:,f}" if is_plain else str(to_json_value(value))


def show_nested(value: Any) -> str:
    """Write a value as people read it: lists and objects without quotes, braces or brackets."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} ({show_nested(inner)})" if _is_deep(inner) else f"{name}={show_nested(inner)}"
            for name, inner in value.items()
        )
    if isinstance(value, (list, tuple)):
        return ("; " if _is_deep(value) else ", ").join(map(show_nested, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _is_deep(value: Any) -> bool:
    nested = (Mapping, list, tuple)
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and any(isinstance(inner, nested) for inner in value)
    )


class Value(BaseModel):
    """An immutable value with a strict field list and a JSON form."""

    # Models are built on first use, so a command pays only for the values that it handles.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


def added_later(default: Any, description: str, **bounds: Any) -> Any:
    """Declare a field added after values were stored; it is left out while it has its default.

    So the JSON and the hash of values that were stored before stay the same.
    """
    return Field(
        default, description=description, exclude_if=lambda value: value == default, **bounds
    )


def canonical_json(value: Any) -> str:
    """Return the one JSON text of `value`: sorted keys, no spaces, no NaN; dates as ISO text."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)


def digest(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
