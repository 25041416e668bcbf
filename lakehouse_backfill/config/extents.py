"""Half-open ranges as written: whether `to` comes after `from`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from typing import Any

from lakehouse_backfill.config.yaml_lines import FieldPath, YamlDocument
from lakehouse_backfill.errors import ConfigError, Fault

_TIME_LABEL = re.compile(r"\d{4}(-\d{2}(-\d{2}([T ]\d{2}(:\d{2}(:\d{2})?)?Z?)?)?)?")
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_KINDS = {"day or instant": "a day or an instant", "number": "a number", "text": "text"}


def range_order_faults(document: YamlDocument, path: FieldPath) -> Iterator[Fault]:
    """Yield the fault of a range whose ends are of two kinds, or whose `to` is not after `from`."""
    first, stop = document.get(*path, "from"), document.get(*path, "to")
    one, other = _comparable_end(first), _comparable_end(stop)
    if one is None or other is None:
        return
    if one[0] != other[0]:
        problem = f"is {_KINDS[other[0]]}, but from is {_KINDS[one[0]]}"
        yield document.fault((*path, "to"), problem, "write both in the same way")
    elif one[1] == other[1]:
        fix = "the range is half-open: write the first value that is not in it any more"
        yield document.fault((*path, "to"), f"equals from ({first}), so nothing is in it", fix)
    elif one[1] > other[1]:
        problem = f"is {stop}, before from ({first})"
        yield document.fault((*path, "to"), problem, f"swap them: from: {stop}, to: {first}")


def _comparable_end(value: Any) -> tuple[str, Any] | None:
    """What kind of end it is, and a value to compare; None when there is none to compare."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return ("day or instant", moment.astimezone(timezone.utc).isoformat())
    if isinstance(value, date):
        return ("day or instant", f"{value.isoformat()}T00:00:00+00:00")
    if isinstance(value, str) and _TIME_LABEL.fullmatch(value):
        return ("day or instant", value)  # 2013-02 < 2013-02-15 < 2013-03: text order is time order
    return None


def shift_day(day: date, by: timedelta) -> date:
    """Add a time span; the calendar ends with the years 1 and 9999."""
    try:
        return day + by
    except OverflowError:
        return date.min if by < timedelta() else date.max


def check_range(column_type: str, first: str, stop: str) -> None:
    """Raise ConfigError when the ends of a half-open range are reversed, or no such values.

    Texts are left alone: their partitions are named by a list.
    """
    is_number = column_type in ("int", "long")
    if not is_number and column_type not in ("date", "timestamp", "timestamptz"):
        return
    is_value, kind, example = (
        (_is_number, "whole number", "42")
        if is_number
        else (_is_time_label, "day, month, year or instant", "2026-01-31")
    )
    for option, text in (("--from", first), ("--to", stop)):
        if not is_value(text):
            raise ConfigError(
                f"{option} is {text!r}, which is no {kind}",
                state="nothing was written",
                fix=f"write e.g. {option} {example}",
            )
    # The order of times is that of their texts.
    if (int(first) >= int(stop)) if is_number else (first >= stop):
        raise ConfigError(
            f"the range from {first} to {stop} holds nothing: --to is the first partition that is "
            "not restated",
            state="nothing was written",
            fix="write a later --to" if first == stop else f"write --from {stop} --to {first}",
        )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _is_time_label(text: str) -> bool:
    """Tell whether the text is a year, month, day or instant that the calendar has."""
    if not _TIME_LABEL.fullmatch(text):
        return False
    padded = text.removesuffix("Z") + {4: "-01-01", 7: "-01", 13: ":00"}.get(
        len(text.removesuffix("Z")), ""
    )
    try:
        datetime.fromisoformat(padded)
    except ValueError:
        return False
    return True
