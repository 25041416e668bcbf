"""Partitions and batches of the files of a diff, and a batch of files as Arrow tables.

A file has the same content on both sides when path, partition and delete files are equal, and both
schemas read the compared columns from it in the same way. A batch is one Arrow table per side, with
columns c0, c1, … and the partition p.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from lakehouse_backfill.adapters.local.diff.columns import PARTITION_SLOT, DiffColumn, SideName
from lakehouse_backfill.adapters.local.parquet import (
    read_file_columns,
    stream_file_columns,
    thread_pool,
)
from lakehouse_backfill.adapters.local.scan import SnapshotScan
from lakehouse_backfill.domain.labels.values import is_bucket, width_of
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_LABEL,
    Scope,
    ScopeField,
    label_sort_key,
    partition_label,
    partition_start,
)

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

    from lakehouse_backfill.adapters.local.measuring.side_sums import ReadSums


_SCOPED_TYPES = ("date", "timestamp", "timestamptz", "int", "long", "string")


@dataclass(frozen=True)
class FilePiece:
    """One file of one side and its partition label (None: the file has no single known label)."""

    task: FileScanTask
    label: str | None

    @property
    def rows(self) -> int:
        """Rows of the file, including deleted ones."""
        return int(self.task.file.record_count)

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return int(self.task.file.file_size_in_bytes)


@dataclass(frozen=True)
class PartitionLayout:
    """How the files of a diff divide into partitions.

    `field` is the field of the labels, if it is one field. `is_partition_aligned` is true when
    every file is in one partition. Otherwise rows are labelled one by one by `field`; without a
    field they have no label.
    """

    field: ScopeField | None
    is_partition_aligned: bool


def choose_layout(old: SnapshotScan, new: SnapshotScan, scope: Scope | None) -> PartitionLayout:
    """Choose how rows are assigned to partitions: by the scope's field, else by the one spec."""
    # One file per spec is enough: the spec defines the partition fields.
    by_spec = [(side, {task.file.spec_id: task for task in side.tasks}) for side in (old, new)]
    samples = [(side, task) for side, tasks in by_spec for task in tasks.values()]
    if scope is not None:
        is_aligned = scope.field.is_whole_table or all(
            _field_position(side, task, scope.field) is not None for side, task in samples
        )
        return PartitionLayout(scope.field, is_partition_aligned=is_aligned)
    shapes = {_spec_shape(side, task) for side, task in samples}
    shape = shapes.pop() if len(shapes) == 1 else ()
    if not shape:
        return PartitionLayout(None, is_partition_aligned=False)
    return PartitionLayout(
        _as_scope_field(new if new.tasks else old, shape), is_partition_aligned=True
    )


def label_files(side: SnapshotScan, how: PartitionLayout, scope: Scope | None) -> list[FilePiece]:
    """Label the files of a side; files of partitions outside the scope are left out."""
    scope_labels = set(scope.partitions) if scope is not None and how.is_partition_aligned else None
    # Cached per partition, as there are far fewer partitions than files.
    labels: dict[Hashable, str | None] = {}
    labelled: list[FilePiece] = []
    for task in side.tasks:
        partition = task.file.spec_id, task.file.partition
        if partition not in labels:
            labels[partition] = _label_of_file(side, task, how)
        labelled.append(FilePiece(task, labels[partition]))
    return [piece for piece in labelled if scope_labels is None or piece.label in scope_labels]


def identify_files(*sides: list[FilePiece]) -> list[list[Hashable]]:
    """Identify the files of each side by their rows: path, partition, and deletes that apply.

    Two files of the same rows have the same key. The partition counts, as a file may lack the
    columns of identity partitions: their values come from its partition.
    """
    # A partition is slow to hash, and there are far fewer partitions than files.
    numbers: dict[Hashable, int] = {}
    identities: list[list[Hashable]] = []
    for side in sides:
        keys: list[Hashable] = []
        for file, deletes in ((piece.task.file, piece.task.delete_files) for piece in side):
            number = numbers.setdefault((file.spec_id, file.partition), len(numbers))
            keys.append((file.file_path, number, frozenset(each.file_path for each in deletes)))
        identities.append(keys)
    return identities


def group_by_label(*sides: list[FilePiece]) -> dict[str | None, tuple[list[FilePiece], ...]]:
    """Return the files of each partition, by side."""
    by_label: dict[str | None, tuple[list[FilePiece], ...]] = {}
    for index, side in enumerate(sides):
        for piece in side:
            by_label.setdefault(piece.label, tuple([] for _ in sides))[index].append(piece)
    return by_label


def batch_partitions(
    old: list[FilePiece],
    new: list[FilePiece],
    how: PartitionLayout,
    limit: float,
    size_of: Callable[[FilePiece], float] = lambda piece: piece.rows,
) -> Iterator[tuple[list[FilePiece], list[FilePiece]]]:
    """Yield groups of whole partitions of at most `limit` together, in partition order.

    Sizes are in rows, unless `size_of` is given. A larger partition is a group of its own. Without
    known partitions everything is one group.
    """
    sides: tuple[list[FilePiece], list[FilePiece]] = ([], [])
    by_label = group_by_label(old, new)
    group_size: float = 0
    for label in sort_labels(by_label, how):
        group = by_label[label]
        size = sum(size_of(piece) for side in group for piece in side)
        if group_size and group_size + size > limit:
            yield sides
            sides, group_size = ([], []), 0
        for pieces, partition_pieces in zip(sides, group, strict=True):
            pieces.extend(partition_pieces)
        group_size += size
    if any(sides):
        yield sides


def batch_files(pieces: list[FilePiece], limit: int) -> Iterator[list[FilePiece]]:
    """Yield groups of at most `limit` rows, across partitions; a larger file is its own group."""
    group: list[FilePiece] = []
    rows = 0
    for piece in pieces:
        if group and rows + piece.rows > limit:
            yield group
            group, rows = [], 0
        group.append(piece)
        rows += piece.rows
    if group:
        yield group


def sort_labels(labels: Collection[str | None], how: PartitionLayout) -> list[str | None]:
    """Return partition labels in display order."""
    known = [label for label in labels if label is not None]
    unlabelled: list[str | None] = [None] if None in labels else []
    return unlabelled + sorted(known, key=label_sort_key(how.field) if how.field else None)


def _label_of_file(side: SnapshotScan, task: FileScanTask, how: PartitionLayout) -> str | None:
    if not how.is_partition_aligned:
        return None
    if how.field is None:
        return str(side.spec_of(task).partition_to_path(task.file.partition, side.schema))
    if how.field.is_whole_table:
        return WHOLE_TABLE_LABEL
    position = _field_position(side, task, how.field)
    if position is None:
        return None
    value, field = task.file.partition[position], how.field
    start = None if value is None else partition_start(field.transform, field.type, value)
    return partition_label(field, start)


def _field_position(side: SnapshotScan, task: FileScanTask, field: ScopeField) -> int | None:
    column = _find_source(side.schema, field)
    for position, part in enumerate(side.spec_of(task).fields):
        same = column is not None and part.source_id == column.field_id
        if same and str(part.transform) == field.transform:
            return position
    return None


def _spec_shape(side: SnapshotScan, task: FileScanTask) -> tuple[tuple[str, str], ...]:
    names = {column.field_id: column.name for column in side.schema.fields}
    return tuple(
        (names.get(part.source_id, f"#{part.source_id}"), str(part.transform))
        for part in side.spec_of(task).fields
        if str(part.transform) != "void"
    )


def _as_scope_field(side: SnapshotScan, shape: tuple[tuple[str, str], ...]) -> ScopeField | None:
    if len(shape) != 1:
        return None
    name, transform = shape[0]
    column = _find_column(side.schema, name)
    kind = str(column.field_type) if column is not None else ""
    if transform not in ("identity", "hour", "day", "month", "year") or kind not in _SCOPED_TYPES:
        return None
    return ScopeField.model_validate({"column": name, "transform": transform, "type": kind})


def _find_source(schema: Schema, field: ScopeField) -> Any:
    """Return the column, or the field of a struct, that partitions are by; None without one."""
    if not field.path:
        return _find_column(schema, field.column)
    ids = {schema.find_column_name(number): number for number in schema.field_ids}
    return schema.find_field(ids[field.column]) if field.column in ids else None


def _find_column(schema: Schema, name: str) -> Any:
    return next((column for column in schema.fields if column.name == name), None)


#: Enough for a few diffs at a time.
_MAX_SIDE_READERS = 8
#: Small enough to keep all cores busy, and for arrays derived from one batch to stay cached.
_BATCH_ROWS = 32_768


@dataclass(frozen=True)
class SideReader:
    """Reads the rows of one side and numbers their partitions.

    `row_filter` limits the rows where files reach beyond the scope. `sums` gets what is read.
    """

    side: SnapshotScan
    name: SideName
    layout: PartitionLayout
    partition_numbers: dict[str | None, int]
    row_filter: BooleanExpression | None
    sums: ReadSums | None = None

    def read_pieces(self, pieces: list[FilePiece], columns: tuple[DiffColumn, ...]) -> pa.Table:
        """Read the pieces; a column that this side lacks is null, of the other side's type."""
        field = self._labelled_by_row()
        wanted = self._read_columns(columns) if pieces else []
        tables = read_file_columns(
            self.side, [piece.task for piece in pieces], wanted, self.row_filter
        )
        parts = []
        for table, piece in zip(tables, pieces, strict=True):
            self._add_up(piece, table)
            partition = self._partition_column(table, piece, field)
            parts.append(self._with_slots(table, columns, partition))
        if not parts:
            return self.stored_schema(columns).empty_table()
        rows = pa.concat_tables(_align_dictionaries(parts), promote_options="permissive")
        return pa.Table.from_batches(rows.to_batches(max_chunksize=_BATCH_ROWS), rows.schema)

    def stream_piece(self, piece: FilePiece, columns: tuple[DiffColumn, ...]) -> Iterator[pa.Table]:
        """Yield the rows of one piece in batches, as `read_pieces` gives them."""
        field = self._labelled_by_row()
        wanted = self._read_columns(columns)
        for rows in stream_file_columns(
            self.side, piece.task, wanted, self.row_filter, may_encode=True
        ):
            self._add_up(piece, rows)
            yield self._with_slots(rows, columns, self._partition_column(rows, piece, field))

    def _add_up(self, piece: FilePiece, rows: pa.Table) -> None:
        if self.sums is not None:
            self.sums.add(piece.task.file.file_path, rows)

    def _labelled_by_row(self) -> ScopeField | None:
        return None if self.layout.is_partition_aligned else self.layout.field

    def _read_columns(self, columns: tuple[DiffColumn, ...]) -> list[str]:
        """Return the columns of this side that are read: at least one, as rows are counted."""
        names = [column.name for column in columns if column.field(self.name) is not None]
        field = self._labelled_by_row()
        if field is not None and field.root not in names:
            names.append(field.root)
        if self.sums is not None:
            names += [name for name in self.sums.names if name not in names]
        return names or [self.side.schema.fields[0].name]

    def _partition_column(self, table: pa.Table, piece: FilePiece, field: ScopeField | None) -> Any:
        if field is not None:
            values = table[field.root]
            if field.path:
                values = pc.struct_field(values, list(field.path[1:]))
            return number_partitions(values, field, self.partition_numbers)
        return pa.repeat(pa.scalar(self.partition_numbers[piece.label], pa.int32()), table.num_rows)

    def _with_slots(
        self, table: pa.Table, columns: tuple[DiffColumn, ...], partition: Any
    ) -> pa.Table:
        arrays = [
            table[column.name]
            if column.field(self.name) is not None
            else pa.nulls(table.num_rows, arrow_type(column))
            for column in columns
        ]
        names = [column.slot for column in columns]
        return pa.table([*arrays, partition], names=[*names, PARTITION_SLOT])

    def stored_schema(self, columns: tuple[DiffColumn, ...]) -> pa.Schema:
        """Return the types of the columns that are read, where none is a dictionary."""
        fields = [
            pa.field(column.slot, arrow_type(column, column.field(self.name))) for column in columns
        ]
        return pa.schema([*fields, pa.field(PARTITION_SLOT, pa.int32())])


def read_in_batches(
    reader: SideReader, pieces: list[FilePiece], columns: tuple[DiffColumn, ...], limit: int
) -> Iterator[tuple[pa.Table, list[FilePiece]]]:
    """Yield the rows of the files in parts of at most `limit`, and the files that begin in each."""
    for group in batch_files(pieces, limit):
        if group[0].rows <= limit:
            yield reader.read_pieces(group, columns), group
            continue
        for number, rows in enumerate(reader.stream_piece(group[0], columns)):
            yield rows, [] if number else group


def read_both_sides(
    old: tuple[SideReader, list[FilePiece]],
    new: tuple[SideReader, list[FilePiece]],
    columns: tuple[DiffColumn, ...],
) -> tuple[pa.Table, pa.Table]:
    """Read both sides at the same time."""
    sides = thread_pool("side", _MAX_SIDE_READERS)
    reading = [sides.submit(source.read_pieces, pieces, columns) for source, pieces in (old, new)]
    wait(reading)
    return reading[0].result(), reading[1].result()


def _align_dictionaries(tables: list[pa.Table]) -> list[pa.Table]:
    """Decode a column's dictionaries unless it is a dictionary in every table."""
    for index, name in enumerate(tables[0].column_names):
        kinds = [table[name].type for table in tables]
        encoded = [kind for kind in kinds if pa.types.is_dictionary(kind)]
        if encoded and len(encoded) < len(kinds):
            plain = encoded[0].value_type
            tables = [table.set_column(index, name, table[name].cast(plain)) for table in tables]
    return tables


def arrow_type(column: DiffColumn, own: Any = None) -> pa.DataType:
    """Return the Arrow type of the side's own field, else of the side that has the column."""
    return Schema(own or column.known_field).as_arrow().field(0).type


def partition_values_of(values: pa.ChunkedArray, field: ScopeField) -> pa.ChunkedArray:
    """Return what names the partition of each value: few values for many rows."""
    if field.transform in ("hour", "day", "month", "year"):
        return pc.floor_temporal(values, unit=field.transform)
    buckets = width_of(field.transform) if is_bucket(field.transform) else None
    if buckets is None:
        return values
    # Arrow tells the type; PyIceberg does not look at this one.
    transform = BucketTransform(buckets).pyarrow_transform(StringType())
    is_encoded = pa.types.is_dictionary(values.type)
    plain = values.cast(values.type.value_type) if is_encoded else values
    return pa.chunked_array([transform(chunk) for chunk in plain.chunks], pa.int32())


def number_partitions(values: Any, field: ScopeField, numbers: dict[str | None, int]) -> Any:
    """Return the number of the partition that each value of the field's column belongs to."""
    values = partition_values_of(values, field)
    encoded = values.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    labels = [partition_label(field, value) for value in encoded.dictionary.to_pylist()]
    known = pa.array([numbers[label] for label in labels], pa.int32())
    return known.take(encoded.indices)
