"""The clock and identity of a run's driver."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in UTC."""

    def now(self) -> datetime:
        """The current instant, timezone-aware UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...
