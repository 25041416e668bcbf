"""Choosing the partition field that a run is scoped by."""

from __future__ import annotations

from typing import cast, get_args

from lakehouse_backfill.domain.scope import ColumnType, ScopeField
from lakehouse_backfill.domain.scope import PartitionTransform as Transform
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.errors import Unsupported

_SCOPE_TRANSFORMS = ("identity", "hour", "day", "month", "year")


def finest_scope_field(info: TableInfo, column: str) -> ScopeField:
    """Give the finest field of the current spec that tells values of `column` apart.

    Raises Unsupported: buckets and truncations mix values, `void` fields hold none.
    """
    fields = [field for field in info.partitioning if field.column == column]
    usable = [field.transform for field in fields if field.transform in _SCOPE_TRANSFORMS]
    if not usable:
        raise Unsupported(
            f"{info.table} cannot be restated by {column}: {_unscopable_reason(info, column)}",
            fix=f"scope by one of: {_scopable_columns(info)}",
        )
    found = info.column(column)
    if found is None or found.type not in get_args(ColumnType):
        kind = found.type if found else "nested"
        raise Unsupported(
            f"{info.table} is partitioned by {column}, whose type {kind} cannot be scoped",
            fix=f"use a column of type {', '.join(get_args(ColumnType))}",
        )
    transform = min(usable, key=_SCOPE_TRANSFORMS.index)
    return ScopeField(
        column=column,
        transform=cast("Transform", transform),
        type=cast("ColumnType", found.type),
    )


def _unscopable_reason(info: TableInfo, column: str) -> str:
    if info.column(column) is None:
        return "there is no such column"
    transforms = [field.transform for field in info.partitioning if field.column == column]
    if not transforms:
        return "it is not a partition column"
    return f"{transforms[0]}({column}) does not tell its values apart"


def _scopable_columns(info: TableInfo) -> str:
    usable = [f.column for f in info.partitioning if f.transform in _SCOPE_TRANSFORMS]
    return ", ".join(dict.fromkeys(usable)) or "no column; add a partition field first"
