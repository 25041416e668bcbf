"""Which partitions of two units or scopes share rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from lakehouse_backfill.domain.labels.values import (
    Bound,
    NamedRange,
    bucket_number,
    is_beyond,
    is_bucket,
    is_truncation,
    truncate_value,
)
from lakehouse_backfill.domain.partitions import (
    RowRange,
    Scope,
    ScopeField,
    label_sort_key,
    partition_label,
    partition_row_range,
    scope_row_ranges,
    shift_label,
)


def labels_within(field: ScopeField, coarse: ScopeField, label: str) -> list[str]:
    """List the labels of `field` inside the partition `label` of a coarser unit, in order."""
    whole = partition_row_range(coarse, label)
    first = partition_label(field, whole.lower)
    labels: list[str] = []
    current: str | None = first
    while current is not None:
        if not _is_below(partition_row_range(field, current).lower, whole.upper):
            break
        labels.append(current)
        current = shift_label(field, current, 1)
    return labels


#: More partitions than this are not named one by one.
_MAX_HOLDERS = 10_000


def partitions_of(
    field: ScopeField, values: tuple[Bound | None, ...] | NamedRange
) -> tuple[str, ...] | None:
    """Return the labels of the partitions that hold the values, in order; None: they are not known.

    These may hold other values, too. They are not known of a range by a field without an order, of
    values beside null by a field whose partitions are ranges, and of more than 10,000.
    """
    if isinstance(values, NamedRange):
        return _partitions_of_range(field, values)
    is_range = field.transform != "identity" and not is_bucket(field.transform)
    if is_range and None in values and len(values) > 1:
        # PyIceberg fails on files without a value where others are named by a range.
        return None
    if any(_is_below_all(field, one) for one in values if one is not None):
        return None
    labels = {partition_label(field, _partition_value(field, one)) for one in values}
    return tuple(sorted(labels, key=label_sort_key(field)))


def hold_nothing_else(scope: Scope, values: tuple[Bound | None, ...] | NamedRange) -> bool:
    """Return whether partitions that hold the values hold no rows of others."""
    if scope.field.transform == "identity":
        return True
    if not isinstance(values, NamedRange):
        return False
    first, last = (partition_row_range(scope.field, scope.partitions[at]) for at in (0, -1))
    return (first.lower, last.upper) == (values.start, values.stop)


def _partitions_of_range(field: ScopeField, values: NamedRange) -> tuple[str, ...] | None:
    if not field.is_timed and not field.is_number:
        return None
    found: list[str] = []
    label: str | None = partition_label(field, values.start)
    while label is not None and len(found) <= _MAX_HOLDERS:
        rows = partition_row_range(field, label)
        if not _is_below(rows.equals if rows.lower is None else rows.lower, values.stop):
            return tuple(found)
        found.append(label)
        label = shift_label(field, label, 1)
    return None


def _partition_value(field: ScopeField, value: Bound | None) -> Bound | None:
    if value is None or not is_bucket(field.transform):
        return value
    return bucket_number(field.transform, field.type, value)


def _is_below_all(field: ScopeField, value: Bound) -> bool:
    """Return whether a truncation begins below the smallest number, where filters find no rows."""
    if not is_truncation(field.transform):
        return False
    return is_beyond(field.type, truncate_value(field.transform, field.type, value))


def overlap(one: Scope, other: Scope) -> tuple[str, ...]:
    """Return the partitions of `one` that `other` may change too.

    A whole table holds all. Partitions by another field may share rows with any of them, as a row
    has a partition by each field. Spans of time of one column are compared as spans. Tuples of
    partition values are apart where any column tells them apart.
    """
    ours, theirs = one.field, other.field
    if _are_told_apart((*ours.only, one), (*theirs.only, other)):
        return ()
    if (ours.column, ours.transform) == (theirs.column, theirs.transform):
        return tuple(label for label in one.partitions if label in set(other.partitions))
    if (ours.column, ours.type) != (theirs.column, theirs.type) or not (
        ours.is_timed and theirs.is_timed
    ):
        return one.partitions
    spans = scope_row_ranges(other)
    return tuple(
        label
        for label in one.partitions
        if any(_has_common_rows(partition_row_range(ours, label), span) for span in spans)
    )


def are_apart(one: ScopeField, other: ScopeField) -> bool:
    """Return whether another partition field tells all partitions of the two apart.

    Partitions of equal labels hold other rows then: those of DE and those of FR of a day.
    """
    return _are_told_apart(one.only, other.only)


def _are_told_apart(ours: Iterable[Scope], theirs: Iterable[Scope]) -> bool:
    """Return whether both name partitions by one field, and none that is the same."""
    return any(
        _have_same_labels(one.field, other.field)
        and not set(one.partitions).intersection(other.partitions)
        for one, other in product(ours, theirs)
    )


def _have_same_labels(one: ScopeField, other: ScopeField) -> bool:
    """Return whether equal values of a column have equal labels; promoted types may differ."""
    kinds = {one.type, other.type}
    is_same = len(kinds) == 1 or kinds == {"int", "long"}
    by, other_by = ((each.column, each.path, each.transform) for each in (one, other))
    return by == other_by and is_same


def _has_common_rows(one: RowRange, other: RowRange) -> bool:
    """Return whether two spans of time of one column may hold the same row."""
    if one.is_null or other.is_null:
        return one.is_null and other.is_null
    return _is_below(one.lower, other.upper) and _is_below(other.lower, one.upper)


def _is_below(lower: Bound | None, upper: Bound | None) -> bool:
    return lower is None or upper is None or lower < upper  # type: ignore[operator]
