"""The machine's clock."""

from __future__ import annotations

from datetime import datetime, timezone


class SystemClock:
    """Implements `ports.clock.Clock`."""

    def now(self) -> datetime:
        """The current instant, timezone-aware UTC."""
        return datetime.now(timezone.utc)
