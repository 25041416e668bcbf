"""The plan of a diff: the files, columns and partition labels that it compares.

Decides from metadata alone which files both sides share, which files must be read, and which rows
metadata counts.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    NestedField,
    StringType,
)

from lakehouse_backfill.adapters.local.diff.columns import (
    DiffColumn,
    SideName,
    resolve_diff_columns,
)
from lakehouse_backfill.adapters.local.diff.layout import (
    FilePiece,
    PartitionLayout,
    SideReader,
    choose_layout,
    identify_files,
    label_files,
    sort_labels,
)
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.measuring.side_sums import (
    ReadSums,
    SideSums,
    require_parquet,
)
from lakehouse_backfill.adapters.local.scan import filter_of_ranges, require_few
from lakehouse_backfill.core.comparison.conditions import condition_columns, render_condition
from lakehouse_backfill.domain.comparison.diff import SharedFiles
from lakehouse_backfill.domain.comparison.partition_sums import PartitionSums
from lakehouse_backfill.domain.tables.schema_change import added_column_names
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask

    from lakehouse_backfill.adapters.local.scan import SnapshotScan
    from lakehouse_backfill.domain.partitions import RowRange, Scope
    from lakehouse_backfill.ports.comparison import DiffRequest


#: Bytes of shared files that are read to be added up. Spark measures more of them in less time.
_MAX_SHARED_BYTES = 256 * 2**20
_SIDES: tuple[SideName, SideName] = ("old", "new")


@dataclass(frozen=True)
class FileSplit:
    """Files of both sides: the shared ones, and those that must be read on each side."""

    shared: list[FilePiece]
    old: list[FilePiece]
    new: list[FilePiece]
    files: SharedFiles

    @property
    def to_read(self) -> list[FilePiece]:
        """The files to read of both sides."""
        return [*self.old, *self.new]


def split_files(
    old: SnapshotScan,
    new: SnapshotScan,
    how: PartitionLayout,
    scope: Scope | None,
    columns: tuple[DiffColumn, ...],
    known_equal: frozenset[str] = frozenset(),
) -> FileSplit:
    """Return the files to read: without shared files and partitions known to be equal."""
    old_files, new_files = (label_files(side, how, scope) for side in (old, new))
    old_keys, new_keys = identify_files(old_files, new_files)
    equal = known_equal if how.is_partition_aligned else frozenset()
    in_old, in_new = Counter(old_keys), Counter(new_keys)
    # A file may be listed more than once; only equal counts hold the same rows.
    common = {key: count for key, count in in_old.items() if in_new[key] == count}
    reading = SharedReading(old.schema, new.schema, columns)
    keyed = list(zip(new_keys, new_files, strict=True))
    skipped = {key for key, piece in keyed if key in common and reading.is_same(piece.task)}
    shared = sum(common.values())
    same = [key in skipped or piece.label in equal for key, piece in keyed]
    return FileSplit(
        shared=[piece for piece, is_same in zip(new_files, same, strict=True) if is_same],
        old=[
            piece
            for key, piece in zip(old_keys, old_files, strict=True)
            if key not in skipped and piece.label not in equal
        ],
        new=[piece for piece, is_same in zip(new_files, same, strict=True) if not is_same],
        files=SharedFiles(
            shared=shared, old_only=len(old_files) - shared, new_only=len(new_files) - shared
        ),
    )


class SharedReading:
    """How two schemas read the columns of a diff from a file that both sides list."""

    def __init__(self, old: Schema, new: Schema, columns: tuple[DiffColumn, ...]) -> None:
        self._has_same_ids = all(
            _column_ids(column.old) == _column_ids(column.new)
            for column in columns
            if column.old is not None and column.new is not None
        )
        # A column of one side only must be absent from the file, so that both sides see null.
        self._one_sided = [
            (column.known_field, old if column.old is None else new)
            for column in columns
            if column.old is None or column.new is None
        ]

    def is_same(self, task: FileScanTask) -> bool:
        """Return whether both sides see the same values in the file."""
        return self._has_same_ids and all(
            _is_absent_from_file(field, other, task) for field, other in self._one_sided
        )


def _column_ids(column: NestedField) -> list[tuple[int, str]]:
    if column.field_type.is_primitive:
        return [(column.field_id, column.name)]
    return sorted((each, part.name) for each, part in index_by_id(Schema(column)).items())


def _is_absent_from_file(column: NestedField, other: Schema, task: FileScanTask) -> bool:
    if column.initial_default is not None or column.field_id <= other.highest_field_id:
        return False
    stored_ids = {*(task.file.value_counts or {}), *(task.file.column_sizes or {})}
    return column.field_id not in stored_ids


def partition_labels(
    split: FileSplit, how: PartitionLayout, scope: Scope | None
) -> list[str | None]:
    """Return the partitions of the diff in order; a partition's number is its index."""
    if scope is not None:
        return sort_labels(scope.partitions, how)
    labels = {piece.label for piece in (*split.shared, *split.to_read)}
    return sort_labels(labels, how) or [None]


def number_origin(column: DiffColumn, split: FileSplit) -> float:
    """Return the bound of the column's numbers that is next to zero; 0 when they lie around it.

    The bounds are those that metadata gives for the files to read. The origin decides how narrow
    bins are, so a file without bounds makes no count wrong.
    """
    if column.kind != "number" or column.use != "compared":
        return 0.0
    bounds: list[float] = []
    for own, pieces in ((column.old, split.old), (column.new, split.new)):
        if own is None:
            continue
        for piece in pieces:
            file = piece.task.file
            ends = [
                (each or {}).get(own.field_id) for each in (file.lower_bounds, file.upper_bounds)
            ]
            bounds += [_decode_bound(own.field_type, end) for end in ends if end is not None]
    finite = [bound for bound in bounds if math.isfinite(bound)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if low <= 0 <= high:
        return 0.0
    return low if low > 0 else high


def _decode_bound(kind: IcebergType, stored: bytes) -> float:
    """Decode a bound; a file written before a type promotion has it in fewer bytes."""
    if isinstance(kind, DecimalType):
        return float(int.from_bytes(stored, "big", signed=True) / 10**kind.scale)
    if isinstance(kind, (FloatType, DoubleType)):
        return float(
            struct.unpack("<d" if len(stored) == struct.calcsize("d") else "<f", stored)[0]
        )
    return float(int.from_bytes(stored, "little", signed=True))


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
        if request.distributions:
            columns = tuple(replace(each, origin=number_origin(each, split)) for each in columns)
        labels = partition_labels(split, layout, request.scope)
        return cls(request, old, new, columns, layout, split, labels, rows)

    @property
    def partition_numbers(self) -> dict[str | None, int]:
        """The number of each partition."""
        return {label: number for number, label in enumerate(self.labels)}

    def size_of(self, piece: FilePiece) -> int:
        """Estimate the bytes that the rows of a file take in memory: those of the columns read."""
        sizes = piece.task.file.column_sizes or {}
        stored = sum(sizes.get(each, 0) for each in self._field_ids)
        return max(piece.rows * self._row_bytes, stored)

    @cached_property
    def _field_ids(self) -> frozenset[int]:
        """The columns of both sides, and the fields inside them."""
        return frozenset(
            number
            for column in self.columns
            for field in (column.old, column.new)
            if field is not None
            for number in index_by_id(Schema(field))
        )

    @cached_property
    def _row_bytes(self) -> int:
        """The bytes of a row in Arrow, where texts are short."""
        return sum(_value_bytes(column.known_field.field_type) for column in self.columns)

    @property
    def condition_sql(self) -> str | None:
        """The condition in DuckDB's SQL, on the slots of the columns."""
        where = self.request.where
        slots = {column.name: column.slot for column in self.columns}
        return render_condition(where, slots) if where else None

    def new_tally(self) -> Tally:
        """Return an empty tally."""
        rows = self.row_sums
        return Tally(
            self.labels,
            self.columns,
            self.request.samples,
            added_columns=added_column_names(self.request.change),
            distributions=self.request.distributions,
            sums={side: PartitionSums() for side in rows} or None,
            plain_measures=rows["new"].plain_measures if rows else 0,
        )

    @cached_property
    def row_sums(self) -> dict[SideName, SideSums]:
        """What adds up each side, where that is asked for and all of the rows can be read."""
        request, wanted, split = self.request, self.request.read_sides, self.split
        if wanted is None or request.scope is None or request.scope.field.only:
            return {}
        if self.new.table is None or request.where or request.known_equal or request.change:
            return {}
        of_request = request.scope, wanted.ignore, wanted.measures
        is_hashed = wanted.old == "hashed"
        sums: dict[SideName, SideSums] = {}
        try:
            require_parquet(piece.task for piece in (*split.to_read, *split.shared))
            require_few(sum(piece.size_bytes for piece in split.shared), _MAX_SHARED_BYTES, "bytes")
            sums["new"] = SideSums(self.new, *of_request)
            if wanted.old != "unread" and self.old.table is not None:
                sums["old"] = SideSums(self.old, *of_request, is_hashed=is_hashed)
        except Unsupported:
            return {}
        # A shared file is read once, as the new side reads it.
        is_alike = "old" not in sums or self.old.schema.fields == self.new.schema.fields
        return sums if is_alike or not split.shared else {}

    @property
    def condition_columns(self) -> tuple[DiffColumn, ...]:
        """The condition's columns: only these are read of files whose rows are only counted."""
        names = columns_in_condition(self.request.where, self.old, self.new)
        return tuple(column for column in self.columns if column.name in names)

    def side_readers(self, tally: Tally | None = None) -> tuple[SideReader, SideReader]:
        """Return the readers of the old and the new side, whose rows are added up in the tally."""
        sums = self.row_sums
        old, new = ({side: sums[side]} if side in sums else {} for side in _SIDES)
        return self._reader("old", tally, old), self._reader("new", tally, new)

    def shared_reader(self, tally: Tally) -> SideReader:
        """Return the reader of shared files, whose rows are added up for both sides."""
        return self._reader("new", tally, self.row_sums)

    def _reader(
        self, name: SideName, tally: Tally | None, listing: dict[SideName, SideSums]
    ) -> SideReader:
        limit: BooleanExpression | None = (
            None if self.layout.is_partition_aligned else filter_of_ranges(self.row_ranges)
        )
        sums = None
        if tally is not None and name in listing:
            sums = ReadSums(listing[name], tally, listing)
        side = self.old if name == "old" else self.new
        return SideReader(side, name, self.layout, self.partition_numbers, limit, sums)

    def split_shared_files(self) -> tuple[list[FilePiece], list[FilePiece]]:
        """Return the shared files that metadata counts, and those that must be read."""
        is_by_file = self.layout.is_partition_aligned or self.layout.field is None
        if self.request.where or not is_by_file:
            return [], self.split.shared
        counted = [piece for piece in self.split.shared if not piece.task.delete_files]
        return counted, [piece for piece in self.split.shared if piece.task.delete_files]


def _value_bytes(kind: IcebergType) -> int:
    if isinstance(kind, (BooleanType, IntegerType, FloatType, DateType)):
        return 4
    if isinstance(kind, (DecimalType, StringType, BinaryType)):
        return 16
    return 8 if kind.is_primitive else 32


def _as_new_schema(request: DiffRequest, old: SnapshotScan, new: SnapshotScan) -> SnapshotScan:
    """Return the old side under the new side's names and types, when the request has a change.

    Files are read by column id, so they can be read with the current columns.
    """
    if not request.change or old.table is None:
        return old
    old_ids = old.schema.field_ids
    fields = [field for field in new.schema.fields if field.field_id in old_ids]
    return replace(old, schema=Schema(*fields))
