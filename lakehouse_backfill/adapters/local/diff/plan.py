"""The plan of a diff: the files, columns and partition labels that it compares.

Decides from metadata alone which files both sides share, which files must be read, and which rows
metadata counts.
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
    """Files of both sides: the shared ones, and those that must be read on each side."""

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
    """Return the files to read: without shared files and partitions known to be equal."""
    contents = FileIdentity()
    old_pieces, new_pieces = (
        [(contents.identity_of(piece.task), piece) for piece in label_files(side, how, scope)]
        for side in (old, new)
    )
    equal = known_equal if how.is_partition_aligned else frozenset()
    in_old, in_new = (Counter(key for key, _ in keyed) for keyed in (old_pieces, new_pieces))
    # A file may be listed more than once; only equal counts hold the same rows.
    common = {key: count for key, count in in_old.items() if in_new[key] == count}
    reading = SchemaReading(old.schema, new.schema, [column.name for column in columns])
    skipped = {
        key for key, piece in new_pieces if key in common and reading.is_read_alike(piece.task)
    }
    shared = sum(common.values())
    same = [key in skipped or piece.label in equal for key, piece in new_pieces]
    return FileSplit(
        shared=[piece for (_, piece), is_same in zip(new_pieces, same, strict=True) if is_same],
        old=[piece for key, piece in old_pieces if key not in skipped and piece.label not in equal],
        new=[piece for (_, piece), is_same in zip(new_pieces, same, strict=True) if not is_same],
        files=SharedFiles(
            shared=shared, old_only=len(old_pieces) - shared, new_only=len(new_pieces) - shared
        ),
    )


def partition_labels(
    split: FileSplit, how: PartitionLayout, scope: Scope | None
) -> list[str | None]:
    """Return the partitions of the diff in order; a partition's number is its index."""
    if scope is not None:
        return sort_labels(scope.partitions, how)
    labels = {piece.label for piece in (*split.shared, *split.old, *split.new)}
    return sort_labels(labels, how) or [None]


def is_counted_by_metadata(piece: FilePiece, how: PartitionLayout, where: str | None) -> bool:
    """Return whether metadata alone gives the number of the file's rows in the diff."""
    return not (where or piece.task.delete_files) and (
        how.is_partition_aligned or how.field is None
    )


def columns_in_condition(where: str | None, old: SnapshotScan, new: SnapshotScan) -> frozenset[str]:
    """Return the columns that the condition reads, in the tables' own spelling."""
    condition_names = {name.lower() for name in condition_columns(where)} if where else set()
    names = {field.name for side in (old, new) for field in side.schema.fields}
    return frozenset(name for name in names if name.lower() in condition_names)


@dataclass(frozen=True)
class DiffPlan:
    """A diff request, and what metadata alone gives for it."""

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
        """Build the plan; columns that the run adds are read, but not compared.

        Raises ConfigError and Unsupported as `resolve_diff_columns` does.
        """
        old = _as_new_schema(request, old, new)
        condition_names = columns_in_condition(request.where, old, new)
        added = added_column_names(request.change)
        ignore = (*request.ignore, *added)
        columns = resolve_diff_columns(
            old.schema,
            new.schema,
            request.key,
            ignore,
            condition_names | set(added),
            request.tolerances,
        )
        layout = choose_layout(old, new, request.scope)
        split = split_files(old, new, layout, request.scope, columns, request.known_equal)
        labels = partition_labels(split, layout, request.scope)
        return cls(request, old, new, columns, layout, split, labels, rows)

    @property
    def condition_column_names(self) -> frozenset[str]:
        """The columns that the condition reads."""
        return columns_in_condition(self.request.where, self.old, self.new)

    @property
    def condition_sql(self) -> str | None:
        """The condition in DuckDB's SQL, on the slots of the columns."""
        where = self.request.where
        slots = {column.name: column.slot for column in self.columns}
        return render_condition(where, slots, "duckdb") if where else None

    def new_tally(self) -> Tally:
        """Return an empty tally."""
        return Tally(
            self.labels,
            self.columns,
            self.request.samples,
            added_columns=added_column_names(self.request.change),
            distributions=self.request.distributions,
        )

    @property
    def condition_columns(self) -> tuple[DiffColumn, ...]:
        """The condition's columns: only these are read of files whose rows are only counted."""
        names = self.condition_column_names
        return tuple(column for column in self.columns if column.name in names)

    def side_readers(self) -> tuple[SideReader, SideReader]:
        """Return the readers of the old and the new side."""
        numbers = {label: index for index, label in enumerate(self.labels)}
        limit: BooleanExpression | None = (
            None if self.layout.is_partition_aligned else filter_of_ranges(self.row_ranges)
        )
        old = SideReader(self.old, "old", self.layout, numbers, limit)
        return old, SideReader(self.new, "new", self.layout, numbers, limit)

    def split_shared_files(self) -> tuple[list[FilePiece], list[FilePiece]]:
        """Return the shared files that metadata counts, and those that must be read."""
        counted: list[FilePiece] = []
        unread: list[FilePiece] = []
        for piece in self.split.shared:
            is_known = is_counted_by_metadata(piece, self.layout, self.request.where)
            (counted if is_known else unread).append(piece)
        return counted, unread


def _as_new_schema(request: DiffRequest, old: SnapshotScan, new: SnapshotScan) -> SnapshotScan:
    """Return the old side under the new side's names and types, when the request has a change.

    Files are read by column id, so they can be read with the current columns.
    """
    if not request.change or old.table is None:
        return old
    old_ids = old.schema.field_ids
    fields = [field for field in new.schema.fields if field.field_id in old_ids]
    return replace(old, schema=Schema(*fields))
