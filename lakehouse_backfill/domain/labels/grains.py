"""Grains: groups of whole partitions that a product's aggregate is computed over.

A table may have a partition a day and hold totals of a month. The contract says so
(`partitioning[].grain`); such partitions are planned, judged and published together only. A grain
is a unit of time, or a width: of width 100, the values 200 to 299 are one grain. Rows without a
value are a grain of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.spans import labels_within
from lakehouse_backfill.domain.labels.values import Grain, is_beyond, is_bucket, width_of
from lakehouse_backfill.domain.partitions import (
    NULL_LABEL,
    Scope,
    ScopeField,
    label_sort_key,
    partition_label,
    partition_row_range,
)

_UNITS = ("hour", "day", "month", "year")


def grain_fault(transform: str, column_type: str, grain: Grain) -> str:
    """Return why a grain is no union of whole partitions of a field; empty where it is one."""
    field = f"{transform} of a column of type {column_type}"
    if isinstance(grain, int):
        if column_type not in ("int", "long") or is_bucket(transform) or transform in _UNITS:
            return f"a width needs partitions of whole numbers, and this is {field}"
        width = width_of(transform) or 1
        return f"a partition is {width} wide, so a grain ends inside one" if grain % width else ""
    unit = "day" if (transform, column_type) == ("identity", "date") else transform
    if unit not in _UNITS:
        return f"a {grain} needs partitions that are spans of time, and this is {field}"
    if _UNITS.index(unit) > _UNITS.index(grain):
        return f"a {grain} is finer than a partition, which is one {unit}"
    return ""


def contract_grain(contract: Contract, field: ScopeField) -> Grain | None:
    """Return the grain that a contract declares along a field; None where it is the partition."""
    if field.is_whole_table:
        return None
    names = (field.column.casefold(), field.transform)
    found = [
        one for one in contract.partitioning if (one.column.casefold(), one.transform) == names
    ]
    same_column = [one for one in contract.partitioning if one.column.casefold() == names[0]]
    return next((one.grain for one in (*found, *same_column)), None)


def grain_of(field: ScopeField, grain: Grain, label: str) -> str:
    """Return the name of the grain that a partition belongs to: `2013-02`, `200-299`, `null`."""
    if label == NULL_LABEL:
        return label
    if isinstance(grain, int):
        first = int(label) // grain * grain
        return f"{first}-{first + grain - 1}"
    return partition_label(_coarse(field, grain), partition_row_range(field, label).lower)


def partitions_of_grain(field: ScopeField, grain: Grain, label: str) -> tuple[str, ...]:
    """Return all partitions of the grain that a partition belongs to, in order."""
    if label == NULL_LABEL:
        return (label,)
    if isinstance(grain, int):
        first = int(label) // grain * grain
        width = width_of(field.transform) or 1
        numbers = range(first, first + grain, width)
        # The lowest truncated partition begins below the smallest number of the column.
        return tuple(
            str(one) for one in numbers
            if not (is_beyond(field.type, one) and is_beyond(field.type, one + width - 1))
        )  # fmt: skip
    coarse = _coarse(field, grain)
    return tuple(labels_within(field, coarse, grain_of(field, grain, label)))


def _coarse(field: ScopeField, unit: str) -> ScopeField:
    return ScopeField(column=field.column, transform=unit, type=field.type, path=field.path)


def group_by_grain(
    field: ScopeField, grain: Grain | None, labels: Iterable[str]
) -> list[tuple[str, ...]]:
    """Return the labels by grain, grains in the order of their first label; without one, singly."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(label if grain is None else grain_of(field, grain, label), []).append(
            label
        )
    return [tuple(group) for group in groups.values()]


def whole_grains(field: ScopeField, grain: Grain | None, labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels and all that share a grain with one, in order; without a grain the labels.

    It is the smallest union of whole grains that holds them.
    """
    found = set(labels)
    if grain is not None:
        for group in group_by_grain(field, grain, tuple(found)):
            found.update(partitions_of_grain(field, grain, group[0]))
    return tuple(sorted(found, key=label_sort_key(field)))


def whole_grains_of(
    contract: Contract, field: ScopeField, labels: Iterable[str]
) -> tuple[str, ...]:
    """Return the smallest union of whole grains of a product that holds the partitions."""
    return whole_grains(field, contract_grain(contract, field), labels)


def without_cut_grains(contract: Contract, scope: Scope, labels: Iterable[str]) -> frozenset[str]:
    """Return those labels whose grain has all of its partitions of the scope among them."""
    chosen, grain = frozenset(labels), contract_grain(contract, scope.field)
    groups = group_by_grain(scope.field, grain, scope.partitions)
    return frozenset(label for group in groups if chosen.issuperset(group) for label in group)


def describe_grain(grain: Grain) -> str:
    """Return a grain as text for people: `month`, `group of 100`."""
    return f"group of {grain}" if isinstance(grain, int) else grain
