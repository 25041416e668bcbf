"""Log fields as plain JSON values, without secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

HIDDEN = "[hidden]"
_SECRET_NAMES = re.compile(
    r"credential|passw(or)?d|passphrase|secret|token|api[-_.]?key|access[-_.]?key|private[-_.]?key|"
    r"authorization|signature",
    re.IGNORECASE,
)
#: `user:password@` of a URI, and the secret query fields of one.
_IN_URI = (
    re.compile(r"(?<=://)[^/\s@]*:[^/\s]*@"),
    re.compile(r"(?<=[?&;])((?:password|token|secret|sig|signature)=)[^&;\s]*", re.IGNORECASE),
)
MAX_TEXT = 4_000


def plain(value: Any) -> Any:
    """Give a value as JSON can hold it: secrets hidden, NaN and other odd values as text."""
    if isinstance(value, Mapping):
        return {str(key): _field(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return _text(str(value))


def _field(name: str, value: Any) -> Any:
    return HIDDEN if _SECRET_NAMES.search(name) and value is not None else plain(value)


def _text(text: str) -> str:
    for pattern in _IN_URI:
        text = pattern.sub(_hide, text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def _hide(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}" if found.re.groups else f"{HIDDEN}@"
