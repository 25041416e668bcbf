"""The machine's clock."""

from __future__ import annotations

import time
from datetime import datetime, timezone


class SystemClock:
    """Implements `ports.clock.Clock`."""

    def now(self) -> datetime:
        """The current instant, timezone-aware UTC."""
        return datetime.now(timezone.utc)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)
