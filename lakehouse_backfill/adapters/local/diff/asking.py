"""What a diff is asked to compare: files and columns of both sides, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn, resolve_diff_columns
from lakehouse_backfill.adapters.local.diff.grouping import (
    FilePiece,
    PartitionLayout,
    choose_layout,
)
from lakehouse_backfill.adapters.local.diff.rows import SideReader
from lakehouse_backfill.adapters.local.diff.splitting import (
    FileSplit,
    columns_in_condition,
    is_counted_by_metadata,
    partition_labels,
    split_files,
)
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.filters import filter_of_ranges
from lakehouse_backfill.core.comparison.where import render_condition
from lakehouse_backfill.domain.rules_schema_change import added_column_names

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from lakehouse_backfill.adapters.local.scan import SnapshotScan
    from lakehouse_backfill.domain.scope import RowRange
    from lakehouse_backfill.ports.diffing import DiffRequest


@dataclass(frozen=True)
class DiffPlan:
    """A request, and what metadata alone says about it."""

    request: DiffRequest
    old: SnapshotScan
    new: SnapshotScan
    columns: tuple[DiffColumn, ...]
    how: PartitionLayout
    split: FileSplit
    labels: list[str | None]
    rows: tuple[RowRange, ...]

    @classmethod
    def of(
        cls, request: DiffRequest, old: SnapshotScan, new: SnapshotScan, rows: tuple[RowRange, ...]
    ) -> DiffPlan:
        """Work out what is compared; columns that the run adds are read, but not compared.

        Raises ConfigError and Unsupported as `columns_of_diff` does.
        """
        old = _as_new_schema(request, old, new)
        asked = columns_in_condition(request.where, old, new)
        coming = added_column_names(request.change)
        ignore = (*request.ignore, *coming)
        columns = resolve_diff_columns(
            old.schema, new.schema, request.key, ignore, asked | set(coming), request.tolerances
        )
        how = choose_layout(old, new, request.scope)
        split = split_files(old, new, how, request.scope, columns, request.known_equal)
        labels = partition_labels(split, how, request.scope)
        return cls(request, old, new, columns, how, split, labels, rows)

    @property
    def conditional(self) -> frozenset[str]:
        """The columns that the condition reads."""
        return columns_in_condition(self.request.where, self.old, self.new)

    @property
    def condition(self) -> str | None:
        """The condition as DuckDB reads it, on the slots of the columns."""
        where = self.request.where
        slots = {column.name: column.slot for column in self.columns}
        return render_condition(where, slots, "duckdb") if where else None

    def tally(self) -> Tally:
        """Give a tally of nothing yet."""
        return Tally(
            self.labels,
            self.columns,
            self.request.samples,
            coming=added_column_names(self.request.change),
            distributions=self.request.distributions,
        )

    @property
    def counted_by(self) -> tuple[DiffColumn, ...]:
        """The columns that are read of files whose rows are only counted: the condition's."""
        asked = self.conditional
        return tuple(column for column in self.columns if column.name in asked)

    def sources(self) -> tuple[SideReader, SideReader]:
        """Give where the rows of both sides come from."""
        numbers = {label: index for index, label in enumerate(self.labels)}
        limit: BooleanExpression | None = None if self.how.is_split else filter_of_ranges(self.rows)
        old = SideReader(self.old, "old", self.how, numbers, limit)
        return old, SideReader(self.new, "new", self.how, numbers, limit)

    def shared(self) -> tuple[list[FilePiece], list[FilePiece]]:
        """Give the shared files whose rows metadata counts, and those that have to be read."""
        counted: list[FilePiece] = []
        unread: list[FilePiece] = []
        for piece in self.split.shared:
            is_known = is_counted_by_metadata(piece, self.how, self.request.where)
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
