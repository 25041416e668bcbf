"""Which rows of an input a set of target partitions needs."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.manifest import InputRange
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.scope import RowRange, Scope

_MIDNIGHT = time(0, tzinfo=timezone.utc)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)


def to_utc_instant(value: date | datetime) -> datetime:
    """Give the UTC instant of a day's start or of a moment (naive moments are UTC)."""
    if not isinstance(value, datetime):
        value = datetime.combine(value, time())
    return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value


def needed_window(pin: SourcePin, scope: Scope) -> tuple[datetime, datetime] | None:
    """Give the half-open instants that `scope` needs of a source, warm-up and cool-down included.

    None when the scope has no time order (then the whole declared range is read).
    """
    rows = [partitions.partition_row_range(scope.field, label) for label in scope.partitions]
    if any(row.lower is None or row.upper is None for row in rows):
        return None
    lowest = min(_bound_instant(row, "lower") for row in rows)
    highest = max(_bound_instant(row, "upper") for row in rows)
    before, after = timedelta(days=pin.warm_up_days), timedelta(days=pin.cool_down_days)
    return _shift_clamped(lowest, -before), _shift_clamped(highest, after)


def _shift_clamped(moment: datetime, by: timedelta) -> datetime:
    """Add a time span; the calendar ends with the years 1 and 9999, and so does what is read."""
    try:
        return moment + by
    except OverflowError:
        return _FIRST if by < timedelta() else _LAST


def range_covers_window(declared: InputRange, window: tuple[datetime, datetime] | None) -> bool:
    """Tell whether the declared range holds the whole window."""
    if window is None:
        return True
    return to_utc_instant(declared.from_) <= window[0] and window[1] <= to_utc_instant(declared.to)


def window_to_read(pin: SourcePin, scope: Scope) -> tuple[datetime, datetime]:
    """Give the instants to read of a source for `scope`, clipped to the declared range."""
    if pin.range is None:
        raise ValueError(f"reference {pin.name} is read whole")
    first, last = to_utc_instant(pin.range.from_), to_utc_instant(pin.range.to)
    window = needed_window(pin, scope)
    if window is None:
        return first, last
    return max(first, window[0]), min(last, window[1])


def _bound_instant(row: RowRange, side: str) -> datetime:
    value = row.lower if side == "lower" else row.upper
    if not isinstance(value, date):
        raise TypeError(f"{value!r} is no time")
    return to_utc_instant(value)


#: Iceberg types of columns by which an input can be cut
TIME_TYPES = ("date", "timestamp", "timestamptz")


def window_row_ranges(
    column_type: str, column: str, first: datetime, last: datetime
) -> tuple[RowRange, ...]:
    """Give the half-open instants as values of the column's type."""
    if column_type == "date":
        stop = last.date() + timedelta(days=1) if last.timetz() != _MIDNIGHT else last.date()
        return (RowRange(column, lower=first.date(), upper=stop),)
    if column_type == "timestamp":
        return (RowRange(column, first.replace(tzinfo=None), last.replace(tzinfo=None)),)
    return (RowRange(column, first, last),)
