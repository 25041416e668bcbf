"""Values by which rows are named: read from a manifest as their columns hold them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timezone
from decimal import Decimal
from functools import partial
from typing import Any

from lakehouse_backfill.domain.labels.values import (
    NamedRange,
    example_of,
    is_beyond,
    scale_of,
    value_text,
)
from lakehouse_backfill.errors import ConfigError

#: A value of the column's own type.
NamedValue = bool | date | datetime | int | str | Decimal | None
_ORDERED = ("int", "long", "date", "timestamp", "timestamptz")


def is_ordered(kind: str) -> bool:
    """Return whether all readers order values of the type in the same way."""
    return kind in _ORDERED or scale_of(kind) is not None


def names_rows(kind: str) -> bool:
    """Return whether a value of the type has one text, so that a manifest can name it."""
    return _value_form(kind) is not None


def typed_range(name: str, kind: str, first: object, stop: object) -> NamedRange:
    """Return the values of an ordered type from `first` to before `stop`; a day is its start, UTC.

    Raises ConfigError for what is no value of the column, and where nothing is between the two.
    """
    start, end = (typed_end(name, kind, one) for one in (first, stop))
    if start is None or end is None or not start < end:  # type: ignore[operator]
        raise ConfigError(
            f"from {first} to {stop} names no value of {name}",
            fix="write a later `to`: it is the first value that is not named any more",
        )
    return NamedRange(start, end)


def typed_end(name: str, kind: str, value: object) -> NamedValue:
    """Return an end of a range as `typed_value` does; a day is its start, UTC."""
    return typed_value(name, kind, _instant_of(kind, value))


def typed_value(name: str, kind: str, value: object) -> NamedValue:
    """Return the value as one of the column's type; stored manifests hold dates as text.

    Raises ConfigError when the column cannot hold it.
    """
    form = _value_form(kind)
    if form is None:
        raise ValueError(f"rows are not named by values of type {kind}")
    parse, example = form
    try:
        return None if value is None else parse(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{value!r} is no value of {name}, which is of type {kind}", fix=f"write {example}"
        ) from error


def _instant_of(kind: str, value: object) -> object:
    if kind not in ("timestamp", "timestamptz") or isinstance(value, datetime):
        return value
    day = value if isinstance(value, date) else None
    if isinstance(value, str) and len(value) == len("2013-02-15"):
        with suppress(ValueError):
            day = date.fromisoformat(value)
    zone = timezone.utc if kind == "timestamptz" else None
    return value if day is None else datetime.combine(day, time.min, zone)


def _only(kind: type[Any]) -> Callable[[object], Any]:
    """Return a parser that takes values of one type as they are; a boolean is no number."""

    def parse(value: object) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(value)
        return value

    return parse


def _parse_number(value: object, *, kind: str) -> int:
    """Parse a whole number; readers may take one beyond the column's type for the largest of it."""
    found: int = _only(int)(value)
    if is_beyond(kind, found):
        raise ValueError(value)
    return found


def _parse_decimal(value: object, *, kind: str) -> Decimal:
    """Parse a number with all digits of the column's scale, as labels of partitions have them."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    found = Decimal(value_text(kind, value))
    if is_beyond(kind, found):
        raise ValueError(value)
    return found


def _parse_date(value: object) -> date:
    if isinstance(value, datetime) or not isinstance(value, date | str):
        raise TypeError(value)
    return value if isinstance(value, date) else date.fromisoformat(value)


def _parse_timestamp(value: object, *, has_zone: bool) -> datetime:
    """Parse an instant with its offset, or a time in no time zone; Iceberg keeps them apart."""
    text = value if isinstance(value, datetime) else _only(str)(value).replace("Z", "+00:00")
    found = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    if (found.tzinfo is not None) is not has_zone:
        raise ValueError(value)
    return found.astimezone(timezone.utc) if has_zone else found


_ValueForm = tuple[Callable[[object], NamedValue], str]
#: Types whose values have one text, so that a value in a file means one value in a table: how the
#: value is parsed, and an example.
_VALUES: dict[str, _ValueForm] = {
    "string": (_only(str), 'text (quote it), e.g. "A"'),
    "int": (partial(_parse_number, kind="int"), "a whole number of at most 32 bits"),
    "long": (partial(_parse_number, kind="long"), "a whole number of at most 64 bits"),
    "boolean": (_only(bool), "true or false"),
    "date": (_parse_date, "a day, e.g. 2013-02-15"),
    "timestamp": (
        partial(_parse_timestamp, has_zone=False),
        "an instant without offset, e.g. 2013-02-15T06:00:00",
    ),
    "timestamptz": (
        partial(_parse_timestamp, has_zone=True),
        "an instant with its offset, e.g. 2013-02-15T06:00:00Z",
    ),
}


def _value_form(kind: str) -> _ValueForm | None:
    """Return how a value of a type is parsed, and an example; None: it has more than one text."""
    if scale_of(kind) is None:
        return _VALUES.get(kind)
    return partial(_parse_decimal, kind=kind), f"a number of type {kind}, e.g. {example_of(kind)}"
