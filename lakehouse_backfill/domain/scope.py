"""Which partitions a run may change, and how they are cut into chunks.

A partition is named by its label: the canonical text of the value of *one* partition field (the
scoped field), e.g. `2013-02-15`, `2013-02-15T07`, `2013-02`, `EU`, `null`. Labels are what is
stored and shown; `rules.partitions` turns them into row ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from lakehouse_backfill.domain.value import Value

Bound = date | datetime | int | str
PartitionTransform = Literal["identity", "hour", "day", "month", "year"]
ColumnType = Literal["date", "timestamp", "timestamptz", "int", "long", "string"]
NULL_LABEL = "null"


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
