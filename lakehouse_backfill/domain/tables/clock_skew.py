"""How far this machine's clock is off from another one, and from where on nothing is committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from lakehouse_backfill.errors import WrongClock

#: What Iceberg's Java API tolerates between two commits of a table that are out of order
#: (`TableMetadata`, `ONE_MINUTE`).
TOLERANCE_S = 60


@dataclass(frozen=True)
class ClockSkew:
    """The same moment on two clocks, in seconds since 1970; known within `within_s`."""

    here_s: float
    there_s: float
    within_s: float
    #: What the other clock is of.
    whose: str

    @property
    def is_wrong(self) -> bool:
        """Return whether one of the clocks is certainly off by more than is tolerated."""
        return abs(self.here_s - self.there_s) - self.within_s > TOLERANCE_S

    def describe(self) -> str:
        """Describe the skew; with both times where it is too large."""
        ahead_s = self.here_s - self.there_s
        if not self.is_wrong:
            return (
                f"this machine's clock agrees with that of {self.whose}: off by {ahead_s:+.1f} s, "
                f"measured within {self.within_s:.1f} s"
            )
        word = "ahead of" if ahead_s > 0 else "behind"
        return (
            f"this machine's clock is {abs(ahead_s):,.0f} s {word} that of {self.whose}: "
            f"{_time_text(self.here_s)} here, {_time_text(self.there_s)} there"
        )

    def require_small(self) -> None:
        """Raise WrongClock when the clocks are too far apart."""
        if self.is_wrong:
            raise WrongClock(
                self.describe(),
                state="this commit was not made; what was committed before it stays",
                fix="set the wrong one of both clocks right (chronyc tracking, or timedatectl, "
                "tells whether this machine's is kept right), then repeat the same command",
            )


def _time_text(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"
