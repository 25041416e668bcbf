"""Which files of two sides a diff has to read, and which rows metadata alone accounts for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn
from lakehouse_backfill.adapters.local.diff.grouping import (
    FileIdentity,
    FilePiece,
    PartitionLayout,
    SchemaReading,
    label_files,
    sort_labels,
)
from lakehouse_backfill.core.comparison.where import condition_columns
from lakehouse_backfill.domain.checks import SharedFiles

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.local.scan import SnapshotScan
    from lakehouse_backfill.domain.scope import Scope


@dataclass(frozen=True)
class FileSplit:
    """Files of both sides: shared ones, and those that have to be read on each side."""

    shared: list[FilePiece]
    old: list[FilePiece]
    new: list[FilePiece]
    files: SharedFiles


def split_files(
    old: SnapshotScan,
    new: SnapshotScan,
    how: PartitionLayout,
    scope: Scope | None,
    columns: tuple[DiffColumn, ...],
    known_equal: frozenset[str] = frozenset(),
) -> FileSplit:
    """Leave out files that both sides read alike, and partitions that are known to be equal."""
    contents = FileIdentity()
    mine, theirs = (
        [(contents.key(piece.task), piece) for piece in label_files(side, how, scope)]
        for side in (old, new)
    )
    equal = known_equal if how.is_split else frozenset()
    in_old, in_new = (Counter(key for key, _ in each) for each in (mine, theirs))
    # A file that one side lists more often than the other has more rows there.
    common = {key: count for key, count in in_old.items() if in_new[key] == count}
    reading = SchemaReading(old.schema, new.schema, [column.name for column in columns])
    skipped = {key for key, piece in theirs if key in common and reading.is_alike(piece.task)}
    shared = sum(common.values())
    same = [key in skipped or piece.label in equal for key, piece in theirs]
    return FileSplit(
        shared=[piece for (_, piece), is_same in zip(theirs, same, strict=True) if is_same],
        old=[piece for key, piece in mine if key not in skipped and piece.label not in equal],
        new=[piece for (_, piece), is_same in zip(theirs, same, strict=True) if not is_same],
        files=SharedFiles(
            shared=shared, old_only=len(mine) - shared, new_only=len(theirs) - shared
        ),
    )


def partition_labels(
    split: FileSplit, how: PartitionLayout, scope: Scope | None
) -> list[str | None]:
    """Give the partitions of the diff in order; they are numbered by their place."""
    if scope is not None:
        return sort_labels(scope.partitions, how)
    found = {piece.label for piece in (*split.shared, *split.old, *split.new)}
    return sort_labels(found, how) or [None]


def is_counted_by_metadata(piece: FilePiece, how: PartitionLayout, where: str | None) -> bool:
    """Tell whether metadata alone says how many rows that are meant the file holds."""
    return not (where or piece.task.delete_files) and (how.is_split or how.field is None)


def columns_in_condition(where: str | None, old: SnapshotScan, new: SnapshotScan) -> frozenset[str]:
    """Name the columns that the condition reads, in the tables' own spelling."""
    asked = {name.lower() for name in condition_columns(where)} if where else set()
    names = {field.name for side in (old, new) for field in side.schema.fields}
    return frozenset(name for name in names if name.lower() in asked)
