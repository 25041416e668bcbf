"""What a diff is asked to compare: files and columns of both sides, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from lakehouse_backfill.adapters.local.diff.columns import Column, columns_of_diff
from lakehouse_backfill.adapters.local.diff.grouping import Layout, Piece, layout
from lakehouse_backfill.adapters.local.diff.rows import Source
from lakehouse_backfill.adapters.local.diff.splitting import (
    Split,
    asked_columns,
    is_counted,
    labels_of,
    split_files,
)
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.filters import any_of
from lakehouse_backfill.core.comparison.where import render
from lakehouse_backfill.domain.rules_schema_change import added

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from lakehouse_backfill.adapters.local.scan import Side
    from lakehouse_backfill.domain.scope import RowRange
    from lakehouse_backfill.ports.diffing import DiffRequest


@dataclass(frozen=True)
class Asked:
    """A request, and what metadata alone says about it."""

    request: DiffRequest
    old: Side
    new: Side
    columns: tuple[Column, ...]
    how: Layout
    split: Split
    labels: list[str | None]
    rows: tuple[RowRange, ...]

    @classmethod
    def of(cls, request: DiffRequest, old: Side, new: Side, rows: tuple[RowRange, ...]) -> Asked:
        """Work out what is compared; columns that the run adds are read, but not compared.

        Raises ConfigError and Unsupported as `columns_of_diff` does.
        """
        old = _narrowed(request, old, new)
        asked = asked_columns(request.where, old, new)
        coming = added(request.change)
        ignore = (*request.ignore, *coming)
        columns = columns_of_diff(
            old.schema, new.schema, request.key, ignore, asked | set(coming), request.tolerances
        )
        how = layout(old, new, request.scope)
        split = split_files(old, new, how, request.scope, columns, request.known_equal)
        labels = labels_of(split, how, request.scope)
        return cls(request, old, new, columns, how, split, labels, rows)

    @property
    def conditional(self) -> frozenset[str]:
        """The columns that the condition reads."""
        return asked_columns(self.request.where, self.old, self.new)

    @property
    def condition(self) -> str | None:
        """The condition as DuckDB reads it, on the slots of the columns."""
        where = self.request.where
        slots = {column.name: column.slot for column in self.columns}
        return render(where, slots, "duckdb") if where else None

    def tally(self) -> Tally:
        """Give a tally of nothing yet."""
        return Tally(
            self.labels,
            self.columns,
            self.request.samples,
            coming=added(self.request.change),
            distributions=self.request.distributions,
        )

    @property
    def counted_by(self) -> tuple[Column, ...]:
        """The columns that are read of files whose rows are only counted: the condition's."""
        asked = self.conditional
        return tuple(column for column in self.columns if column.name in asked)

    def sources(self) -> tuple[Source, Source]:
        """Give where the rows of both sides come from."""
        numbers = {label: index for index, label in enumerate(self.labels)}
        limit: BooleanExpression | None = None if self.how.is_split else any_of(self.rows)
        old = Source(self.old, "old", self.how, numbers, limit)
        return old, Source(self.new, "new", self.how, numbers, limit)

    def shared(self) -> tuple[list[Piece], list[Piece]]:
        """Give the shared files whose rows metadata counts, and those that have to be read."""
        counted: list[Piece] = []
        unread: list[Piece] = []
        for piece in self.split.shared:
            is_known = is_counted(piece, self.how, self.request.where)
            (counted if is_known else unread).append(piece)
        return counted, unread


def _narrowed(request: DiffRequest, old: Side, new: Side) -> Side:
    """Give the old side under the names and types of the new one, where a change is restated.

    Files are read by column id, so they can be read as the columns are now.
    """
    if not request.change or old.table is None:
        return old
    held = old.schema.field_ids
    fields = [field for field in new.schema.fields if field.field_id in held]
    return replace(old, schema=Schema(*fields))
