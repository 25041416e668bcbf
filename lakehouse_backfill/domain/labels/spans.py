"""Which partitions of two units or scopes share rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from lakehouse_backfill.domain.labels.values import Bound
from lakehouse_backfill.domain.partitions import (
    RowRange,
    Scope,
    ScopeField,
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
