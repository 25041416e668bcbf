"""Plain Parquet files read without PyIceberg's scan; reader threads.

Keeps freed memory in this process, for the arrays of the next batch of rows.

The C library gives large arrays back to the system as soon as they are freed. Touching fresh pages
then takes longer than filling them: a third of the time of a small diff.

Threads that stay: memory that a thread has freed is soonest its own again.

Reading files of which nothing has to be changed on the way: by pyarrow alone.

PyIceberg's own scan applies deletes, promotes types, fills in defaults and casts batch by batch. A
Parquet file that needs none of this is read in half the time, and its columns of few values stay
dictionaries, so that counting and comparing them works on small numbers.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import FileFormat

from lakehouse_backfill.adapters.local.scan import SnapshotScan, read_files, translate_scan_errors

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask


_MEBIBYTE = 1024 * 1024
#: Parameters of glibc's `mallopt`, and what they are set to: so much may be free at the end of the
#: heap; arrays up to this size (the most that glibc takes) lie in the heap.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MAX_HEAP_ARRAY_BYTES = 256 * _MEBIBYTE, 32 * _MEBIBYTE


@lru_cache(1)
def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed; gives whether it does: only glibc can be told.

    Holds for the whole process, from now on.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_TRIM_THRESHOLD, _TRIM_BYTES), (_MMAP_THRESHOLD, _MAX_HEAP_ARRAY_BYTES))
    taken = [mallopt(name, value) for name, value in settings]
    return all(taken)


def thread_pool(name: str, threads: int) -> ThreadPoolExecutor:
    """Give the threads of this name in this process, which start when they have something to do.

    Work of one name may wait for that of another, but never for its own.
    """
    # A process that was forked has its parent's pools, but not their threads.
    return _process_thread_pool(name, threads, os.getpid())


@lru_cache(None)
def _process_thread_pool(name: str, threads: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


#: Files read at a time, of both sides: more wait for a store far away, each of them takes memory.
#: Of near ones no more than there are cores, which comparing needs as well.
_LOCAL_READERS, _REMOTE_READERS = min(4, pa.cpu_count()), 8
#: What is wanted: field ids, and the fields in Arrow.
_Fields = Sequence[tuple[int, pa.Field]]
_FIELD_ID = b"PARQUET:field_id"
#: A text column takes less than this per row when its chunks are dictionaries of few values.
_DICTIONARY_BYTES_PER_ROW = 2


def read_file_columns(
    side: SnapshotScan,
    tasks: Sequence[FileScanTask],
    columns: Sequence[str],
    rows: BooleanExpression | None = None,
) -> list[pa.Table]:
    """Read the columns of each file as `scan.read` does; text columns may be dictionaries."""
    if side.table is None or not tasks:
        return []
    wanted = side.schema.select(*columns)
    found: list[pa.Table | None] = [None] * len(tasks)
    if rows is None or isinstance(rows, AlwaysTrue):
        io = side.table.io
        is_far = not tasks[0].file.file_path.startswith(("/", "file:"))
        readers = (
            thread_pool("far file", _REMOTE_READERS)
            if is_far
            else thread_pool("file", _LOCAL_READERS)
        )
        fields = [
            (field.field_id, arrow)
            for field, arrow in zip(wanted.fields, wanted.as_arrow(), strict=True)
        ]
        with translate_scan_errors(side.name, side.snapshot_id):
            found = list(readers.map(lambda task: _read_plain_parquet(io, task, fields), tasks))
    others = [task for task, table in zip(tasks, found, strict=True) if table is None]
    rest = iter(read_files(side, others, columns, rows) if others else ())
    return [table if table is not None else next(rest) for table in found]


def _read_plain_parquet(io: Any, task: FileScanTask, wanted: _Fields) -> pa.Table | None:
    """Read a file, or give None when its rows are not the table's as they lie there."""
    if task.delete_files or task.file.file_format != FileFormat.PARQUET:
        return None
    with io.new_input(task.file.file_path).open() as stored:
        metadata = pq.read_metadata(stored)
        schema = metadata.schema.to_arrow_schema()
        names = _stored_names(schema, wanted)
        if names is None:
            return None
        stored.seek(0)
        file = pq.ParquetFile(
            stored,
            metadata=metadata,
            read_dictionary=_low_cardinality_columns(metadata, schema, set(names)),
        )
        found = file.read(columns=names, use_threads=False)
    ordered = found.select(names).rename_columns([field.name for _, field in wanted])
    return ordered.replace_schema_metadata(None)


def _stored_names(stored: pa.Schema, wanted: _Fields) -> list[str] | None:
    """Name the stored columns in the order wanted; None unless all have the type wanted."""
    by_id = {
        int(field.metadata[_FIELD_ID]): field
        for field in stored
        if field.metadata and _FIELD_ID in field.metadata
    }
    names = []
    for field_id, expected in wanted:
        own = by_id.get(field_id)
        if (
            own is None
            or pa.types.is_nested(expected.type)
            or not _has_same_type(own.type, expected.type)
        ):
            return None
        names.append(own.name)
    return names if len(set(stored.names)) == len(stored.names) else None


def _has_same_type(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(_without_offset_width(one) == _without_offset_width(other))


def _without_offset_width(kind: pa.DataType) -> pa.DataType:
    """Give the type without the width of its offsets, which is no property of a value."""
    wide = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return wide.get(kind, kind)


def _low_cardinality_columns(
    metadata: pq.FileMetaData, schema: pa.Schema, names: set[str]
) -> list[str]:
    """Name the text columns whose chunks are small: those of few values."""
    texts = names & {field.name for field in schema if _is_text(field.type)}
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups if texts else 0):
        chunks = map(metadata.row_group(group).column, range(metadata.num_columns))
        for chunk in chunks:
            if (name := chunk.path_in_schema) in texts:
                sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size
    limit = _DICTIONARY_BYTES_PER_ROW * metadata.num_rows
    return [name for name, size in sizes.items() if size < limit]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
