"""Whether a `replace` kept the rows, as far as metadata can tell without reading them.

An operation of `replace` is a writer's promise. What manifests say about the files on both sides
is compared: rows, nulls, and smallest and largest values of each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from lakehouse_backfill.adapters.iceberg.content import ScopeFiles

#: Their bounds are never cut, and smaller values have smaller little-endian integers.
_EXACT_BOUND_TYPES = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)


@dataclass(frozen=True)
class _ColumnStatistics:
    """What the files of one side say about a column; None where one of them does not say."""

    nulls: int | None
    lowest: int | None
    highest: int | None


def compaction_violation(
    then: ScopeFiles, now: ScopeFiles, label_of: Callable[[DataFile], str], schema: Schema
) -> str:
    """Say in which partition the rows cannot be the same any more; empty when they may be.

    Partition by partition. Where delete files apply, readers see fewer rows than the files hold:
    then only the range of their number is compared.
    """
    for label in sorted({*_file_labels(then, label_of), *_file_labels(now, label_of)}):
        sides = [_files_of_label(side, label, label_of) for side in (then, now)]
        (fewest, most), (least, largest) = (side.rows for side in sides)
        if largest < fewest or most < least:
            return (
                f"compactions left {_format_range(least, largest)} of {_format_range(fewest, most)} rows"
                + (f" in {label}")
            )
        if not any(side.hiding for side in sides):
            files = [[e.data_file for e in side.data.values()] for side in sides]
            changed = _changed_column(files[0], files[1], schema)
            if changed:
                return f"a compaction changed the values of {changed} in {label}"
    return ""


def _file_labels(content: ScopeFiles, label_of: Callable[[DataFile], str]) -> set[str]:
    return {label_of(entry.data_file) for entry in content.data.values()}


def _files_of_label(
    content: ScopeFiles, label: str, label_of: Callable[[DataFile], str]
) -> ScopeFiles:
    data = {p: e for p, e in content.data.items() if label_of(e.data_file) == label}
    return ScopeFiles(data, content.deletes)


def _format_range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _changed_column(old: list[DataFile], new: list[DataFile], schema: Schema) -> str:
    if not old or not new:
        return ""
    for column in schema.fields:
        is_exact = isinstance(column.field_type, _EXACT_BOUND_TYPES)
        sides = [
            _column_statistics(files, column.field_id, is_exact=is_exact) for files in (old, new)
        ]
        pairs = zip(vars(sides[0]).values(), vars(sides[1]).values(), strict=True)
        if any(a is not None and b is not None and a != b for a, b in pairs):
            return column.name
    return ""


def _column_statistics(
    files: Iterable[DataFile], field_id: int, *, is_exact: bool
) -> _ColumnStatistics:
    nulls: list[int | None] = []
    lowest: list[int | None] = []
    highest: list[int | None] = []
    for file in files:
        empty = (file.null_value_counts or {}).get(field_id)
        nulls.append(empty)
        if file.record_count == 0 or (empty is not None and empty == file.record_count):
            continue
        lowest.append(_decode_bound(file.lower_bounds, field_id))
        highest.append(_decode_bound(file.upper_bounds, field_id))
    return _ColumnStatistics(
        nulls=sum(_all_or_none(nulls)) if _all_or_none(nulls) else None,
        lowest=min(_all_or_none(lowest), default=None) if is_exact else None,
        highest=max(_all_or_none(highest), default=None) if is_exact else None,
    )


def _all_or_none(values: list[int | None]) -> list[int]:
    """Give the values when all are known, else none."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else []


def _decode_bound(bounds: dict[int, bytes] | None, field_id: int) -> int | None:
    """Read a bound; a file from before a promotion has it in fewer bytes."""
    value = (bounds or {}).get(field_id)
    return None if value is None else int.from_bytes(value, "little", signed=True)
