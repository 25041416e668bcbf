"""Instants and days of values and labels, in UTC, within the calendar: years 1 to 9999."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any, Final

from lakehouse_backfill.domain.labels.values import Bound

FIRST_INSTANT: Final = datetime.min.replace(tzinfo=timezone.utc)
LAST_INSTANT: Final = datetime.max.replace(tzinfo=timezone.utc)


def as_instant(value: Bound) -> datetime:
    """Return the UTC instant of a moment, the start of a day, or a time label.

    A moment without an offset is in UTC. What UTC puts beyond the calendar is its first or last
    instant.
    """
    if isinstance(value, int | str):
        value = parse_time_label(str(value))
    if not isinstance(value, datetime):
        value = datetime.combine(as_date(value), datetime.min.time())
    if value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        return FIRST_INSTANT if value.year == FIRST_INSTANT.year else LAST_INSTANT


def shift_instant(moment: datetime, by: timedelta) -> datetime:
    """Add a time span; beyond the calendar, return its first or last instant."""
    try:
        return moment + by
    except OverflowError:
        return FIRST_INSTANT if by < timedelta() else LAST_INSTANT


def parse_time_label(text: str) -> datetime:
    """Parse an instant, or the label of a year, a month, a day or an hour; raise ValueError."""
    padded = text + {4: "-01-01", 7: "-01", 13: ":00"}.get(len(text), "")
    return datetime.fromisoformat(padded.replace("Z", "+00:00"))


def as_date(value: Any) -> date:
    """Return the day of a date, an instant or an ISO text."""
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(str(value))
