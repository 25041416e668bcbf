"""Rows of partitions that are too large to be compared at once, in buckets of their keys.

Rows of one key are in one bucket, so buckets are compared one after the other, as partitions are.
Each file of the table is read once; rows wait in files of a temporary folder. Memory holds some
rows of a file while it is divided, and then one bucket of both sides.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn
from lakehouse_backfill.adapters.local.diff.layout import FilePiece, SideReader
from lakehouse_backfill.adapters.local.row_hash import row_hashes
from lakehouse_backfill.errors import EnvironmentDown

#: Files of rows that are open at a time, for one side.
_MAX_BUCKETS = 200
#: Rows that are divided at a time.
_SLICE_ROWS = 16_384
_EXACT_TYPES = (
    pa.types.is_integer, pa.types.is_large_string, pa.types.is_string, pa.types.is_date,
    pa.types.is_timestamp, pa.types.is_boolean, pa.types.is_decimal,
)  # fmt: skip
Pieces = tuple[SideReader, list[FilePiece]]


def bucket_slots(sides: Sequence[SideReader], columns: tuple[DiffColumn, ...]) -> list[str]:
    """Return the columns that tell buckets apart: equal rows have equal values in them.

    They are those of the key, else the compared ones; of a type whose equal values are the same
    bytes, on both sides. Without any, rows cannot be divided.
    """
    use = "key" if any(column.use == "key" for column in columns) else "compared"
    old, new = (side.stored_schema(columns) for side in sides)
    return [
        column.slot
        for column in columns
        if column.use == use
        and column.tolerance is None
        and old.field(column.slot).type == new.field(column.slot).type
        and any(is_exact(old.field(column.slot).type) for is_exact in _EXACT_TYPES)
    ]


def read_in_buckets(
    old: Pieces, new: Pieces, columns: tuple[DiffColumn, ...], buckets: int
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield both sides of each bucket; they have as many rows each where keys seldom repeat.

    Raises EnvironmentDown when the disk of temporary files is full.
    """
    slots = bucket_slots((old[0], new[0]), columns)
    count = max(1, min(_MAX_BUCKETS, buckets)) if slots else 1
    with TemporaryDirectory(prefix="lhb-diff-") as folder:
        sides = [Path(folder, name) for name in ("old", "new")]
        for place, (reader, pieces) in zip(sides, (old, new), strict=True):
            place.mkdir()
            with _reporting_full_disk(folder):
                _divide(place, reader, pieces, columns, slots, count)
        for number in range(count):
            found = [_take(place / str(number)) for place in sides]
            yield found[0], found[1]


@contextmanager
def _reporting_full_disk(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise EnvironmentDown(
            f"the rows of a diff do not fit on the disk of {folder}",
            fix="make room there, or let TMPDIR name a folder on a larger disk",
        ) from error


def _divide(
    place: Path,
    reader: SideReader,
    pieces: list[FilePiece],
    columns: tuple[DiffColumn, ...],
    slots: list[str],
    count: int,
) -> None:
    """Write the rows of one side into a file for each bucket."""
    stored = reader.stored_schema(columns)
    slices = _in_slices(reader, pieces, columns)
    first = next(slices, stored.empty_table())
    schema = _types_of(first, stored)
    with ExitStack() as files:
        writers = [
            files.enter_context(pa.ipc.new_stream(str(place / str(number)), schema))
            for number in range(count)
        ]
        for rows in chain([first], slices):
            for number, bucket in _by_bucket(_as_types(rows, schema), slots, count):
                writers[number].write_table(bucket)


def _in_slices(
    reader: SideReader, pieces: list[FilePiece], columns: tuple[DiffColumn, ...]
) -> Iterator[pa.Table]:
    """Yield the rows of all pieces, so many at a time that buckets get more than a few of them."""
    held: list[pa.Table] = []
    for piece in pieces:
        for rows in reader.stream_piece(piece, columns):
            if held and rows.schema != held[0].schema:  # Only one of them has dictionaries.
                yield pa.concat_tables(held)
                held.clear()
            if rows.num_rows:  # A file may have none of the scope, between its bounds.
                held.append(rows)
            if sum(map(len, held)) >= _SLICE_ROWS:
                yield pa.concat_tables(held)
                held.clear()
    if held:
        yield pa.concat_tables(held)


def _by_bucket(rows: pa.Table, slots: list[str], count: int) -> Iterator[tuple[int, pa.Table]]:
    if count == 1 or not rows.num_rows:
        yield 0, rows
        return
    keys = rows.select(slots).combine_chunks().to_batches()[0]
    numbers = (row_hashes(keys) % np.uint64(count)).astype(np.uint8)  # These are sorted by radix.
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=count))
    ordered, start = rows.take(pa.array(order)), 0
    for number, end in enumerate(ends.tolist()):
        if end > start:
            yield number, ordered.slice(start, end - start)
        start = end


def _types_of(rows: pa.Table, stored: pa.Schema) -> pa.Schema:
    """Return the stored types, but the dictionaries that these rows have."""
    kinds = zip(stored, rows.schema.types, strict=True)
    return pa.schema(
        [own.with_type(kind) if pa.types.is_dictionary(kind) else own for own, kind in kinds]
    )


def _as_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows as one chunk of these types; texts become dictionaries, or are decoded."""
    arrays = [
        _as_type(column, field.type) for field, column in zip(schema, rows.columns, strict=True)
    ]
    return pa.table(arrays, schema=schema).unify_dictionaries().combine_chunks()


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type).dictionary_encode()
    return column.cast(kind)


def _take(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as stored, pa.ipc.open_stream(stored) as stream:
        rows = stream.read_all()
    path.unlink()
    return rows
