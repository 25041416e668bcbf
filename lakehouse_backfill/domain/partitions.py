"""Scopes, chunks and partition labels, and the row ranges that labels stand for.

A partition is named by its label: the canonical text of the value of *one* partition field (the
scoped field), e.g. `2013-02-15`, `2013-02-15T07`, `2013-02`, `EU`, `null`. Labels are stored and
shown; `partition_row_range` turns them into row ranges. Day and hour transforms are UTC (Iceberg
spec, partition transforms).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Literal

from lakehouse_backfill.domain.serialization import Value
from lakehouse_backfill.errors import ConfigError, attach_error_field

Bound = date | datetime | int | str
PartitionTransform = Literal["identity", "hour", "day", "month", "year"]
ColumnType = Literal["date", "timestamp", "timestamptz", "int", "long", "string"]
NULL_LABEL = "null"
#: The label of the partition of a text column whose value is the text `null`.
NULL_TEXT_LABEL = "=null"


class ScopeField(Value):
    """The partition field that scopes a run: a source column and Iceberg's transform of it."""

    column: str
    transform: PartitionTransform
    type: ColumnType


class Scope(Value):
    """The partitions that a run may change, in ascending order; never empty."""

    field: ScopeField
    partitions: tuple[str, ...]


class Chunk(Value):
    """A group of partitions that is computed and committed together."""

    chunk_id: str
    partitions: tuple[str, ...]


@dataclass(frozen=True)
class RowRange:
    """Rows of one column: `lower <= column < upper`, or `column = equals`, or `column IS NULL`.

    `lower`/`upper` may be None for an open side. Instants are timezone-aware UTC for `timestamptz`
    columns and naive for `timestamp` columns.
    """

    column: str
    lower: Bound | None = None
    upper: Bound | None = None
    equals: Bound | None = None
    is_null: bool = False


MAX_PARTITIONS = 100_000
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXAMPLES = {
    "year": "2013",
    "month": "2013-02",
    "day": "2013-02-15",
    "hour": "2013-02-15T06:00:00Z",
}


def partition_label(field: ScopeField, value: Bound | None) -> str:
    """Return the label of the partition that holds rows whose column is `value`."""
    if value is None:
        return NULL_LABEL
    if field.type == "string":
        return f"={value}" if str(value) == NULL_LABEL or str(value).startswith("=") else str(value)
    if field.type in ("int", "long"):
        return str(int(str(value)))
    if field.transform == "identity" and field.type == "date":
        return as_date(value).isoformat()
    return _time_label(field, value)


def partition_start(transform: str, column_type: str, stored: Any) -> Bound:
    """Return the first value that a partition holds, from its stored value as Iceberg defines it.

    Times are stored as the years, months, days, hours or microseconds since 1970.
    """
    if transform == "hour":
        return _UNIX_EPOCH + timedelta(hours=stored)
    if transform == "month":
        return date(1970 + stored // 12, stored % 12 + 1, 1)
    if transform == "year":
        return date(1970 + stored, 1, 1)
    if transform == "day" or column_type == "date":
        return (_UNIX_EPOCH + timedelta(days=stored)).date()
    if column_type in ("timestamp", "timestamptz"):
        return _UNIX_EPOCH + timedelta(microseconds=stored)
    return stored if isinstance(stored, int) else str(stored)


def whole_partition_label(field: ScopeField, value: Bound | None) -> str:
    """Return the label of the partition that `value` names, as `partition_label` does.

    Raises ConfigError when `value` is no value of the column, or an instant inside a partition. A
    run changes whole partitions, so naming a part of one would change more than was requested.
    """
    with _reporting_bad_value(field, value):
        label = partition_label(field, value)
        is_whole = value is None or not _is_timed(field)
        is_exact = is_whole or (value is not None and _start(field, label) == as_instant(value))
    if not is_exact:
        raise _inside_partition_error(field, value, label)
    return label


def partition_row_range(field: ScopeField, label: str) -> RowRange:
    """Return the rows of a partition; raise ValueError when `label` is no label of `field`."""
    column = field.column
    if label == NULL_LABEL:
        return RowRange(column, is_null=True)
    if field.type == "string":
        return RowRange(column, equals=label[1:] if label.startswith("=") else label)
    if field.type in ("int", "long"):
        return RowRange(column, equals=int(label))
    if field.transform == "identity" and field.type != "date":
        return RowRange(column, equals=_as_column_value(field, datetime.fromisoformat(label)))
    lower, after = _start(field, label), shift_label(field, label, 1)
    upper = None if after is None else _as_column_value(field, _start(field, after))
    return RowRange(column, lower=_as_column_value(field, lower), upper=upper)


def shift_label(field: ScopeField, label: str, steps: int) -> str | None:
    """Return the label `steps` partitions later (or earlier).

    None without an order, and outside of the years 1 to 9999 (9999-12-31 means "no end").
    """
    if label == NULL_LABEL or field.type == "string":
        return None
    if field.type in ("int", "long"):
        return str(int(label) + steps)
    if field.transform == "identity" and field.type != "date":
        return None
    try:
        return _label(field, _step(field, _start(field, label), steps))
    except (OverflowError, ValueError):
        return None


def labels_between(field: ScopeField, first: Bound, stop: Bound) -> Iterator[str]:
    """Yield the labels of `[first, stop)`; raise ConfigError when a bound splits a partition."""
    if field.type == "string" or (field.transform == "identity" and "timestamp" in field.type):
        raise ConfigError(
            f"partitions of {field.column} have no order, so no range",
            fix="name them in target.partitions.values",
        )
    with attach_error_field("target.partitions.from"):
        label = _aligned(field, first)
    with attach_error_field("target.partitions.to"):
        end = _aligned(field, stop)
    key = label_sort_key(field)
    if key(label) >= key(end):
        raise ConfigError(
            f"the range from {first} to {stop} holds no partition",
            fix="write a later `to`: it is the first partition that is not restated",
            field="target.partitions.to",
        )
    count = 0
    while key(label) < key(end):
        yield label
        count += 1
        if count > MAX_PARTITIONS:
            raise ConfigError(
                f"the range of {field.column} holds more than {MAX_PARTITIONS} partitions",
                fix="split the restatement into several runs",
            )
        label = shift_label(field, label, 1) or end


def scope_row_ranges(scope: Scope) -> tuple[RowRange, ...]:
    """Return the rows of the scope in as few ranges as possible: neighbours are merged."""
    merged: list[RowRange] = []
    for label in sorted(scope.partitions, key=label_sort_key(scope.field)):
        rows = partition_row_range(scope.field, label)
        last = merged[-1] if merged else None
        if last and rows.lower is not None and last.upper == rows.lower:
            merged[-1] = RowRange(rows.column, lower=last.lower, upper=rows.upper)
        else:
            merged.append(rows)
    return tuple(merged)


def label_sort_key(field: ScopeField):  # type: ignore[no-untyped-def]  # noqa: ANN201 (a plain key)
    """Return the sort key of labels: numbers by value, times and texts as text, null first."""

    def key(label: str) -> tuple[int, int, str]:
        if label == NULL_LABEL:
            return (0, 0, "")
        if field.type in ("int", "long"):
            return (1, int(label), "")
        return (1, 0, label)

    return key


def labels_within(field: ScopeField, coarse: ScopeField, label: str) -> list[str]:
    """List the labels of `field` inside the partition `label` of a coarser unit, in order."""
    whole = partition_row_range(coarse, label)
    first = partition_label(field, whole.lower)
    labels: list[str] = []
    current: str | None = first
    while current is not None:
        rows = partition_row_range(field, current)
        if whole.upper is not None and rows.lower is not None and not rows.lower < whole.upper:  # type: ignore[operator]
            break
        labels.append(current)
        current = shift_label(field, current, 1)
    return labels


def describe_labels(labels: tuple[str, ...], limit: int = 3) -> str:
    """Return the labels as text for people: `45 partitions, 2013-02-15 to 2013-03-31`."""
    if len(labels) <= limit:
        return ", ".join(labels) or "no partition"
    return f"{len(labels)} partitions, {labels[0]} to {labels[-1]}"


def _aligned(field: ScopeField, value: Bound) -> str:
    with _reporting_bad_value(field, value):
        if field.type in ("int", "long"):
            return str(int(str(value)))
        label = _time_label(field, value)
        is_exact = _start(field, label) == as_instant(value)
    if not is_exact:
        raise _inside_partition_error(field, value, label)
    return label


@contextmanager
def _reporting_bad_value(field: ScopeField, value: Bound | None) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        example = "42" if field.type in ("int", "long") else _EXAMPLES[_unit(field)]
        unquoted = "write null, without quotes, for the partition of rows without a value"
        raise ConfigError(
            f"{value!r} is no value of {field.column}, which is {field.type}",
            fix=unquoted if value == NULL_LABEL else f"write e.g. {example}",
        ) from error


def _inside_partition_error(field: ScopeField, value: Bound | None, label: str) -> ConfigError:
    return ConfigError(
        f"{value} lies inside partition {label} of {field.transform}({field.column})",
        fix=f"use {label} or {shift_label(field, label, 1)}",
    )


def _is_timed(field: ScopeField) -> bool:
    """Return whether partitions are spans of time, with a comparable start."""
    if field.type in ("string", "int", "long"):
        return False
    return field.transform != "identity" or field.type == "date"


def _time_label(field: ScopeField, value: Bound) -> str:
    return _label(field, as_instant(value))


def _unit(field: ScopeField) -> str:
    return "day" if field.transform == "identity" else field.transform


def _label(field: ScopeField, moment: datetime) -> str:
    formats = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
    if field.transform == "identity" and field.type != "date":
        return moment.isoformat()
    # strftime does not pad years.
    return moment.strftime(formats[_unit(field)].replace("%Y", f"{moment.year:04d}"))


def _start(field: ScopeField, label: str) -> datetime:
    return _start_of_unit(_unit(field), label)


@lru_cache(maxsize=4096)
def _start_of_unit(unit: str, label: str) -> datetime:
    formats = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
    return datetime.strptime(label, formats[unit]).replace(tzinfo=timezone.utc)


def _step(field: ScopeField, moment: datetime, steps: int) -> datetime:
    unit = _unit(field)
    if unit == "hour":
        return moment + timedelta(hours=steps)
    if unit == "day":
        return moment + timedelta(days=steps)
    months = moment.year * 12 + moment.month - 1 + steps * (12 if unit == "year" else 1)
    return moment.replace(year=months // 12, month=months % 12 + 1)


def as_instant(value: Bound) -> datetime:
    """Return the UTC instant of a moment, the start of a day, or a time label."""
    if isinstance(value, int | str):
        value = parse_time_label(str(value))
    if not isinstance(value, datetime):
        value = datetime.combine(as_date(value), datetime.min.time())
    if value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    return value.astimezone(timezone.utc)


def parse_time_label(text: str) -> datetime:
    """Parse an instant, or the label of a year, a month, a day or an hour; raise ValueError."""
    padded = text + {4: "-01-01", 7: "-01", 13: ":00"}.get(len(text), "")
    return datetime.fromisoformat(padded.replace("Z", "+00:00"))


def as_date(value: Any) -> date:
    """Return the day of a date, an instant or an ISO text."""
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(str(value))


def _as_column_value(field: ScopeField, moment: datetime) -> Bound:
    if field.type == "date":
        return moment.date()
    if field.type == "timestamp":
        return moment.replace(tzinfo=None)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
