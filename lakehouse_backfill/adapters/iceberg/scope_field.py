"""The field of a table's partitioning that a run is scoped by: the finest one of a column."""

from __future__ import annotations

from lakehouse_backfill.domain.labels.values import fineness, fits
from lakehouse_backfill.domain.partitions import (
    ANY_COLUMN,
    WHOLE_TABLE_FIELD,
    ScopeField,
)
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import Unsupported


def finest_scope_field(info: TableInfo, column: str) -> ScopeField:
    """Return the finest field of the current spec that tells values of `column` apart.

    Without one, return its first bucket or truncation. `*` means the whole table. Raises
    Unsupported for a column that has no such field, and for types without labels.
    """
    if column == ANY_COLUMN:
        return WHOLE_TABLE_FIELD
    transforms = [f.transform for f in info.partitioning if f.column == column]
    usable = [one for one in transforms if one != "void"]
    kind = column_type(info, column)
    fitting = [one for one in usable if kind is not None and fits(one, kind)]
    if not fitting:
        raise Unsupported(
            f"{info.table} cannot be restated by {column}: {_unscopable_reason(info, column)}",
            fix=f"scope by one of: {_scopable_columns(info)}",
        )
    transform = min(fitting, key=fineness)
    path = next(f.path for f in info.partitioning if f.column == column)
    return ScopeField(column=column, transform=transform, type=kind or "", path=path)


def column_type(info: TableInfo, column: str) -> str | None:
    """Return the type of a column, or of a struct's field that partitions are by; else None."""
    found = info.column(column)
    nested = (one.type for one in info.partitioning if one.column == column and one.type)
    return found.type if found else next(nested, None)


def _unscopable_reason(info: TableInfo, column: str) -> str:
    transforms = [field.transform for field in info.partitioning if field.column == column]
    kind = column_type(info, column)
    if not transforms:
        return "there is no such column" if kind is None else "it is not a partition column"
    if kind is None:
        return "it lies in a list or a map"
    if transforms[0] == "void":
        return f"void({column}) does not tell its values apart"
    return f"partitions by {transforms[0]} of a {kind} have no names"


def _scopable_columns(info: TableInfo) -> str:
    usable = [
        field.column
        for field in info.partitioning
        if fits(field.transform, column_type(info, field.column) or "")
    ]
    whole = "the whole table, by target.partitions.whole_table: true"
    return ", ".join([*dict.fromkeys(usable), whole])
