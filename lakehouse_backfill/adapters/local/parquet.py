"""Plain Parquet files read by pyarrow alone, whole or in batches; reader thread pools.

PyIceberg's own scan applies deletes, promotes types, fills in defaults and casts batch by batch. A
Parquet file that needs none of this is read in half the time here. Its text columns of few values
stay dictionaries, so counting and comparing them works on small integers. Who adds up or picks out
rows reads them in batches: memory then follows neither the size nor the number of files.

The thread pools are long-lived, as glibc returns freed memory to the arena of the same thread
first. By default glibc also returns large freed arrays to the system at once. Touching fresh pages
then takes longer than filling them: a third of the time of a small diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import FileFormat

from lakehouse_backfill.adapters.local.scan import (
    SnapshotScan,
    read_files,
    release_after,
    translate_scan_errors,
)

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

_T = TypeVar("_T")


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
        pool = ("far file", _REMOTE_READERS) if _is_remote(tasks[0]) else ("file", _LOCAL_READERS)
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
    with _plain_parquet(io, task, wanted) as (stored, metadata, names):
        if stored is None:
            return None
        schema = metadata.schema.to_arrow_schema()
        dictionaries = _low_cardinality_columns(metadata, schema, set(names))
        file = pq.ParquetFile(stored, metadata=metadata, read_dictionary=dictionaries)
        table = file.read(columns=names, use_threads=False)
        release_after(table.num_rows)
    ordered = table.select(names).rename_columns([field.name for _, field in wanted])
    return ordered.replace_schema_metadata(None)


@contextmanager
def _plain_parquet(
    io: Any, task: FileScanTask, wanted: _Fields
) -> Iterator[tuple[Any, pq.FileMetaData, list[str]]]:
    """Open a file; give it, its metadata, and the stored names of the wanted columns, in order.

    It is None when its stored rows need deletes, defaults or promotion.
    """
    if task.delete_files or task.file.file_format != FileFormat.PARQUET:
        yield None, None, []
        return
    with io.new_input(task.file.file_path).open() as stored:
        metadata = pq.read_metadata(stored)
        names = _stored_names(metadata.schema.to_arrow_schema(), wanted)
        stored.seek(0)
        yield None if names is None else stored, metadata, names or []


def _is_remote(task: FileScanTask) -> bool:
    return not task.file.file_path.startswith(("/", "file:"))


def map_files(act: Callable[[FileScanTask], _T], tasks: Sequence[FileScanTask]) -> Iterator[_T]:
    """Yield what a function that reads a file returns, in order.

    Remote files are read several at a time, as they have latency to hide. Local ones are read one
    after the other, by this thread: Arrow keeps memory for each thread that reads.
    """
    if tasks and _is_remote(tasks[0]):
        return thread_pool("far file", _REMOTE_READERS).map(act, tasks)
    return map(act, tasks)


#: Values (rows times columns) of a batch, and the most rows: a few megabytes at a time.
_BATCH_VALUES, _BATCH_ROWS = 524_288, 65_536
#: Bytes of a column that are read from a local file at a time.
_BUFFER_BYTES = 2**18


def stream_file_columns(
    side: SnapshotScan,
    task: FileScanTask,
    columns: Sequence[str],
    rows: BooleanExpression | None = None,
    *,
    may_encode: bool = False,
) -> Iterator[pa.Table]:
    """Yield the rows of a file in batches, with the types of the table, and deletes applied.

    Columns that `rows` names are among them. With `may_encode` text columns of few values may be
    dictionaries where all rows are read. Memory holds one batch, however many rows there are; a
    file whose stored rows need deletes, defaults or promotion is read whole.
    """
    if side.table is None:
        return
    if rows is not None:
        ids = extract_field_ids(bind(side.schema, rows, case_sensitive=True))
        named = (field.name for field in side.schema.fields if field.field_id in ids)
        columns = tuple(dict.fromkeys((*columns, *named)))
    schema = side.schema.select(*columns)
    fields = [
        (field.field_id, kind) for field, kind in zip(schema.fields, schema.as_arrow(), strict=True)
    ]
    plain = pa.schema([(field.name, field.type) for _, field in fields])
    wanted = None
    if rows is not None and not isinstance(rows, AlwaysTrue):
        wanted = expression_to_pyarrow(bind(schema, rows, case_sensitive=True))
    with (
        translate_scan_errors(side.name, side.snapshot_id),
        _plain_parquet(side.table.io, task, fields) as (stored, metadata, names),
    ):
        if stored is None:
            yield from (
                part.select(plain.names).cast(plain)
                for part in read_files(side, [task], columns, rows)
            )
            return
        size = min(_BATCH_ROWS, _BATCH_VALUES // max(len(names), 1) + 1)
        stored_types, encodes = metadata.schema.to_arrow_schema(), may_encode and wanted is None
        texts = _low_cardinality_columns(metadata, stored_types, set(names)) if encodes else []
        file = _open_for_batches(stored, metadata, texts, is_remote=_is_remote(task))
        # By row group, as all that are named at once are fetched at once from a remote store.
        for group in _row_groups(stored, metadata, wanted if names == plain.names else None):
            for batch in file.iter_batches(size, [group], columns=names, use_threads=False):
                part = pa.Table.from_batches([batch]).select(names).rename_columns(plain.names)
                kinds = _with_encoded(plain, part) if texts else plain
                part = part.replace_schema_metadata(None).cast(kinds)
                yield part if wanted is None else part.filter(wanted)


def _with_encoded(schema: pa.Schema, read: pa.Table) -> pa.Schema:
    """Return the schema, but with dictionaries where these rows have them."""
    kinds = [
        kind if pa.types.is_dictionary(kind) else own.type
        for own, kind in zip(schema, read.schema.types, strict=True)
    ]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def _open_for_batches(
    stored: Any, metadata: pq.FileMetaData, dictionaries: list[str], *, is_remote: bool
) -> pq.ParquetFile:
    """Open a file: a remote one is fetched by row group, a local one is read bit by bit."""
    size: dict[str, Any] = {"pre_buffer": True} if is_remote else {"buffer_size": _BUFFER_BYTES}
    return pq.ParquetFile(stored, metadata=metadata, read_dictionary=dictionaries, **size)


def _row_groups(
    stored: Any, metadata: pq.FileMetaData, wanted: pc.Expression | None
) -> Sequence[int]:
    """Return the row groups that may hold a wanted row, by their bounds."""
    if wanted is None or metadata.num_row_groups == 1:
        return range(metadata.num_row_groups)
    fragment = ds.ParquetFileFormat().make_fragment(stored)
    return [group.id for group in fragment.subset(wanted).row_groups]


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
