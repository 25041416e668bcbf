"""Old against new on DuckDB over Arrow, in this process, without a JVM.

Cost follows the change: files that both sides share are skipped by metadata, and what is left is
compared partition by partition, small ones together.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from lakehouse_backfill.local.columns import columns_of_diff
from lakehouse_backfill.local.compare import Comparison, engine
from lakehouse_backfill.local.filters import any_of
from lakehouse_backfill.local.grouping import (
    Layout,
    batches,
    layout,
    portions,
)
from lakehouse_backfill.local.listing import both
from lakehouse_backfill.local.preview import preview
from lakehouse_backfill.local.rows import Source, gather_both
from lakehouse_backfill.local.scan import Side
from lakehouse_backfill.local.splitting import (
    Split,
    asked_columns,
    is_counted,
    labels_of,
    split_files,
)
from lakehouse_backfill.local.tally import Tally
from lakehouse_backfill.model.checks import Diff
from lakehouse_backfill.model.preview import DiffPreview
from lakehouse_backfill.model.rollout import Differing
from lakehouse_backfill.rules.partitions import ranges
from lakehouse_backfill.rules.schema_change import added
from lakehouse_backfill.rules.where import render

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.catalog import Catalog

    from lakehouse_backfill.model.scope import RowRange
    from lakehouse_backfill.ports.compute import DiffRequest

BATCH_ROWS = 1_000_000


class LocalDiffer:
    """The Differ for changes that fit one machine.

    What is compared, and how, is the contract for every engine:

    - Columns by name, over those of both sides; one that a side lacks is null there. Columns of
      `ignore` take no part. Values of types that Iceberg cannot promote to each other differ.
    - Null equals null, NaN equals NaN, -0.0 equals 0.0; decimals exactly; maps by their entries.
    - Counts are by the row's own partition: a key that moved is removed there and added here.
    - A key that one side holds more than once in a partition is counted in `duplicate_keys`, and
      its rows are compared as a multiset: added and removed only, never multiplied.
    - Files with the same path, the same delete files and the same reading on both sides are not
      read: their rows are unchanged. Distributions and duplicates cover the rows that were read.
    - Samples are the first rows by partition, then key, nulls first.
    """

    def __init__(self, catalog: Catalog, batch_rows: int = BATCH_ROWS) -> None:
        self._catalog = catalog
        self._batch_rows = batch_rows
        self._engine: duckdb.DuckDBPyConnection | None = None

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported, ConfigError."""
        rows = ranges(request.scope) if request.scope else ()
        old, new = self._sides(request, rows)
        coming = added(request.change)
        columns = columns_of_diff(
            old.schema,
            new.schema,
            request.key,
            (*request.ignore, *coming),
            asked_columns(request.where, old, new) | set(coming),
            request.tolerances,
        )
        how = layout(old, new, request.scope)
        split = split_files(old, new, how, request.scope, columns, request.known_equal)
        labels = labels_of(split, how, request.scope)
        tally = Tally(
            labels, columns, request.samples, coming=coming, distributions=request.distributions
        )
        self._compare(request, (old, new), how, split, tally, rows)
        return Diff(
            old=old.text,
            new=new.text,
            key=request.key,
            summary=tally.summary(),
            partitions=tally.partitions(),
            columns=tally.column_diffs(),
            samples=tally.all_samples(),
            files=split.files,
            engine="local",
            duplicate_keys=tally.duplicate_keys,
            cells=tally.cells(),
            added_columns=tally.added_columns(),
        )

    def differing(self, request: DiffRequest) -> Iterator[Differing]:
        """Yield every row that differs, whole; memory holds one group of partitions at a time."""
        rows = ranges(request.scope) if request.scope else ()
        old, new = self._sides(request, rows)
        ignore = (*request.ignore, *added(request.change))
        columns = columns_of_diff(old.schema, new.schema, request.key, ignore, ())
        how = layout(old, new, request.scope)
        split = split_files(old, new, how, request.scope, columns)
        tally = Tally(labels_of(split, how, request.scope), columns, 0)
        numbers = {label: index for index, label in enumerate(tally.labels)}
        row_filter = None if how.is_split else any_of(rows)
        one = Source(old, "old", how, numbers, row_filter)
        other = Source(new, "new", how, numbers, row_filter)
        comparison = Comparison(self._connection(), tally, None)
        try:
            for mine, theirs in batches(split.old, split.new, how, self._batch_rows):
                yield from comparison.differing(*gather_both((one, mine), (other, theirs), columns))
        finally:
            comparison.close()

    def weigh(self, request: DiffRequest) -> int:
        """Tell from metadata how many bytes of files a diff would read."""
        return self.preview(request).bytes_to_read

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Tell from metadata what is the same on both sides, and what a diff would read.

        A condition leaves rows out only while they are read: for it shared files are read too.
        """
        rows = ranges(request.scope) if request.scope else ()
        old, new = self._sides(request, rows)
        ignore = (*request.ignore, *added(request.change))
        asked = asked_columns(request.where, old, new)
        columns = columns_of_diff(
            old.schema, new.schema, request.key, ignore, asked, request.tolerances
        )
        how = layout(old, new, request.scope)
        split = split_files(old, new, how, request.scope, columns, request.known_equal)
        labels = labels_of(split, how, request.scope)
        return preview(request, old, new, how, split, labels)

    def _sides(self, request: DiffRequest, rows: tuple[RowRange, ...]) -> tuple[Side, Side]:
        old, new = both(
            self._catalog,
            (request.old_table, request.old_snapshot_id),
            (request.new_table, request.new_snapshot_id),
            rows,
        )
        if not request.change or old.table is None:
            return old, new
        # Files are read by column id, so under the names and types that the columns have now.
        held = old.schema.field_ids
        fields = [field for field in new.schema.fields if field.field_id in held]
        return replace(old, schema=Schema(*fields)), new

    def _compare(
        self,
        request: DiffRequest,
        sides: tuple[Side, Side],
        how: Layout,
        split: Split,
        tally: Tally,
        rows: tuple[RowRange, ...],
    ) -> None:
        numbers = {label: index for index, label in enumerate(tally.labels)}
        row_filter = None if how.is_split else any_of(rows)
        old = Source(sides[0], "old", how, numbers, row_filter)
        new = Source(sides[1], "new", how, numbers, row_filter)
        slots = {column.name: column.slot for column in tally.columns}
        condition = render(request.where, slots, "duckdb") if request.where else None
        unread = []
        for piece in split.shared:
            if is_counted(piece, how, request.where):
                tally.add_shared(numbers[piece.label], piece.rows)
            else:
                unread.append(piece)
        if not (condition or unread or split.old or split.new):
            return
        comparison = Comparison(self._connection(), tally, condition)
        try:
            if condition:
                empty = [source.gather([], tally.columns) for source in (old, new)]
                comparison.check(empty[0], empty[1], request.where or "")
            asked = asked_columns(request.where, *sides)
            read = tuple(column for column in tally.columns if column.name in asked)
            for group in portions(unread, self._batch_rows):
                comparison.count(new.gather(group, read))
            for one, other in batches(split.old, split.new, how, self._batch_rows):
                comparison.compare(*gather_both((old, one), (new, other), tally.columns))
        finally:
            comparison.close()

    def _connection(self) -> duckdb.DuckDBPyConnection:
        # Kept for the next diff: starting DuckDB costs as much as comparing a few files.
        if self._engine is None:
            spill = TemporaryDirectory(prefix="lhb-diff-")
            self._engine = engine(spill.name)
            weakref.finalize(self, _shut, self._engine, spill)
        return self._engine


def _shut(connection: duckdb.DuckDBPyConnection, spill: TemporaryDirectory[str]) -> None:
    connection.close()
    spill.cleanup()
