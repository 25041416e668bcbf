"""The values of a key column, as statistics of files tell them, and as the column holds them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from lakehouse_backfill.adapters.iceberg.manifests.scope_files import ScopeFiles
from lakehouse_backfill.adapters.iceberg.metadata import schema_of_snapshot
from lakehouse_backfill.domain.labels import key_ranges
from lakehouse_backfill.domain.labels.key_ranges import (
    MAX_KEY_CHUNKS,
    KeyBounds,
    KeyRanges,
    KeySpan,
)
from lakehouse_backfill.domain.labels.row_values import NamedValue
from lakehouse_backfill.domain.partitions import partition_start
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import ArrowScan

#: Of more rows, only some values are kept: every n-th of each sorted block.
_MOST_VALUES = 5_000_000
_BLOCK_VALUES = 1_000_000
#: Files that are read side by side, and their rows: PyIceberg holds the column of all of them.
_READ_AT_ONCE, _ROWS_AT_ONCE = 8, 8_000_000
#: Of a file of more rows, so much is held.
_BATCH_ROWS, _BUFFER_BYTES = 131_072, 8 * 1024 * 1024


def choose_bounds(
    table: Table, snapshot: Snapshot, content: ScopeFiles, wanted: KeyRanges
) -> KeyBounds:
    """Return the bounds between ranges of a column in a snapshot; rows that deletes hide count."""
    fields = schema_of_snapshot(table.metadata, snapshot).fields
    found = next((each for each in fields if each.name == wanted.column), None)
    if found is None:
        return KeyBounds((), 0, "statistics")
    files = [listing.entry.data_file for listing in content.listings]
    return KeyColumn(table, found).bounds(files, wanted)


class KeyColumn:
    """A column of a table whose values are cut into ranges."""

    def __init__(self, table: Table, column: NestedField) -> None:
        self._table, self._column = table, column
        self._type = str(column.field_type)

    def bounds(self, files: Sequence[DataFile], wanted: KeyRanges) -> KeyBounds:
        """Return the bounds between ranges of the files' rows."""
        spans = [self._span(file) for file in files]
        rows = sum(span.rows for span in spans)
        count = wanted.count_of(rows)
        if not rows or count > MAX_KEY_CHUNKS:
            return KeyBounds((), rows, "statistics")
        found = key_ranges.bounds_by_statistics(spans, count)
        if found is not None:
            return KeyBounds(found, rows, "statistics")
        kept = self._sorted_sample(files, rows)
        places = key_ranges.quantile_places(len(kept), count) if len(kept) else []
        try:
            values = [kept[place].as_py() for place in places]
        except (OverflowError, ValueError) as error:
            raise Unsupported(
                f"{self._column.name} of {self._table.name()[-1]} has values that Python cannot "
                f"hold: {error}",
                state="nothing was planned, pinned or changed",
                fix="write limits.key_ranges.bounds",
                field="limits.key_ranges",
            ) from error
        return KeyBounds(key_ranges.bounds_of_firsts(values), rows, "column")

    def _span(self, file: DataFile) -> KeySpan:
        nulls = (file.null_value_counts or {}).get(self._column.field_id, 0)
        first, last = map(self._decoded, (file.lower_bounds, file.upper_bounds))
        return KeySpan(first, last, max(0, file.record_count - nulls))

    def _decoded(self, bounds: dict[int, bytes] | None) -> NamedValue:
        """Decode a bound; one from before the column became a time is unknown."""
        stored = (bounds or {}).get(self._column.field_id)
        if stored is None:
            return None
        try:
            if self._type in ("int", "long"):
                # A bound from before the column was widened is shorter.
                return int.from_bytes(stored, "little", signed=True)
            kind: Any = self._column.field_type
            value: Any = from_bytes(kind, stored)
            if isinstance(value, int):
                value = partition_start("identity", self._type, value)
            found: NamedValue = value.replace(tzinfo=None) if self._type == "timestamp" else value
        except (OverflowError, ValueError, struct.error):
            return None
        return found

    def _sorted_sample(self, files: Sequence[DataFile], rows: int) -> pa.Array:
        """Return all values sorted; of very many every n-th of each block: memory is bounded."""
        step, held = -(-rows // _MOST_VALUES), 0
        kept: list[pa.Array] = []
        block: list[pa.Array] = []
        for array in self._read(files):
            block.append(array)
            held += len(array)
            if step > 1 and held >= _BLOCK_VALUES:
                kept.append(self._sorted(block)[step // 2 :: step])
                block, held = [], 0
        return self._sorted([*kept, self._sorted(block)[step // 2 :: step]])

    def _sorted(self, arrays: Sequence[pa.Array]) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pa.concat_arrays([self._empty(), *arrays])
        return whole.take(pc.sort_indices(whole))

    def _read(self, files: Sequence[DataFile]) -> Iterator[pa.Array]:
        """Read the column of the files, without nulls, and without regard to delete files."""
        from pyiceberg.io.pyarrow import ArrowScan

        schema, kind = Schema(self._column), self._empty().type
        scan = ArrowScan(self._table.metadata, self._table.io, schema, AlwaysTrue())
        # PyIceberg reads all files that it is given, however many are waiting to be looked at.
        for group in _groups(files):
            if sum(file.record_count for file in group) > _ROWS_AT_ONCE:
                arrays = self._read_large(group[0], scan)
            else:
                arrays = _first_columns(scan, group)
            for array in arrays:
                yield array.drop_null().cast(kind)

    def _read_large(self, file: DataFile, scan: ArrowScan) -> Iterator[pa.Array]:
        """Read the column of one file while it is looked at: PyIceberg reads all of it first."""
        import pyarrow.parquet as pq

        with self._table.io.new_input(file.file_path).open() as stored:
            if file.file_format == FileFormat.PARQUET:
                # Without `pre_buffer`, a row group's part of the column is read as it is decoded.
                parquet = pq.ParquetFile(stored, buffer_size=_BUFFER_BYTES, pre_buffer=False)
                own = str(self._column.field_id).encode()
                for name in parquet.schema_arrow.names:
                    known = parquet.schema_arrow.field(name).metadata or {}
                    if known.get(b"PARQUET:field_id") == own and "." not in name:
                        batches = parquet.iter_batches(_BATCH_ROWS, columns=[name])
                        yield from (batch.column(0) for batch in batches)
                        return
        yield from _first_columns(scan, [file])

    def _empty(self) -> pa.Array:
        column: pa.ChunkedArray = Schema(self._column).as_arrow().empty_table().column(0)
        return column.combine_chunks()


def _first_columns(scan: ArrowScan, files: Sequence[DataFile]) -> Iterator[pa.Array]:
    tasks = [FileScanTask(file) for file in files]
    return (batch.column(0) for batch in scan.to_record_batches(tasks))


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Yield the files that are read side by side; one of more rows is read alone."""
    group: list[DataFile] = []
    rows = 0
    for file in files:
        is_full = len(group) == _READ_AT_ONCE or rows + file.record_count > _ROWS_AT_ONCE
        if group and is_full:
            yield group
            group, rows = [], 0
        group.append(file)
        rows += file.record_count
    if group:
        yield group
