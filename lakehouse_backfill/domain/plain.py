"""Values of table cells as JSON can hold them, without losing what they say."""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID


def to_json_value(value: Any) -> Any:
    """Give `value` as JSON can hold it.

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
    return value + 0.0  # -0.0 and 0.0 are the same value, so they are shown alike
