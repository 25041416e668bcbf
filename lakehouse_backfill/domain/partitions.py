"""Scopes, chunks and partition labels, and the row ranges that labels stand for.

A partition is named by its label: the canonical text of the value of *one* partition field (the
scoped field), e.g. `2013-02-15`, `2013-02-15T07`, `2013-02`, `EU`, `null`. Labels are stored and
shown; `partition_row_range` turns them into row ranges. Day and hour transforms are UTC (Iceberg
spec, partition transforms). A whole table is one partition with one label (decision 19).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from pydantic import StringConstraints

from lakehouse_backfill.domain.labels import values as partition_values
from lakehouse_backfill.domain.labels.instants import as_date, as_instant
from lakehouse_backfill.domain.labels.key_ranges import KEY_RANGE, range_ends
from lakehouse_backfill.domain.labels.values import Bound
from lakehouse_backfill.domain.serialization import Value, added_later
from lakehouse_backfill.errors import ConfigError, attach_error_field

PartitionTransform = Annotated[
    str,
    StringConstraints(
        pattern=r"^(table|identity|hour|day|month|year|range|(bucket|truncate)\[\d+\])$"
    ),
]
ColumnType = Annotated[
    str,
    StringConstraints(
        pattern=r"^(date|timestamp|timestamptz|int|long|string|boolean|binary"
        r"|decimal\(\d+, ?\d+\))$"
    ),
]
NULL_LABEL = "null"
#: The label of the partition of a text column whose value is the text `null`.
NULL_TEXT_LABEL = "=null"
#: The transform, column and label of a scope that is a whole table.
WHOLE_TABLE, ANY_COLUMN, WHOLE_TABLE_LABEL = "table", "*", "all"


class ScopeField(Value):
    """The partition field that scopes a run: a source column and Iceberg's transform of it."""

    column: str
    transform: PartitionTransform
    type: ColumnType
    path: tuple[str, ...] = added_later(
        (), "Of a field of a struct: the names that lead to it, from the table's column on."
    )
    only: tuple[Scope, ...] = added_later(
        (), "Of each partition, only the files whose other partition fields have these values."
    )

    @property
    def root(self) -> str:
        """The column of the table that holds the values: the struct, for a field of one."""
        return self.path[0] if self.path else self.column

    @property
    def is_whole_table(self) -> bool:
        """Whether the scope is a whole table, whatever its partitions are."""
        return self.transform == WHOLE_TABLE

    @property
    def is_timed(self) -> bool:
        """Whether partitions are spans of time, with a start that can be compared."""
        if self.type not in partition_values.TIME_TYPES or self.has_no_order:
            return False
        return self.transform != "identity" or self.type == "date"

    @property
    def is_number(self) -> bool:
        """Whether partitions are single whole numbers, in their order."""
        return self.transform == "identity" and self.type in ("int", "long")

    @property
    def has_no_order(self) -> bool:
        """Whether no partition follows another: buckets, truncations, a whole table, key ranges."""
        is_whole_or_range = self.is_whole_table or self.transform == KEY_RANGE
        return is_whole_or_range or partition_values.width_of(self.transform) is not None

    @property
    def whole(self) -> ScopeField:
        """The field of whole partitions, whatever the values of the other partition fields."""
        return self.model_copy(update={"only": ()}) if self.only else self

    def __str__(self) -> str:
        name = "the whole table" if self.is_whole_table else f"{self.transform}({self.column})"
        others = (
            f"{one.field if one.field.has_no_order else one.field.column} = "
            f"{' or '.join(one.partitions)}"
            for one in self.only
        )
        return " with ".join([name, *([" and ".join(others)] if self.only else [])])


class Scope(Value):
    """The partitions that a run may change, in ascending order; never empty."""

    field: ScopeField
    partitions: tuple[str, ...]

    @property
    def whole(self) -> Scope:
        """The scope of whole partitions, whatever the values of the other partition fields."""
        return self.model_copy(update={"field": self.field.whole})


ScopeField.model_rebuild()
#: The scope of a run that may change every row of a table.
WHOLE_TABLE_FIELD = ScopeField(column=ANY_COLUMN, transform=WHOLE_TABLE, type="string")


class Chunk(Value):
    """A group of partitions, or a part of the rows of one, that is computed and committed together.

    A chunk with `keys` is finer than its partition: checks of partitions wait for all such chunks.
    """

    chunk_id: str
    partitions: tuple[str, ...]
    keys: Scope | None = added_later(
        None, "Of the partitions, only the rows in these buckets or ranges of a key column."
    )


@dataclass(frozen=True)
class RowRange:
    """Rows of one column: `lower <= column < upper`, or `column = equals`, or `column IS NULL`.

    `lower`/`upper` may be None for an open side. Instants are timezone-aware UTC for `timestamptz`
    columns and naive for `timestamp` columns. With `buckets`, `equals` is the number of a bucket
    out of so many. `is_everything`: all rows, whatever the column. `prefix`: the range is that of
    all texts that begin so. `path` leads to a field of a struct; `column` is its full name then.
    `only`: of these, the rows that are also in one of the ranges of each group.
    """

    column: str
    lower: Bound | None = None
    upper: Bound | None = None
    equals: Bound | None = None
    is_null: bool = False
    buckets: int | None = None
    is_everything: bool = False
    prefix: str | None = None
    path: tuple[str, ...] = ()
    only: tuple[tuple[RowRange, ...], ...] = ()


MAX_PARTITIONS = 100_000
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXAMPLES = {
    "year": "2013",
    "month": "2013-02",
    "day": "2013-02-15",
    "hour": "2013-02-15T06:00:00Z",
}


def partition_label(field: ScopeField, value: Bound | None) -> str:
    """Return the label of the partition that holds rows whose column is `value`.

    Of a bucket, `value` is its number. Raises ValueError when it is no value of the column.
    """
    if field.is_whole_table:
        return WHOLE_TABLE_LABEL
    if value is None:
        return NULL_LABEL
    if partition_values.is_bucket(field.transform):
        return partition_values.value_text("int", value)
    if partition_values.is_truncation(field.transform):
        value = partition_values.truncate_value(field.transform, field.type, _typed(field, value))
    if field.type == "string":
        text = str(value)
        return f"={text}" if text == NULL_LABEL or text.startswith("=") else text
    if field.type not in partition_values.TIME_TYPES:
        return partition_values.value_text(field.type, value)
    if field.transform == "identity" and field.type == "date":
        return as_date(value).isoformat()
    return _time_label(field, value)


def _typed(field: ScopeField, value: Bound) -> Bound:
    """Return a value of a column that is no time in the column's own type."""
    if field.type == "string":
        return str(value)
    return partition_values.parse_value(field.type, partition_values.value_text(field.type, value))


def partition_start(transform: str, column_type: str, stored: Any) -> Bound:
    """Return the first value that a partition holds, from its stored value as Iceberg defines it.

    Times are stored as the years, months, days, hours or microseconds since 1970.
    """
    if partition_values.is_bucket(transform):
        return int(stored)
    if partition_values.is_truncation(transform):
        return partition_values.start_of_truncation(transform, column_type, stored)
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
    return stored if isinstance(stored, int | Decimal | bytes) else str(stored)


def whole_partition_label(field: ScopeField, value: Bound | None) -> str:
    """Return the label of the partition that `value` names, as `partition_label` does.

    Raises ConfigError when `value` is no value of the column, or an instant inside a partition. A
    run changes whole partitions, so naming a part of one would change more than was requested.
    """
    with _reporting_bad_value(field, value):
        label = partition_label(field, value)
        is_exact = value is None or _is_start(field, label, value)
    if not is_exact:
        raise _inside_partition_error(field, value, label)
    return label


def _is_start(field: ScopeField, label: str, value: Bound) -> bool:
    """Return whether `value` names the whole partition; raises ValueError for an unknown bucket."""
    if field.is_whole_table:
        if value != WHOLE_TABLE_LABEL:
            raise ValueError(value)
        return True
    if partition_values.is_bucket(field.transform):
        return partition_row_range(field, label).buckets is not None
    if partition_values.is_truncation(field.transform):
        own = _typed(field, value)
        if isinstance(own, int) and partition_values.is_beyond(field.type, own):
            raise ConfigError(
                f"partition {own} of {field} begins below the smallest {field.type}: Iceberg "
                "stores it as one near the largest, where filters do not find its rows",
                fix="leave it out; to restate it, partition the table by buckets or values first",
            )
        return own == partition_values.truncate_value(field.transform, field.type, own)
    if field.type not in (*partition_values.TIME_TYPES, "string"):
        if partition_values.is_beyond(field.type, _typed(field, value)):
            raise ValueError(value)
        return True
    return not field.is_timed or _start(field, label) == as_instant(value)


@lru_cache(maxsize=4096)
def partition_row_range(field: ScopeField, label: str) -> RowRange:
    """Return the rows of a partition; raise ValueError when `label` is no label of `field`."""
    if field.transform == KEY_RANGE and label != NULL_LABEL:
        lower, upper = range_ends(field.type, label)
        is_open = lower is None and upper is None
        return RowRange(field.column, lower=lower, upper=upper, is_everything=is_open)
    return replace(_row_range(field, label), path=field.path)


def _row_range(field: ScopeField, label: str) -> RowRange:
    column = field.column
    if field.is_whole_table:
        if label != WHOLE_TABLE_LABEL:
            raise ValueError(label)
        return RowRange(column, is_everything=True)
    if label == NULL_LABEL:
        return RowRange(column, is_null=True)
    if partition_values.is_bucket(field.transform):
        width = partition_values.width_of(field.transform) or 0
        number = partition_values.parse_value("int", label)
        if number not in range(width):
            raise ValueError(label)
        return RowRange(column, equals=number, buckets=width)
    if field.type not in partition_values.TIME_TYPES:
        is_escaped = field.type == "string" and label.startswith("=")
        value = partition_values.parse_value(field.type, label[1:] if is_escaped else label)
        return _value_range(field, value)
    if field.transform == "identity" and field.type != "date":
        return RowRange(column, equals=_as_column_value(field, datetime.fromisoformat(label)))
    lower, after = _start(field, label), shift_label(field, label, 1)
    upper = None if after is None else _as_column_value(field, _start(field, after))
    return RowRange(column, lower=_as_column_value(field, lower), upper=upper)


def _value_range(field: ScopeField, value: Bound) -> RowRange:
    """Return the rows of the partition of a value that is no time."""
    if partition_values.is_truncation(field.transform):
        ends = partition_values.truncated_bounds(field.transform, field.type, value)
        if ends is not None:
            prefix = value if isinstance(value, str) else None
            return RowRange(field.column, lower=ends[0], upper=ends[1], prefix=prefix)
    return RowRange(field.column, equals=value)


@lru_cache(maxsize=4096)
def shift_label(field: ScopeField, label: str, steps: int) -> str | None:
    """Return the label `steps` partitions later (or earlier).

    None without an order, and outside of the years 1 to 9999 (9999-12-31 means "no end").
    """
    if label == NULL_LABEL:
        return None
    if field.is_number:
        return str(int(label) + steps)
    if not field.is_timed:
        return None
    try:
        return _label(field, _step(field, _start(field, label), steps))
    except (OverflowError, ValueError):
        return None


def labels_between(field: ScopeField, first: Bound, stop: Bound) -> Iterator[str]:
    """Yield the labels of `[first, stop)`; raise ConfigError when a bound splits a partition."""
    if not field.is_number and not field.is_timed:
        raise ConfigError(
            f"partitions of {field.column} have no order, so no range",
            fix="name them in target.partitions.values",
        )
    with attach_error_field("target.partitions.from"):
        label = _aligned(field, first)
    with attach_error_field("target.partitions.to"):
        end = _aligned(field, stop)
    key, ends = label_sort_key(field), f"from {label} to {end}"
    if key(label) >= key(end):
        raise ConfigError(
            f"the range {ends} holds no partition",
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
    only = tuple(_other_ranges(one) for one in scope.field.only)
    return tuple(replace(rows, only=only) for rows in _merged_ranges(scope))


def _merged_ranges(scope: Scope) -> tuple[RowRange, ...]:
    merged: list[RowRange] = []
    for label in sorted(scope.partitions, key=label_sort_key(scope.field)):
        rows = partition_row_range(scope.field, label)
        last = merged[-1] if merged else None
        is_next = last is not None and rows.lower is not None and last.upper == rows.lower
        if last and is_next and rows.prefix is None:
            merged[-1] = replace(last, upper=rows.upper)
        else:
            merged.append(rows)
    return tuple(merged)


def _other_ranges(scope: Scope) -> tuple[RowRange, ...]:
    """Return the rows of another field; PyIceberg reads files without a date beside values only."""
    if scope.field.transform != "identity":
        return _merged_ranges(scope)
    found = [partition_row_range(scope.field, label) for label in scope.partitions]
    return tuple(
        RowRange(rows.column, equals=rows.lower) if rows.lower is not None else rows
        for rows in found
    )


def label_sort_key(field: ScopeField):  # type: ignore[no-untyped-def]  # noqa: ANN201 (a plain key)
    """Return the sort key of labels: numbers by value, times and texts as text, null first."""
    is_number = field.type in ("int", "long") or partition_values.scale_of(field.type) is not None
    is_number = is_number or partition_values.is_bucket(field.transform)
    is_number = is_number and field.transform != KEY_RANGE

    def key(label: str) -> tuple[int, Decimal | int, str]:
        if label == NULL_LABEL:
            return (0, 0, "")
        if is_number:
            return (1, Decimal(label), "")
        return (1, 0, label)

    return key


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
        unquoted = "write null, without quotes, for the partition of rows without a value"
        raise ConfigError(
            f"{value!r} is no value of {field.column}, which is {_describe_values(field)}",
            fix=unquoted if value == NULL_LABEL else f"write e.g. {_example(field)}",
        ) from error


def _describe_values(field: ScopeField) -> str:
    if partition_values.is_bucket(field.transform):
        return f"cut into {partition_values.width_of(field.transform)} buckets, numbered from 0"
    return field.type


def _example(field: ScopeField) -> str:
    if field.is_whole_table:
        return WHOLE_TABLE_LABEL
    if partition_values.is_bucket(field.transform):
        return "0"
    if field.type in partition_values.TIME_TYPES:
        return _EXAMPLES[_unit(field)]
    return partition_values.example_of(field.type)


def _inside_partition_error(field: ScopeField, value: Bound | None, label: str) -> ConfigError:
    following, text = shift_label(field, label, 1), str(value)
    return ConfigError(
        f"{text} lies inside partition {label} of {field.transform}({field.column})",
        fix=f"use {label}" if following is None else f"use {label} or {following}",
    )


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


def _as_column_value(field: ScopeField, moment: datetime) -> Bound:
    if field.type == "date":
        return moment.date()
    if field.type == "timestamp":
        return moment.replace(tzinfo=None)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
