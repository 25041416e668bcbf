"""Snapshots as lists of files, the rows of files as Arrow, and row filters for PyIceberg.

A snapshot is read with its own schema, not the table's current one, so that an old state shows what
its readers saw (Iceberg spec, time travel).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg import expressions as expr
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ServiceUnavailableError,
)
from pyiceberg.expressions import visitors
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from lakehouse_backfill.adapters.pyiceberg_manifests import plan_files
from lakehouse_backfill.adapters.pyiceberg_rows import keep_null_lists, row_range_filter
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.errors import CatalogDown, DamagedFile, LostFile, NotFound, Unsupported

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec

keep_null_lists()


def filter_of_ranges(ranges: Iterable[RowRange]) -> expr.BooleanExpression:
    """Return a filter for the rows of any of the ranges; no ranges: every row.

    For a bucket it is true for all rows: `plan_scan` lists only files of the buckets.
    """
    listed = tuple(ranges)
    return row_range_filter(listed) if listed else expr.AlwaysTrue()


def filter_of_keys(keys: Sequence[Mapping[str, Any]]) -> expr.BooleanExpression:
    """Return a filter that keeps at least the rows whose columns have one of the key values.

    It filters column by column, so that a thousand keys make one `In` each and not a thousand
    branches.
    """
    result: expr.BooleanExpression = expr.AlwaysTrue() if keys else expr.AlwaysFalse()
    for column in keys[0] if keys else ():
        term = expr.Reference(name=column)
        values = {_literal_value(key[column]) for key in keys if key[column] is not None}
        literals = set(map(literal, values))
        # PyIceberg makes of an empty `In` a filter that no row passes.
        column_filter: expr.BooleanExpression = expr.In(term=term, literals=literals)
        if any(key[column] is None for key in keys):
            column_filter = expr.Or(column_filter, expr.IsNull(term=term))
        result = expr.And(result, column_filter)
    return result


def _literal_value(value: Any) -> Any:
    if isinstance(value, (bool, int, float, bytes, str)):
        return value
    return value.isoformat() if isinstance(value, (date, datetime)) else str(value)


_READERS = 4


@dataclass(frozen=True)
class SnapshotScan:
    """The schema and planned files of one snapshot of a table; `table` None: no rows."""

    name: str
    table: Table | None = None
    snapshot_id: int | None = None
    schema: Schema = field(default_factory=Schema)
    tasks: tuple[FileScanTask, ...] = ()
    specs: dict[int, PartitionSpec] = field(default_factory=dict)

    @property
    def display_name(self) -> str:
        """`namespace.table@snapshot`, or `namespace.table (no rows)`."""
        return f"{self.name}@{self.snapshot_id}" if self.table else f"{self.name} (no rows)"

    def spec_of(self, task: FileScanTask) -> PartitionSpec:
        """Return the partition spec that the file was written with."""
        return self.specs[task.file.spec_id]


def plan_scan(
    catalog: Catalog, name: str, snapshot_id: int | None, ranges: Sequence[RowRange] = ()
) -> SnapshotScan:
    """List the files of a snapshot that may hold rows of the ranges; no ranges: all files.

    Without a snapshot the scan has no rows. Raises NotFound, Unsupported (equality deletes),
    CatalogDown.
    """
    if snapshot_id is None:
        return SnapshotScan(name)
    table = load_as_of(catalog, name, snapshot_id)
    tasks: list[FileScanTask] = []
    with translate_scan_errors(name, snapshot_id):
        for part_ranges in _by_nullness(ranges):
            # Both scans may find a file; a file listed twice would count its rows twice.
            seen = {_file_identity(task) for task in tasks}
            rows = filter_of_ranges(part_ranges)
            planned = plan_files(table.scan(row_filter=rows, snapshot_id=snapshot_id))
            for group in (part_ranges, *(part_ranges[0].only if part_ranges else ())):
                planned = _keep_buckets(table, planned, group)
            tasks += [task for task in planned if _file_identity(task) not in seen]
    return SnapshotScan(name, table, snapshot_id, table.schema(), tuple(tasks), table.specs())


def _by_nullness(ranges: Sequence[RowRange]) -> list[list[RowRange]]:
    """Return the ranges in parts that are planned apart.

    PyIceberg 0.12 fails on a file of the null partition when a bound of the filter is compared with
    its null (ResidualEvaluator), so null ranges get a scan of their own.
    """
    parts = [[each for each in ranges if each.is_null is is_null] for is_null in (False, True)]
    return [part for part in parts if part] or [[]]


def stored_bytes(side: SnapshotScan, task: FileScanTask, names: Collection[str]) -> int:
    """Return how many bytes columns of a file take: all, where metadata has no sizes of columns."""
    ids = {each.field_id for each in side.schema.fields if each.name in names}
    sizes = task.file.column_sizes or {}
    known = [size for number, size in sizes.items() if number in ids]
    return sum(known) if known else int(task.file.file_size_in_bytes)


def require_few(count: int, limit: int, what: str) -> None:
    """Raise Unsupported for more than is read in this process."""
    if count > limit:
        raise Unsupported(f"{count:,} {what} are more than {limit:,}")


def added_files(side: SnapshotScan) -> SnapshotScan:
    """Return the scan of the files alone that its own snapshot added."""
    snapshot = side.table.snapshot_by_id(side.snapshot_id or 0) if side.table else None
    if side.table is None or snapshot is None:
        return side
    with translate_scan_errors(side.name, side.snapshot_id):
        added = {
            entry.data_file.file_path
            for manifest in snapshot.manifests(side.table.io)
            if manifest.added_snapshot_id == side.snapshot_id
            for entry in manifest.fetch_manifest_entry(side.table.io)
            if entry.snapshot_id == side.snapshot_id
        }
    return replace(side, tasks=tuple(x for x in side.tasks if x.file.file_path in added))


def count_rows(
    catalog: Catalog, name: str, snapshot_id: int, ranges: Sequence[RowRange] = ()
) -> int | None:
    """Count the rows of the ranges from metadata; None where files have to be read for that.

    That is where a file holds rows beside the ranges, as far as its partition tells, or where
    delete files hide rows.
    """
    if not _has_partition_filter(ranges):
        return None
    try:
        tasks = plan_scan(catalog, name, snapshot_id, ranges).tasks
    except Unsupported:
        return None
    if any(task.delete_files or task.residual != expr.AlwaysTrue() for task in tasks):
        return None
    return sum(task.file.record_count for task in tasks)


def _has_partition_filter(ranges: Sequence[RowRange]) -> bool:
    others = (each for group in ranges[0].only for each in group) if ranges else ()
    return all(each.buckets is None and each.prefix is None for each in (*ranges, *others))


#: Rows by partition of a manifest's live files; None for a manifest of delete files.
_ManifestRows = dict[Any, int] | None
#: Snapshots and manifests that are known; partitions take about 300 bytes each.
_MAX_SNAPSHOTS, _MAX_PARTITIONS = 16, 50_000


class PinnedCounts:
    """Counts rows of pinned snapshots as `count_rows`, and reads each manifest once.

    Each chunk of a run asks for its own rows of the same snapshots. PyIceberg takes a quarter of a
    second to read a manifest of 2,200 files with 16 columns. Snapshots and manifests never change.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        #: Chunks may be computed side by side.
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, int], tuple[Table, list[ManifestFile]]] = {}
        self._rows: dict[str, _ManifestRows] = {}

    def count(self, name: str, snapshot_id: int, ranges: Sequence[RowRange] = ()) -> int | None:
        """Return what `count_rows` returns."""
        if not _has_partition_filter(ranges):
            return None
        try:
            with self._lock, translate_scan_errors(name, snapshot_id):
                table, manifests = self._load(name, snapshot_id)
                found = [self._rows_in(table, manifests, part) for part in _by_nullness(ranges)]
        except Unsupported:
            return None
        if None in found:
            return count_rows(self._catalog, name, snapshot_id, ranges)
        # A partition that both parts find counts once.
        return sum({place: n for part in found if part for place, n in part.items()}.values())

    def _load(self, name: str, snapshot_id: int) -> tuple[Table, list[ManifestFile]]:
        known = self._tables.get((name, snapshot_id))
        if known is None:
            table = load_as_of(self._catalog, name, snapshot_id)
            snapshot = table.metadata.snapshot_by_id(snapshot_id)
            known = table, snapshot.manifests(table.io) if snapshot else []
            if len(self._tables) >= _MAX_SNAPSHOTS:
                self._tables.clear()
            self._tables[name, snapshot_id] = known
        return known

    def _rows_in(
        self, table: Table, manifests: list[ManifestFile], ranges: Sequence[RowRange]
    ) -> dict[Hashable, int] | None:
        """Count by manifest and partition; None: by partitions alone it is not known."""
        schema, specs, rows = table.schema(), table.specs(), filter_of_ranges(ranges)
        found: dict[Hashable, int] = {}
        for manifest in manifests:
            spec = specs[manifest.partition_spec_id]
            by_partition = visitors.inclusive_projection(schema, spec)(rows)
            if not visitors.manifest_evaluator(spec, schema, by_partition)(manifest):
                continue
            counts = self._read(table, manifest)
            if counts is None:
                return None
            fields = Schema(*spec.partition_type(schema).fields)
            may_hold = visitors.expression_evaluator(fields, by_partition, case_sensitive=True)
            for partition in filter(may_hold, counts):
                rest = visitors.residual_evaluator_of(spec, rows, True, schema)  # noqa: FBT003 (PyIceberg's)
                if rest.residual_for(partition) != expr.AlwaysTrue():
                    return None
                found[manifest.manifest_path, partition] = counts[partition]
        return found

    def _read(self, table: Table, manifest: ManifestFile) -> _ManifestRows:
        path = manifest.manifest_path
        if path not in self._rows:
            counts: _ManifestRows = None
            if manifest.content == ManifestContent.DATA:
                counts = Counter()
                for entry in manifest.fetch_manifest_entry(table.io):
                    counts[entry.data_file.partition] += entry.data_file.record_count
            if sum(len(each or ()) for each in self._rows.values()) > _MAX_PARTITIONS:
                self._rows.clear()
            self._rows[path] = counts
        return self._rows[path]


def _keep_buckets(
    table: Table, tasks: Iterable[FileScanTask], ranges: Sequence[RowRange]
) -> list[FileScanTask]:
    """Keep the files of the buckets that the ranges name; all files for other ranges.

    Raises Unsupported for a file whose spec does not cut the column into these buckets.
    """
    wanted = {(rows.column, rows.buckets): set[Any]() for rows in ranges if rows.buckets}
    if len(wanted) != 1:
        return list(tasks)
    (column, buckets), numbers = next(iter(wanted.items()))
    numbers.update(rows.equals for rows in ranges)
    source, kept = table.schema().find_field(column).field_id, []
    for task in tasks:
        places = [
            place
            for place, part in enumerate(table.specs()[task.file.spec_id].fields)
            if part.source_id == source and str(part.transform) == f"bucket[{buckets}]"
        ]
        if not places:
            raise Unsupported(
                f"{task.file.file_path} is not cut into {buckets} buckets of {column}",
                fix="rewrite it to the current spec first: CALL system.rewrite_data_files",
            )
        if task.file.partition[places[0]] in numbers:
            kept.append(task)
    return kept


def _file_identity(task: FileScanTask) -> Hashable:
    return task.file.file_path, task.file.spec_id, task.file.partition


def load_as_of(catalog: Catalog, name: str, snapshot_id: int) -> Table:
    """Load the table as of the snapshot: its current schema is the snapshot's own."""
    with translate_scan_errors(name, snapshot_id):
        return table_as_of(catalog.load_table(name), name, snapshot_id)


def table_as_of(table: Table, name: str, snapshot_id: int) -> Table:
    """Return the loaded table as of a snapshot; raise NotFound without that snapshot."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise NotFound(
            f"{name} has no snapshot {snapshot_id}; it may have expired",
            fix="name a snapshot that `lakehouse-backfill versions` or a tag still holds",
        )
    # A row filter is bound to the metadata's current schema: after a rename the snapshot's own
    # names would be unknown there.
    if any(schema.schema_id == snapshot.schema_id for schema in table.metadata.schemas):
        own = {"current_schema_id": snapshot.schema_id}
        table = copy(table)
        table.metadata = table.metadata.model_copy(update=own)
    return table


def read_files(
    side: SnapshotScan,
    tasks: Iterable[FileScanTask],
    columns: Sequence[str],
    rows: expr.BooleanExpression | None = None,
) -> list[pa.Table]:
    """Read the columns of each file with deletes applied, several files at a time, in order."""
    table = side.table
    if table is None:
        return []
    scan = ArrowScan(
        table.metadata, table.io, side.schema.select(*columns), rows or expr.AlwaysTrue()
    )
    with translate_scan_errors(side.name, side.snapshot_id), ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda task: scan.to_table([task]), tasks))


#: Reading fewer rows leaves little behind; what is kept makes the next reading faster.
_MANY_ROWS = 100_000


def release_after(rows: int) -> None:
    """Give memory back that Arrow keeps of threads which have read many rows."""
    if rows >= _MANY_ROWS:
        pa.default_memory_pool().release_unused()


def read_rows(
    side: SnapshotScan, columns: Sequence[str], rows: expr.BooleanExpression | None = None
) -> pa.Table:
    """Read the columns of all files into one table."""
    schema = side.schema.select(*columns).as_arrow()
    parts = [*read_files(side, side.tasks, columns, rows), schema.empty_table()]
    release_after(sum(task.file.record_count for task in side.tasks))
    table = pa.concat_tables(parts, promote_options="permissive")
    return table.select(list(columns)).replace_schema_metadata(None)


#: Words of errors about the content of a data file, not about reaching it.
_FORMAT_WORDS = ("parquet", "thrift", "magic bytes", "corrupt", "deserialize", "decompress")


@contextmanager
def translate_scan_errors(name: str, snapshot_id: int | None) -> Iterator[None]:
    """Translate errors of PyIceberg and the store into ours."""
    try:
        yield
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise NotFound(
            f"there is no table {name}", fix="check the name and the catalog profile"
        ) from error
    except FileNotFoundError as error:
        raise LostFile(
            f"a file of {name}@{snapshot_id} is gone: {error}",
            state="the snapshot cannot be read in full; nothing was compared",
            fix="name a newer snapshot, or restore the file from the store's own history",
        ) from error
    except (ServiceUnavailableError, RESTError, ConnectionError) as error:
        raise CatalogDown(
            f"the catalog does not answer for {name}: {error}", fix="try again later"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        path = _read_path(error)
        if path is None or not any(word in str(error).lower() for word in _FORMAT_WORDS):
            raise
        raise DamagedFile(path, error) from error
    except (ValueError, NotImplementedError) as error:
        refusal = _scan_refusal(name, snapshot_id, str(error))
        if refusal is None:
            raise
        raise refusal from error


def _scan_refusal(name: str, snapshot_id: int | None, text: str) -> Unsupported | None:
    """Build the error for what PyIceberg cannot scan; None for other texts."""
    if "Could not find field" in text:
        return Unsupported(
            f"{name}@{snapshot_id} lacks a column that its rows are chosen by: {text}",
            fix="give the column its name back, or plan again with the one that it has now",
        )
    if "equality delete" in text:
        return Unsupported(
            f"{name}@{snapshot_id} holds equality deletes, which this engine cannot apply",
            fix="compare on Spark, or compact the table first",
        )
    return None


def _read_path(error: Exception) -> str | None:
    """Return the data file that was being read, from the frames of the traceback."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        task = traceback.tb_frame.f_locals.get("task")
        found = task.file.file_path if isinstance(task, FileScanTask) else found
        traceback = traceback.tb_next
    return found
