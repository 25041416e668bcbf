"""Log fields as plain JSON values, without secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

HIDDEN_TEXT = "[hidden]"
_SECRET_NAMES = re.compile(
    r"credential|passw(or)?d|passphrase|secret|token|api[-_.]?key|access[-_.]?key|private[-_.]?key|"
    r"authorization|signature",
    re.IGNORECASE,
)
#: `user:password@` of a URI, and the secret query fields of one.
_URI_SECRETS = (
    re.compile(r"(?<=://)[^/\s@]*:[^/\s]*@"),
    re.compile(r"(?<=[?&;])((?:password|token|secret|sig|signature)=)[^&;\s]*", re.IGNORECASE),
)
MAX_TEXT_LENGTH = 4_000


def redact_value(value: Any) -> Any:
    """Give a value as JSON can hold it: secrets hidden, NaN and other odd values as text."""
    if isinstance(value, Mapping):
        return {str(key): _redact_field(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(inner) for inner in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return _redact_text(str(value))


def _redact_field(name: str, value: Any) -> Any:
    return HIDDEN_TEXT if _SECRET_NAMES.search(name) and value is not None else redact_value(value)


def _redact_text(text: str) -> str:
    for pattern in _URI_SECRETS:
        text = pattern.sub(_hide_match, text)
    return (
        text
        if len(text) <= MAX_TEXT_LENGTH
        else f"{text[:MAX_TEXT_LENGTH]}… ({len(text)} characters)"
    )


def _hide_match(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN_TEXT}" if found.re.groups else f"{HIDDEN_TEXT}@"
