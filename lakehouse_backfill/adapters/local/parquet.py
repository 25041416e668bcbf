"""Plain Parquet files read by pyarrow alone; reader thread pools; allocator settings.

PyIceberg's own scan applies deletes, promotes types, fills in defaults and casts batch by batch. A
Parquet file that needs none of this is read in half the time here. Its text columns of few values
stay dictionaries, so counting and comparing them works on small integers.

The thread pools are long-lived, as glibc returns freed memory to the arena of the same thread
first. By default glibc also returns large freed arrays to the system at once. Touching fresh pages
then takes longer than filling them: a third of the time of a small diff.
"""

from __future__ import annotations

import os
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


def thread_pool(name: str, threads: int) -> ThreadPoolExecutor:
    """Return this process's thread pool of the given name; its threads start on first use.

    Work in one pool may wait for work in another pool, but never for work in its own.
    """
    # A process that was forked has its parent's pools, but not their threads.
    return _process_thread_pool(name, threads, os.getpid())


@lru_cache(None)
def _process_thread_pool(name: str, threads: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


#: Files read at a time, of both sides. Remote stores have latency to hide, but each reader takes
#: memory. Local readers never exceed the cores, which comparing needs as well.
_LOCAL_READERS, _REMOTE_READERS = min(4, pa.cpu_count()), 8
#: Wanted columns: field ids, and the fields in Arrow.
_Fields = Sequence[tuple[int, pa.Field]]
_FIELD_ID = b"PARQUET:field_id"
#: A text column whose chunks are dictionaries of few values takes less than this per row.
_DICTIONARY_BYTES_PER_ROW = 2


def read_file_columns(
    side: SnapshotScan,
    tasks: Sequence[FileScanTask],
    columns: Sequence[str],
    rows: BooleanExpression | None = None,
) -> list[pa.Table]:
    """Read the columns of each file as `scan.read_files` does; text columns may be dictionaries."""
    if side.table is None or not tasks:
        return []
    schema = side.schema.select(*columns)
    tables: list[pa.Table | None] = [None] * len(tasks)
    if rows is None or isinstance(rows, AlwaysTrue):
        io = side.table.io
        is_remote = not tasks[0].file.file_path.startswith(("/", "file:"))
        pool = ("far file", _REMOTE_READERS) if is_remote else ("file", _LOCAL_READERS)
        field_ids = [field.field_id for field in schema.fields]
        fields = list(zip(field_ids, schema.as_arrow(), strict=True))
        with translate_scan_errors(side.name, side.snapshot_id):
            readers = thread_pool(*pool)
            tables = list(readers.map(lambda task: _read_plain_parquet(io, task, fields), tasks))
    remaining = [task for task, table in zip(tasks, tables, strict=True) if table is None]
    scanned = iter(read_files(side, remaining, columns, rows) if remaining else ())
    return [table if table is not None else next(scanned) for table in tables]


def _read_plain_parquet(io: Any, task: FileScanTask, wanted: _Fields) -> pa.Table | None:
    """Read a file; return None when its stored rows need deletes, defaults or promotion."""
    if task.delete_files or task.file.file_format != FileFormat.PARQUET:
        return None
    with io.new_input(task.file.file_path).open() as stored:
        metadata = pq.read_metadata(stored)
        schema = metadata.schema.to_arrow_schema()
        names = _stored_names(schema, wanted)
        if names is None:
            return None
        stored.seek(0)
        dictionaries = _low_cardinality_columns(metadata, schema, set(names))
        file = pq.ParquetFile(stored, metadata=metadata, read_dictionary=dictionaries)
        table = file.read(columns=names, use_threads=False)
    ordered = table.select(names).rename_columns([field.name for _, field in wanted])
    return ordered.replace_schema_metadata(None)


def _stored_names(stored: pa.Schema, wanted: _Fields) -> list[str] | None:
    """Return the stored columns in the order wanted; None unless all have the wanted type."""
    by_id = {int((field.metadata or {}).get(_FIELD_ID, -1)): field for field in stored}
    names = []
    for field_id, expected in wanted:
        field = by_id.get(field_id)
        if field is None or pa.types.is_nested(expected.type):
            return None
        if _without_offset_width(field.type) != _without_offset_width(expected.type):
            return None
        names.append(field.name)
    return names if len(set(stored.names)) == len(stored.names) else None


def _without_offset_width(kind: pa.DataType) -> pa.DataType:
    """Return the type without the width of its offsets, which does not affect values."""
    wide = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return wide.get(kind, kind)


def _low_cardinality_columns(
    metadata: pq.FileMetaData, schema: pa.Schema, names: set[str]
) -> list[str]:
    """Return the text columns whose chunks are small, that is, those of few values."""
    texts = names & {f.name for f in schema if _without_offset_width(f.type) == pa.string()}
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups if texts else 0):
        for chunk in map(metadata.row_group(group).column, range(metadata.num_columns)):
            if (name := chunk.path_in_schema) in texts:
                sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size
    limit = _DICTIONARY_BYTES_PER_ROW * metadata.num_rows
    return [name for name, size in sizes.items() if size < limit]
