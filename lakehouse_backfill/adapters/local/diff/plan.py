"""What a diff must read: files, shared files, labels.

Which files of two sides a diff has to read, and which rows metadata alone accounts for.

What a diff is asked to compare: files and columns of both sides, and what they share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn, resolve_diff_columns
from lakehouse_backfill.adapters.local.diff.layout import (
    FileIdentity,
    FilePiece,
    PartitionLayout,
    SchemaReading,
    SideReader,
    choose_layout,
    label_files,
    sort_labels,
)
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.scan import filter_of_ranges
from lakehouse_backfill.core.comparison.conditions import condition_columns, render_condition
from lakehouse_backfill.domain.checks import SharedFiles
from lakehouse_backfill.domain.table import added_column_names

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from lakehouse_backfill.adapters.local.scan import SnapshotScan
    from lakehouse_backfill.domain.partitions import RowRange, Scope
    from lakehouse_backfill.ports.comparison import DiffRequest


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
        [(contents.identity_of(piece.task), piece) for piece in label_files(side, how, scope)]
        for side in (old, new)
    )
    equal = known_equal if how.is_partition_aligned else frozenset()
    in_old, in_new = (Counter(key for key, _ in each) for each in (mine, theirs))
    # A file that one side lists more often than the other has more rows there.
    common = {key: count for key, count in in_old.items() if in_new[key] == count}
    reading = SchemaReading(old.schema, new.schema, [column.name for column in columns])
    skipped = {key for key, piece in theirs if key in common and reading.is_read_alike(piece.task)}
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
    return not (where or piece.task.delete_files) and (
        how.is_partition_aligned or how.field is None
    )


def columns_in_condition(where: str | None, old: SnapshotScan, new: SnapshotScan) -> frozenset[str]:
    """Name the columns that the condition reads, in the tables' own spelling."""
    asked = {name.lower() for name in condition_columns(where)} if where else set()
    names = {field.name for side in (old, new) for field in side.schema.fields}
    return frozenset(name for name in names if name.lower() in asked)


@dataclass(frozen=True)
class DiffPlan:
    """A request, and what metadata alone says about it."""

    request: DiffRequest
    old: SnapshotScan
    new: SnapshotScan
    columns: tuple[DiffColumn, ...]
    layout: PartitionLayout
    split: FileSplit
    labels: list[str | None]
    row_ranges: tuple[RowRange, ...]

    @classmethod
    def for_request(
        cls, request: DiffRequest, old: SnapshotScan, new: SnapshotScan, rows: tuple[RowRange, ...]
    ) -> DiffPlan:
        """Work out what is compared; columns that the run adds are read, but not compared.

        Raises ConfigError and Unsupported as `columns_of_diff` does.
        """
        old = _as_new_schema(request, old, new)
        asked = columns_in_condition(request.where, old, new)
        added = added_column_names(request.change)
        ignore = (*request.ignore, *added)
        columns = resolve_diff_columns(
            old.schema, new.schema, request.key, ignore, asked | set(added), request.tolerances
        )
        how = choose_layout(old, new, request.scope)
        split = split_files(old, new, how, request.scope, columns, request.known_equal)
        labels = partition_labels(split, how, request.scope)
        return cls(request, old, new, columns, how, split, labels, rows)

    @property
    def condition_column_names(self) -> frozenset[str]:
        """The columns that the condition reads."""
        return columns_in_condition(self.request.where, self.old, self.new)

    @property
    def condition_sql(self) -> str | None:
        """The condition as DuckDB reads it, on the slots of the columns."""
        where = self.request.where
        slots = {column.name: column.slot for column in self.columns}
        return render_condition(where, slots, "duckdb") if where else None

    def new_tally(self) -> Tally:
        """Give a tally of nothing yet."""
        return Tally(
            self.labels,
            self.columns,
            self.request.samples,
            added_columns=added_column_names(self.request.change),
            distributions=self.request.distributions,
        )

    @property
    def condition_columns(self) -> tuple[DiffColumn, ...]:
        """The columns that are read of files whose rows are only counted: the condition's."""
        asked = self.condition_column_names
        return tuple(column for column in self.columns if column.name in asked)

    def side_readers(self) -> tuple[SideReader, SideReader]:
        """Give where the rows of both sides come from."""
        numbers = {label: index for index, label in enumerate(self.labels)}
        limit: BooleanExpression | None = (
            None if self.layout.is_partition_aligned else filter_of_ranges(self.row_ranges)
        )
        old = SideReader(self.old, "old", self.layout, numbers, limit)
        return old, SideReader(self.new, "new", self.layout, numbers, limit)

    def split_shared_files(self) -> tuple[list[FilePiece], list[FilePiece]]:
        """Give the shared files whose rows metadata counts, and those that have to be read."""
        counted: list[FilePiece] = []
        unread: list[FilePiece] = []
        for piece in self.split.shared:
            is_known = is_counted_by_metadata(piece, self.layout, self.request.where)
            (counted if is_known else unread).append(piece)
        return counted, unread


def _as_new_schema(request: DiffRequest, old: SnapshotScan, new: SnapshotScan) -> SnapshotScan:
    """Give the old side under the names and types of the new one, where a change is restated.

    Files are read by column id, so they can be read as the columns are now.
    """
    if not request.change or old.table is None:
        return old
    held = old.schema.field_ids
    fields = [field for field in new.schema.fields if field.field_id in held]
    return replace(old, schema=Schema(*fields))
