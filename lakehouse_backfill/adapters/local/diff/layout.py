"""How files group into partitions and batches; a batch as Arrow tables.

Which files of a diff are shared, and in which groups the others are read.

A file is the same content on both sides when path, partition and delete files are equal, and when
both schemas read the compared columns from it in the same way.

Rows of a batch of files as one Arrow table per side: columns c0, c1, … and the partition p.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema, index_by_id

from lakehouse_backfill.adapters.local.diff.columns import PARTITION_SLOT, DiffColumn, SideName
from lakehouse_backfill.adapters.local.parquet import read_file_columns, thread_pool
from lakehouse_backfill.adapters.local.scan import SnapshotScan
from lakehouse_backfill.domain.partitions import Scope, ScopeField, label_sort_key, partition_label

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask


_SCOPED_TYPES = ("date", "timestamp", "timestamptz", "int", "long", "string")


@dataclass(frozen=True)
class FilePiece:
    """One file of one side, with the label of its partition (None: not known for whole files)."""

    task: FileScanTask
    label: str | None

    @property
    def rows(self) -> int:
        """Rows of the file, deletes not counted."""
        return int(self.task.file.record_count)

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return int(self.task.file.file_size_in_bytes)


@dataclass(frozen=True)
class PartitionLayout:
    """How the files of a diff divide into partitions.

    `field` is set when labels are those of one field; `is_split` tells whether every file lies in
    one partition; else its rows have to say where they belong (`field`), or nobody can.
    """

    field: ScopeField | None
    is_partition_aligned: bool


def choose_layout(old: SnapshotScan, new: SnapshotScan, scope: Scope | None) -> PartitionLayout:
    """Choose how rows are assigned to partitions: by the scope's field, else by the one spec."""
    # What a file's partition is made of, its spec says.
    by_spec = [(side, {task.file.spec_id: task for task in side.tasks}) for side in (old, new)]
    kinds = [(side, task) for side, tasks in by_spec for task in tasks.values()]
    if scope is not None:
        whole = all(_field_position(side, task, scope.field) is not None for side, task in kinds)
        return PartitionLayout(scope.field, is_partition_aligned=whole)
    shapes = {_spec_shape(side, task) for side, task in kinds}
    shape = shapes.pop() if len(shapes) == 1 else ()
    if not shape:
        return PartitionLayout(None, is_partition_aligned=False)
    return PartitionLayout(
        _as_scope_field(new if new.tasks else old, shape), is_partition_aligned=True
    )


def label_files(side: SnapshotScan, how: PartitionLayout, scope: Scope | None) -> list[FilePiece]:
    """Label the files of a side; those of partitions outside the scope are left out."""
    inside = set(scope.partitions) if scope is not None and how.is_partition_aligned else None
    # Partitions are few beside files.
    labels: dict[Hashable, str | None] = {}
    labelled: list[FilePiece] = []
    for task in side.tasks:
        partition = task.file.spec_id, task.file.partition
        if partition not in labels:
            labels[partition] = _label_of_file(side, task, how)
        labelled.append(FilePiece(task, labels[partition]))
    return [piece for piece in labelled if inside is None or piece.label in inside]


class SchemaReading:
    """How two schemas read the compared columns from a file that both sides list."""

    def __init__(self, old: Schema, new: Schema, columns: Iterable[str]) -> None:
        pairs = [(_find_column(old, name), _find_column(new, name)) for name in columns]
        both = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
        self._same_ids = all(_column_ids(mine) == _column_ids(other) for mine, other in both)
        # A column of one side only must be absent from the file: then both sides see null.
        self._single = [
            (mine or other, old if mine is None else new)
            for mine, other in pairs
            if mine is None or other is None
        ]

    def is_read_alike(self, task: FileScanTask) -> bool:
        """Tell whether both sides see the same values in the file."""
        return self._same_ids and all(
            _is_absent_from_file(column, other, task) for column, other in self._single
        )


class FileIdentity:
    """Tells files of both sides apart by their rows: by path, partition, and deletes that apply.

    A file may lack the columns of identity partitions: their values come from its partition.
    """

    def __init__(self) -> None:
        # A partition is slow to hash; they are few beside files.
        self._partitions: dict[Hashable, int] = {}

    def identity_of(self, task: FileScanTask) -> Hashable:
        """Give what is equal for two files of the same rows."""
        file = task.file
        place = file.spec_id, file.partition
        number = self._partitions.setdefault(place, len(self._partitions))
        deletes = frozenset(each.file_path for each in task.delete_files)
        return file.file_path, number, deletes


def batch_partitions(
    old: list[FilePiece],
    new: list[FilePiece],
    how: PartitionLayout,
    limit: float,
    size_of: Callable[[FilePiece], float] = lambda piece: piece.rows,
) -> Iterator[tuple[list[FilePiece], list[FilePiece]]]:
    """Yield groups of whole partitions that are at most `limit` together, in partition order.

    A size is in rows, unless told otherwise. A partition that is larger comes alone; without known
    partitions everything is one group.
    """
    sides: tuple[list[FilePiece], list[FilePiece]] = ([], [])
    by_label: dict[str | None, tuple[list[FilePiece], list[FilePiece]]] = {}
    for index, side in enumerate((old, new)):
        for piece in side:
            by_label.setdefault(piece.label, ([], []))[index].append(piece)
    held: float = 0
    for label in sort_labels(by_label, how):
        group = by_label[label]
        size = sum(size_of(piece) for side in group for piece in side)
        if held and held + size > limit:
            yield sides
            sides, held = ([], []), 0
        for mine, theirs in zip(sides, group, strict=True):
            mine.extend(theirs)
        held += size
    if any(sides):
        yield sides


def batch_files(pieces: list[FilePiece], limit: int) -> Iterator[list[FilePiece]]:
    """Yield groups of at most `limit` rows, across partitions; a file of more rows comes alone."""
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


def sort_labels(labels: Iterable[str | None], how: PartitionLayout) -> list[str | None]:
    """Sort partition labels the way people read them."""
    known = [label for label in labels if label is not None]
    unknown: list[str | None] = [None] if any(label is None for label in labels) else []
    return unknown + sorted(known, key=label_sort_key(how.field) if how.field else None)


def _label_of_file(side: SnapshotScan, task: FileScanTask, how: PartitionLayout) -> str | None:
    if not how.is_partition_aligned:
        return None
    if how.field is None:
        return str(side.spec_of(task).partition_to_path(task.file.partition, side.schema))
    position = _field_position(side, task, how.field)
    # A split layout knows the field of every file.
    return (
        None
        if position is None
        else stored_partition_label(how.field, task.file.partition[position])
    )


def stored_partition_label(field: ScopeField, value: Any) -> str:
    """Give the label of a stored partition value (days, hours … since 1970 for times)."""
    if value is None or field.type in ("string", "int", "long"):
        return partition_label(field, value)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    if field.transform in ("month", "year"):
        months = int(value) * (12 if field.transform == "year" else 1)
        return partition_label(
            field, epoch.replace(year=1970 + months // 12, month=months % 12 + 1)
        )
    if field.transform == "hour":
        return partition_label(field, epoch + timedelta(hours=int(value)))
    if field.transform == "day" or field.type == "date":
        return partition_label(field, epoch + timedelta(days=int(value)))
    moment = epoch + timedelta(microseconds=int(value))
    return partition_label(
        field, moment.replace(tzinfo=None) if field.type == "timestamp" else moment
    )


def _field_position(side: SnapshotScan, task: FileScanTask, field: ScopeField) -> int | None:
    column = _find_column(side.schema, field.column)
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


def _find_column(schema: Schema, name: str) -> Any:
    return next((column for column in schema.fields if column.name == name), None)


def _column_ids(column: Any) -> list[tuple[int, str]]:
    if column.field_type.is_primitive:
        return [(column.field_id, column.name)]
    return sorted((each, part.name) for each, part in index_by_id(Schema(column)).items())


def _is_absent_from_file(column: Any, other: Schema, task: FileScanTask) -> bool:
    if column.initial_default is not None or column.field_id <= other.highest_field_id:
        return False
    held = {*(task.file.value_counts or {}), *(task.file.column_sizes or {})}
    return column.field_id not in held


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
    partition_numbers: dict[str | None, int]
    row_filter: BooleanExpression | None

    def read_pieces(self, pieces: list[FilePiece], columns: tuple[DiffColumn, ...]) -> pa.Table:
        """Read the pieces; a column that this side lacks is null, of the other side's type."""
        own = [column.name for column in columns if column.field(self.name) is not None]
        field = self.layout.field
        by_row = field is not None and not self.layout.is_partition_aligned
        if by_row and field is not None and field.column not in own:
            own.append(field.column)
        # A file without any wanted column still has rows to count.
        wanted = own or [self.side.schema.fields[0].name] if pieces else []
        tables = read_file_columns(
            self.side, [piece.task for piece in pieces], wanted, self.row_filter
        )
        parts = [
            self._with_slots(
                table, columns, self._partition_column(table, piece, field if by_row else None)
            )
            for table, piece in zip(tables, pieces, strict=True)
        ]
        if not parts:
            return self._empty_table(columns)
        rows = pa.concat_tables(_align_dictionaries(parts), promote_options="permissive")
        return pa.Table.from_batches(rows.to_batches(max_chunksize=_BATCH_ROWS), rows.schema)

    def _partition_column(self, table: pa.Table, piece: FilePiece, field: ScopeField | None) -> Any:
        if field is not None:
            return _number_partitions(table[field.column], field, self.partition_numbers)
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

    def _empty_table(self, columns: tuple[DiffColumn, ...]) -> pa.Table:
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
    reading = [sides.submit(source.read_pieces, pieces, columns) for source, pieces in (old, new)]
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
    return Schema(own or column.known_field).as_arrow().field(0).type


def _number_partitions(values: Any, field: ScopeField, numbers: dict[str | None, int]) -> Any:
    if field.transform != "identity":
        values = pc.floor_temporal(values, unit=field.transform)
    encoded = values.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    labels = [partition_label(field, value) for value in encoded.dictionary.to_pylist()]
    known = pa.array([numbers[label] for label in labels], pa.int32())
    return known.take(encoded.indices)
