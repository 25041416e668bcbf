"""What part of a run's time its suites took: they may cost more than all that they judge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from lakehouse_backfill.domain.run import Event

_ENDS = ("pass validation", "fail validation")


class ValidationTiming(NamedTuple):
    """Seconds of one validation, of the suites in it, and of all that the run computed."""

    validate_s: float
    suites_s: float
    run_s: float

    @property
    def share(self) -> float | None:
        """The suites' share of the run's time; None where no time passed."""
        return round(self.suites_s / self.run_s, 4) if self.run_s else None

    @property
    def plain(self) -> dict[str, float | None]:
        """The form in which the run's log and the CLI hold it."""
        return {**self._asdict(), "suites_share": self.share}

    @property
    def text(self) -> str:
        """Say it in a sentence."""
        share = "" if self.share is None else f", {self.share:.0%} of the run's {self.run_s:.1f} s"
        return f"Great Expectations took {self.suites_s:.1f} s of {self.validate_s:.1f} s{share}"


def newest_validation_timing(events: Iterable[Event]) -> ValidationTiming | None:
    """Give what the newest validation took; None before, and for runs that did not note it."""
    for event in sorted(events, key=lambda each: -each.seq):
        if event.verb in _ENDS:
            said: dict[str, Any] | None = event.detail.get("spent")
            return (
                ValidationTiming(*(said[name] for name in ValidationTiming._fields))
                if said
                else None
            )
    return None
