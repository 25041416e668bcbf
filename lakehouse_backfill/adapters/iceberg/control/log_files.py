"""Files of control tables: the one commit that writes them, and cached reads of their manifests.

A commit appends rows, and from time to time compacts small files; it also expires old snapshots. A
compaction deletes the files that the compaction before it, and the commits until then, replaced.

Manifests never change, and a control table has many small ones, which most reads have in common.
PyIceberg took longer to plan a scan than to read the rows, so the data files that a manifest lists
are cached in the process, and so are the rows of small files: a command reads the same events many
times. An audit drops them first (`drop_cached_rows`), so it looks at what is stored.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, In, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    RemoveSnapshotsUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)

from lakehouse_backfill.adapters.iceberg.control.schemas import LOG_ID, LOG_SEQ
from lakehouse_backfill.adapters.pyiceberg_manifests import (
    read_manifest_entries,
    read_manifest_list,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.fault_points import commit_window

if TYPE_CHECKING:
    import pyarrow as pa


#: The filter of a column: one value, or a set of texts of which any matches.
FilterValue = str | int | frozenset[str]
#: Small files are compacted after this many commits, so a read opens at most this many of them.
COMPACT_EVERY_COMMITS = 32
#: Larger files are not compacted, so a compaction costs at most one rewrite of such a file.
COMPACT_BELOW_BYTES = 4 * 1024 * 1024
#: Snapshots that a control table keeps: its rows are the history.
KEEP_SNAPSHOTS = 4
_ROWS_PER_COMMIT = 1_000_000
_ROWS_PER_GROUP = 200
#: The property that lists the files which no snapshot needs any more.
UNREACHABLE_PROPERTY = "lakehouse-backfill.unreachable"
#: Files stay at least this long after they were replaced.
_READ_MS = 10_000
_OWN_FILE = re.compile(r"(data|metadata)/[A-Za-z0-9_=-][A-Za-z0-9._=-]*\.(avro|parquet)")


class _CachingTransaction(Transaction):
    """A transaction that computes its metadata once per update, and copies nothing.

    PyIceberg's own makes a deep copy of the whole metadata at each access, 15 times in one append:
    half of the time of a pointer move. Before the first update it is the table's own. The commit
    computes what is stored from the table as it is then.
    """

    _cached_metadata: tuple[Any, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the updates so far; read-only."""
        if not self._updates:
            return self._table.metadata
        if self._cached_metadata is None or self._cached_metadata[0] is not self._updates:
            metadata, context = self._table.metadata, _TableMetadataUpdateContext()
            for update in self._updates:
                metadata = _apply_table_update(update, metadata, context)
            self._cached_metadata = (self._updates, metadata)
        return self._cached_metadata[1]


@dataclass(frozen=True)
class StagedCommit:
    """A prepared commit, and the files that nothing needs once it has landed."""

    transaction: Transaction
    doomed: tuple[str, ...]


def stage_commit(
    table: Table,
    rows: tuple[dict[str, Any], ...],
    to_set: Mapping[str, str],
    to_remove: tuple[str, ...],
    token: str,
) -> StagedCommit:
    """Write the file of the rows, if there are rows, and prepare one commit on the head of `table`.

    The commit raises CommitFailedException when another writer has committed since, also when the
    table was empty before.
    """
    # Set even if the property was removed: a blind retry would append a second time.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    sequence = table.metadata.next_sequence_number()
    new = _rows_to_arrow(table, rows, sequence, token)
    existing = {name for name in to_remove if name in table.metadata.properties}
    transaction = _CachingTransaction(table)
    replaced: list[str] | None = None
    if sequence % COMPACT_EVERY_COMMITS == 0:
        replaced = _compact_small_files(transaction, table, new)
    else:
        _append_rows(transaction, table, new)
    expired = _expire_snapshots(transaction, table)
    files = _UnreachableFiles.of(table)
    files, doomed = files.after(table, expired, replaced)
    transaction.set_properties({**to_set, UNREACHABLE_PROPERTY: files.text()})
    if existing:
        transaction.remove_properties(*sorted(existing))
    return StagedCommit(transaction, doomed)


def _rows_to_arrow(
    table: Table, rows: tuple[dict[str, Any], ...], sequence: int, token: str
) -> pa.Table:
    import pyarrow as pa

    schema = table.schema().as_arrow()
    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise Unsupported(
            f"the control table {table.name()[-1]} has no column {', '.join(sorted(unknown))}: "
            "it was made by another release"
        )
    first = sequence * _ROWS_PER_COMMIT
    numbered = [{**row, LOG_SEQ: first + number, LOG_ID: token} for number, row in enumerate(rows)]
    return pa.Table.from_pylist(numbered, schema=schema)


def _append_rows(transaction: Transaction, table: Table, new: pa.Table) -> None:
    # Without rows there is also a new snapshot, which refuses commits based on the old head.
    with transaction.update_snapshot().fast_append() as producer:
        for file in _write_data_files(table, new):
            producer.append_data_file(file)


def _compact_small_files(transaction: Transaction, table: Table, new: pa.Table) -> list[str] | None:
    """Replace the small files by one that also holds the new rows, in the same snapshot.

    A table with partitions or delete files is not compacted. Return the paths of the data files and
    manifests that it replaced; None if there was nothing to compact.
    """
    import pyarrow as pa

    head = table.current_snapshot()
    files = _matching_files(table, AlwaysTrue()) or ()
    small = [file for file in files if file.file_size_in_bytes < COMPACT_BELOW_BYTES]
    if head is None or len(small) + bool(new.num_rows) < 2:
        _append_rows(transaction, table, new)
        return None
    manifests = _manifests(table, head)
    old = [_read_whole_file(table, file) for file in small]
    rows = pa.concat_tables([*old, new]).sort_by(LOG_SEQ)
    with transaction.update_snapshot().overwrite() as producer:
        # Without a predicate PyIceberg does not read manifests of unpartitioned tables.
        producer.delete_by_predicate(AlwaysTrue())
        for file in small:
            producer.delete_data_file(file)
        for file in _write_data_files(table, rows):
            producer.append_data_file(file)
    return [*(file.file_path for file in small), *(one.manifest_path for one in manifests)]


def _write_data_files(table: Table, rows: pa.Table) -> list[DataFile]:
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    if not rows.num_rows:
        return []
    # A read of one run's rows then reads little of a large file.
    table.metadata.properties["write.parquet.row-group-limit"] = str(_ROWS_PER_GROUP)
    return list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))


def _expire_snapshots(transaction: Transaction, table: Table) -> list[str]:
    """Expire old snapshots by metadata alone; return the paths of their manifest lists.

    Their files stay for running reads, until a later compaction.
    """
    referenced = {ref.snapshot_id for name, ref in table.metadata.refs.items()}
    old = [
        snapshot
        for snapshot in sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
        if snapshot.snapshot_id not in referenced
    ]
    expired = old[: max(0, len(old) + 2 - KEEP_SNAPSHOTS)]
    # One update per snapshot: some servers accept exactly one id per update.
    updates = (RemoveSnapshotsUpdate(snapshot_ids=[snapshot.snapshot_id]) for snapshot in expired)
    transaction._apply(tuple(updates), ())
    return [snapshot.manifest_list for snapshot in expired]


@dataclass(frozen=True)
class _UnreachableFiles:
    """Files of a table that compaction and expiry replaced: names relative to its folder.

    `older` were replaced up to the compaction of `since_ms`, `newer` after it. The compaction that
    comes at least `_READ_MS` later deletes the older ones: reads of the heads that list them have
    ended, unless they lasted longer than that and many commits.
    """

    older: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()
    since_ms: int = 0

    @classmethod
    def of(cls, table: Table) -> _UnreachableFiles:
        """Read the list of a table; empty where there is none that can be read."""
        try:
            held = json.loads(table.properties.get(UNREACHABLE_PROPERTY, "{}"))
            return cls(tuple(held["older"]), tuple(held["newer"]), int(held["since_ms"]))
        except (ValueError, TypeError, KeyError):
            return cls()

    def after(
        self, table: Table, expired: list[str], replaced: list[str] | None
    ) -> tuple[_UnreachableFiles, tuple[str, ...]]:
        """Return the list after a commit, and the files to delete once it has landed."""
        folder = f"{table.location().rstrip('/')}/"
        names = [path.removeprefix(folder) for path in (*expired, *(replaced or ()))]
        newer = (*self.newer, *names)
        now_ms = table.metadata.last_updated_ms
        if replaced is None or now_ms < self.since_ms + _READ_MS:
            return _UnreachableFiles(self.older, newer, self.since_ms), ()
        return _UnreachableFiles(newer, (), now_ms), self.older

    def text(self) -> str:
        """Return the list as JSON."""
        return json.dumps(vars(self), separators=(",", ":"))


def delete_doomed_files(table: Table, names: tuple[str, ...]) -> None:
    """Delete files that a commit on `table`, which has landed, made needless.

    Only files of the table's own folders, and none that a snapshot of it still reaches. What cannot
    be deleted is left to `maintain`.
    """
    own = [name for name in names if _OWN_FILE.fullmatch(name)]
    if not own:
        return
    reached, folder = reachable_paths(table), table.location().rstrip("/")
    for path in (f"{folder}/{name}" for name in own):
        if path not in reached:
            with suppress(OSError), commit_window("ControlFiles.delete"):
                table.io.delete(path)


def reachable_paths(table: Table) -> set[str]:
    """Return all paths that the metadata leads to: older metadata files, manifests, data files."""
    metadata = table.metadata
    paths = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    # Snapshots have most manifests in common.
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in metadata.snapshots
        for manifest in _manifests(table, snapshot)
    }
    paths.update(snapshot.manifest_list for snapshot in metadata.snapshots)
    for path, manifest in manifests.items():
        paths |= {path, *(file.file_path for file in _live_data_files(table.io, manifest))}
    return paths


T = TypeVar("T")


def read_rows(table: Table, where: Mapping[str, FilterValue], columns: Collection[str]) -> pa.Table:
    """Read columns of the rows with these values.

    Files without any are skipped by their bounds. The result equals that of PyIceberg's own scan,
    which is used for tables with delete files or partitions.
    """
    rows = _row_filter(where)
    files = _matching_files(table, rows)
    if files is None:
        return table.scan(rows, selected_fields=tuple(columns)).to_arrow()
    import pyarrow as pa

    names = [name for name in _column_names(table) if name in {*columns, *where}]
    parts = []
    for file in files:
        if file.file_size_in_bytes > _CACHE_BELOW_BYTES:
            parts += read_data_file(table, file, names, where)
        else:
            parts.append(_filter_rows(_rows_of_small_file(table, file).select(names), where))
    found = pa.concat_tables(parts or [_arrow_schema(table, names).empty_table()])
    return found.select([name for name in names if name in columns])


def _row_filter(where: Mapping[str, FilterValue]) -> BooleanExpression:
    row_filter: BooleanExpression = AlwaysTrue()
    for column, value in where.items():
        literals = {literal(each) for each in _wanted_values(value)}
        row_filter = And(row_filter, In(term=Reference(name=column), literals=literals))
    return row_filter


def _wanted_values(value: FilterValue) -> Collection[Any]:
    return value if isinstance(value, frozenset) else (value,)


def drop_cached_rows() -> None:
    """Make the next reads look at the files again: one may have been edited in place."""
    _FILE_ROWS.clear()


def _filter_rows(found: pa.Table, where: Mapping[str, FilterValue]) -> pa.Table:
    """Keep the rows with these values, in this thread.

    A filter by an expression runs in Arrow's own threads. Each keeps the memory of its largest
    result for as long as the process lives, and nothing can make it give that back.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for column, value in where.items():
        values = pa.array(_wanted_values(value), found.schema.field(column).type)
        found = found.filter(pc.is_in(found[column], value_set=values))
    return found


def _rows_of_small_file(table: Table, file: DataFile) -> pa.Table:
    """Return all rows of a file from the cache, else read it."""
    name = f"{table.schema().schema_id} {file.file_path}"
    return _FILE_ROWS.get(name, lambda: _read_whole_file(table, file))


def _read_whole_file(table: Table, file: DataFile) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(read_data_file(table, file, _column_names(table), {}))


def _column_names(table: Table) -> list[str]:
    return [field.name for field in table.schema().fields]


def read_data_file(
    table: Table, file: DataFile, names: list[str], where: Mapping[str, FilterValue]
) -> list[pa.Table]:
    """Read columns of the rows that match, in this thread, a row group at a time.

    Of a row group without a match only the columns of the filter are decoded. Columns that the
    table was given later are null. PyIceberg's scan decodes whole files on many threads, and each
    keeps memory for the largest: in hundreds of runs a process grew by hundreds of megabytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = []
    with table.io.new_input(file.file_path).open() as stream:
        # One request, in this thread. From a stream Arrow reads ahead in threads of its own.
        is_small = file.file_size_in_bytes < COMPACT_BELOW_BYTES
        parquet = pq.ParquetFile(pa.BufferReader(stream.read()) if is_small else stream)
        for group in range(parquet.num_row_groups):
            keys = [name for name in names if name in where]
            if keys and not _filter_rows(_read_group(table, parquet, group, keys), where):
                continue
            found.append(_filter_rows(_read_group(table, parquet, group, names), where))
    return found


def _read_group(table: Table, parquet: Any, group: int, names: list[str]) -> pa.Table:
    import pyarrow as pa

    stored = set(parquet.schema_arrow.names)
    held = [name for name in names if name in stored]
    found = parquet.read_row_group(group, columns=held, use_threads=False)
    schema = _arrow_schema(table, names)
    columns = [
        found[one.name].cast(one.type) if one.name in held else pa.nulls(len(found), one.type)
        for one in schema
    ]
    return pa.table(columns, schema=schema)


def _arrow_schema(table: Table, names: list[str]) -> pa.Schema:
    import pyarrow as pa

    name = f"{table.metadata.table_uuid} {table.metadata.current_schema_id}"
    whole = _ARROW_SCHEMAS.get(name, lambda: table.schema().as_arrow())
    return pa.schema([whole.field(name) for name in names])


def _matching_files(table: Table, rows: BooleanExpression) -> list[DataFile] | None:
    """List the live files that may hold rows; None for tables with partitions or delete files."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    may_hold = _InclusiveMetricsEvaluator(table.schema(), rows).eval
    files: list[DataFile] = []
    for manifest in _manifests(table, snapshot):
        is_partitioned = not table.specs()[manifest.partition_spec_id].is_unpartitioned()
        if is_partitioned or manifest.content != ManifestContent.DATA:
            return None
        files += [file for file in _live_data_files(table.io, manifest) if may_hold(file)]
    return files


def _manifests(table: Table, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
    path = snapshot.manifest_list
    return _MANIFEST_LISTS.get(path, lambda: tuple(read_manifest_list(table.io, path)))


def _live_data_files(io: FileIO, manifest: ManifestFile) -> tuple[DataFile, ...]:
    def live() -> tuple[DataFile, ...]:
        entries = read_manifest_entries(io, manifest)
        return tuple(e.data_file for e in entries if e.status != ManifestEntryStatus.DELETED)

    return _MANIFESTS.get(f"{manifest.manifest_path} {manifest.manifest_length}", live)


class _ReadCache(Generic[T]):
    """A cache of the content of immutable files; the oldest entry is evicted first."""

    def __init__(self, most: int) -> None:
        self._max_size = most
        self._found: dict[str, T] = {}
        self._lock = threading.Lock()

    def get(self, name: str, read_it: Callable[[], T]) -> T:
        """Return the cached content of a file, else read it; two threads may both read it."""
        content = self._found.get(name)
        if content is None:
            content = read_it()
            with self._lock:
                while len(self._found) >= self._max_size:
                    del self._found[next(iter(self._found))]
                self._found[name] = content
        return content

    def clear(self) -> None:
        """Drop all content."""
        with self._lock:
            self._found.clear()


#: The manifest lists of all control tables at their heads, and some older ones.
_MANIFEST_LISTS: _ReadCache[tuple[ManifestFile, ...]] = _ReadCache(64)
_MANIFESTS: _ReadCache[tuple[DataFile, ...]] = _ReadCache(160)
#: Larger files are read each time, only the matching rows and columns of them.
_CACHE_BELOW_BYTES = 32 * 1024
#: By the table's UUID and the id of the schema: what they name never changes.
_ARROW_SCHEMAS: _ReadCache[pa.Schema] = _ReadCache(32)
#: The rows of small files: those of 500 runs would keep 20 megabytes, for 7 % less time.
_FILE_ROWS: _ReadCache[pa.Table] = _ReadCache(128)
