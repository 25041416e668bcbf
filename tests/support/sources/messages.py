"""A record of a topic as the client gives it, for tests without a broker."""

from __future__ import annotations

import json
from typing import Any


class ReadMessage:
    """A record of partition 0; key and value are bytes, None, or what becomes JSON."""

    def __init__(self, offset: int, key: Any, value: Any) -> None:
        self._offset = offset
        self._both = [
            one if one is None or isinstance(one, bytes) else json.dumps(one).encode()
            for one in (key, value)
        ]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_767_225_600_000

    def headers(self) -> None:
        return None

    def key(self) -> bytes | None:
        return self._both[0]

    def value(self) -> bytes | None:
        return self._both[1]
