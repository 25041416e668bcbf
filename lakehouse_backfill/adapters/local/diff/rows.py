"""Rows of a batch of files as one Arrow table per side: columns c0, c1, … and the partition p."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn
from lakehouse_backfill.adapters.local.diff.grouping import FilePiece, PartitionLayout
from lakehouse_backfill.adapters.local.diff.tally import SideName
from lakehouse_backfill.adapters.local.plain_files import read_file_columns
from lakehouse_backfill.adapters.local.scan import SnapshotScan
from lakehouse_backfill.adapters.local.threads import thread_pool
from lakehouse_backfill.domain.partitions import partition_label
from lakehouse_backfill.domain.scope import ScopeField

PARTITION_SLOT = "p"
#: The number of a row within its side's batch.
ROW_NUMBER_SLOT = "r"
#: Those of a few diffs at a time.
_MAX_SIDE_READERS = 8
#: Batches are small enough for all cores to have some, and for what is made of one to stay cached.
_BATCH_ROWS = 32_768


@dataclass(frozen=True)
class SideReader:
    """Where the rows of one side come from, and how they are numbered by partition.

    `rows` limits what is read where files reach beyond the scope.
    """

    side: SnapshotScan
    name: SideName
    layout: PartitionLayout
    numbers: dict[str | None, int]
    rows: BooleanExpression | None

    def gather(self, pieces: list[FilePiece], columns: tuple[DiffColumn, ...]) -> pa.Table:
        """Read the pieces; a column that this side lacks is null, of the other side's type."""
        own = [column.name for column in columns if column.field(self.name) is not None]
        field = self.layout.field
        by_row = field is not None and not self.layout.is_split
        if by_row and field is not None and field.column not in own:
            own.append(field.column)
        # A file without any wanted column still has rows to count.
        wanted = own or [self.side.schema.fields[0].name] if pieces else []
        tables = read_file_columns(self.side, [piece.task for piece in pieces], wanted, self.rows)
        parts = [
            self._shaped(table, columns, self._partition(table, piece, field if by_row else None))
            for table, piece in zip(tables, pieces, strict=True)
        ]
        if not parts:
            return self._empty(columns)
        rows = pa.concat_tables(_align_dictionaries(parts), promote_options="permissive")
        return pa.Table.from_batches(rows.to_batches(max_chunksize=_BATCH_ROWS), rows.schema)

    def _partition(self, table: pa.Table, piece: FilePiece, field: ScopeField | None) -> Any:
        if field is not None:
            return _number_partitions(table[field.column], field, self.numbers)
        return pa.repeat(pa.scalar(self.numbers[piece.label], pa.int32()), table.num_rows)

    def _shaped(self, table: pa.Table, columns: tuple[DiffColumn, ...], partition: Any) -> pa.Table:
        arrays = [
            table[column.name]
            if column.field(self.name) is not None
            else pa.nulls(table.num_rows, arrow_type(column))
            for column in columns
        ]
        names = [column.slot for column in columns]
        return pa.table([*arrays, partition], names=[*names, PARTITION_SLOT])

    def _empty(self, columns: tuple[DiffColumn, ...]) -> pa.Table:
        fields = [
            pa.field(column.slot, arrow_type(column, column.field(self.name))) for column in columns
        ]
        return pa.schema([*fields, pa.field(PARTITION_SLOT, pa.int32())]).empty_table()


def read_both_sides(
    old: tuple[SideReader, list[FilePiece]],
    new: tuple[SideReader, list[FilePiece]],
    columns: tuple[DiffColumn, ...],
) -> tuple[pa.Table, pa.Table]:
    """Read both sides at the same time."""
    sides = thread_pool("side", _MAX_SIDE_READERS)
    reading = [sides.submit(source.gather, pieces, columns) for source, pieces in (old, new)]
    wait(reading)
    return reading[0].result(), reading[1].result()


def _align_dictionaries(tables: list[pa.Table]) -> list[pa.Table]:
    """Decode the dictionaries of a column that is not one in every table."""
    is_mixed = [
        any(pa.types.is_dictionary(kind) for kind in kinds)
        and not all(pa.types.is_dictionary(kind) for kind in kinds)
        for kinds in zip(*(table.schema.types for table in tables), strict=True)
    ]
    if not any(is_mixed):
        return tables
    return [_decode_dictionaries(table, is_mixed) for table in tables]


def _decode_dictionaries(table: pa.Table, which: list[bool]) -> pa.Table:
    fields = [
        pa.field(field.name, field.type.value_type)
        if is_meant and pa.types.is_dictionary(field.type)
        else field
        for field, is_meant in zip(table.schema, which, strict=True)
    ]
    return table.cast(pa.schema(fields))


def arrow_type(column: DiffColumn, own: Any = None) -> pa.DataType:
    """Give the Arrow type of the side's own field, else of the side that has the column."""
    return Schema(own or column.present).as_arrow().field(0).type


def _number_partitions(values: Any, field: ScopeField, numbers: dict[str | None, int]) -> Any:
    if field.transform != "identity":
        values = pc.floor_temporal(values, unit=field.transform)
    encoded = values.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    labels = [partition_label(field, value) for value in encoded.dictionary.to_pylist()]
    known = pa.array([numbers[label] for label in labels], pa.int32())
    return known.take(encoded.indices)
