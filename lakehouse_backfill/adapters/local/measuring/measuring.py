"""Checksums and measures of few rows in this process with Arrow, as Spark measures many.

Each Spark job has half a second before its first task begins; hashing a few hundred thousand rows
here takes less. Rows whose hash or sum could differ from Spark's are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.exceptions import ResolveError

from lakehouse_backfill.adapters.local.measuring.side_sums import Group, SideSums, require_parquet
from lakehouse_backfill.adapters.local.parquet import stream_file_columns, thread_pool
from lakehouse_backfill.adapters.local.scan import (
    SnapshotScan,
    filter_of_ranges,
    plan_scan,
    require_few,
    stored_bytes,
)
from lakehouse_backfill.core.validation.partition_totals import MAX_GROUPS, measured_sides
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.comparison.partition_sums import NO_ROWS, PartitionSums
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import RowRange, Scope, scope_row_ranges
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.compute import MeasuredSides, Measuring

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask

#: Values (rows times columns) of one call. Spark hashes more of them on all cores in less time.
MAX_LOCAL_VALUES = 8_000_000
#: Bytes of these values as they are stored: few values of long texts take all memory, too.
MAX_LOCAL_BYTES = 256 * 2**20
#: Files that are hashed at a time.
_WORKERS = min(4, pa.cpu_count())


class LocalMeasurer:
    """Computes with Arrow what Spark's `by_file` and `measure` compute.

    Raises Unsupported where there are too many rows, or where results may differ from Spark's.
    """

    def __init__(
        self,
        catalog: Catalog,
        max_values: int = MAX_LOCAL_VALUES,
        max_bytes: int = MAX_LOCAL_BYTES,
        max_groups: int = MAX_GROUPS,
    ) -> None:
        """Set up; one call reads `max_values` rows times columns, of `max_bytes` in files.

        Counted values are told apart in up to `max_groups` groups by partition and file.
        """
        self._catalog = catalog
        self._max_values, self._max_bytes, self._max_groups = max_values, max_bytes, max_groups

    def by_file(
        self,
        table: str,
        snapshot_id: int,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        skip: frozenset[str] = frozenset(),
    ) -> dict[tuple[str, str], Checksum]:
        """Return checksums by label and path: of each file's rows in each partition of the scope.

        Deleted rows and rows of files in `skip` do not count.
        """
        hashed = _Reading(scope, ignore, skip=skip)
        return self._sum([(hashed, self._plan(table, snapshot_id, hashed))])[0].file_checksums

    def measure(
        self,
        old: tuple[str, int | None],
        new: tuple[str, int | None],
        scope: Scope,
        measures: tuple[Measure, ...],
        ignore: tuple[str, ...] = (),
        change: SchemaChange = (),
        *,
        old_is_known: bool = False,
        old_measures: Mapping[str, tuple[Any, ...]] | None = None,
        earlier: tuple[str, ...] = (),
    ) -> MeasuredSides:
        """Compute checksums and declared measures of the scope on both sides, file by file.

        A side without snapshot has no total; a side without rows has counts of 0. With
        `old_is_known` the old side is not hashed, and not read when its measures are known too.
        """
        if change:
            raise Unsupported("a side under other names and types is read by Spark")
        is_unread = old_is_known and (not measures or old_measures is not None)
        history = Scope(field=scope.field, partitions=earlier)
        readings = [
            (_Reading(scope, ignore, measures, is_hashed=not old_is_known), old, not is_unread),
            (_Reading(scope, ignore, measures), new, True),
            (_Reading(history, (), measures, is_hashed=False), old, bool(earlier and measures)),
        ]
        read = [
            (reading, self._plan(table, snapshot_id, reading) if is_read else None)
            for reading, (table, snapshot_id), is_read in readings
        ]
        before, after, past = self._sum(read)
        return measured_sides(
            measures, scope, before, after, past,
            has_old=old[1] is not None, has_new=new[1] is not None,
            old_is_known=old_is_known, old_measures=old_measures,
        )  # fmt: skip

    def _plan(self, table: str, snapshot_id: int | None, reading: _Reading) -> SnapshotScan:
        """List the files; raises Unsupported for rows of partitions that Arrow does not label."""
        if reading.scope.field.path:
            raise Unsupported("rows of partitions by a struct's field are measured by Spark")
        return plan_scan(self._catalog, table, snapshot_id, scope_row_ranges(reading.scope))

    def _sum(self, sides: list[tuple[_Reading, SnapshotScan | None]]) -> list[PartitionSums]:
        """Return the contents of each side; None: not read."""
        work = [
            (number, reader, task)
            for number, (reading, side) in enumerate(sides)
            if side is not None and side.table is not None
            for reader in [reading.of(side)]
            for task in reading.tasks(side)
        ]
        self._require_few([(reader, task) for _, reader, task in work])
        found = [NO_ROWS if side is None else PartitionSums() for _, side in sides]
        hashing = thread_pool("measure", _WORKERS)
        groups = hashing.map(lambda each: list(each[1].groups(each[2])), work)
        states = 0
        for (number, _, task), listed in zip(work, groups, strict=True):
            for label, rows, checksum, sums in listed:
                path = task.file.file_path if sides[number][0].is_hashed else None
                found[number].add_group(label, path, rows, checksum, sums)
                states += len(sums) if sides[number][0].counts_states else 0
        if states > self._max_groups:
            raise Unsupported(f"{states:,} groups by counted values are refused by Spark")
        return found

    def _require_few(self, work: list[tuple[_FileReader, FileScanTask]]) -> None:
        """Raise Unsupported for more values or bytes than are read here."""
        values = sum(task.file.record_count * len(reader.names) for reader, task in work)
        require_few(values, self._max_values, "values")
        require_few(
            sum(reader.stored_bytes(task) for reader, task in work), self._max_bytes, "bytes"
        )


class _Reading:
    """What is read of a side: partitions, hashed columns, measures."""

    def __init__(
        self,
        scope: Scope,
        ignore: tuple[str, ...],
        measures: tuple[Measure, ...] = (),
        *,
        is_hashed: bool = True,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        self.scope, self.measures, self.is_hashed = scope, measures, is_hashed
        self.counts_states = any(each.counts_by for each in measures)
        self._ignore, self._skip = ignore, skip

    def tasks(self, side: SnapshotScan) -> list[FileScanTask]:
        """Return the files to read; raises Unsupported for files that are no Parquet."""
        tasks = [task for task in side.tasks if task.file.file_path not in self._skip]
        require_parquet(tasks)
        return tasks

    def of(self, side: SnapshotScan) -> _FileReader:
        """Return what reads files of a side; raises Unsupported."""
        sums = SideSums(side, self.scope, self._ignore, self.measures, is_hashed=self.is_hashed)
        return _FileReader(self, side, sums)


class _FileReader:
    """Reads files of a side, and sums up their rows by partition."""

    def __init__(self, of: _Reading, side: SnapshotScan, sums: SideSums) -> None:
        self._side, self._sums, self.names = side, sums, sums.names
        #: Files of a spec without the other partition fields hold rows of other tuples, too.
        only = next((rows.only for rows in scope_row_ranges(of.scope)), ())
        column = of.scope.field.column
        self._rows = filter_of_ranges([RowRange(column, is_everything=True, only=only)])

    def stored_bytes(self, task: FileScanTask) -> int:
        """Return how many bytes of a file are read."""
        return stored_bytes(self._side, task, self.names)

    def groups(self, task: FileScanTask) -> Iterator[Group]:
        """Yield the rows of a file by partition; those outside the scope are left out.

        Raises Unsupported for a file that PyIceberg cannot read.
        """
        return self._sums.groups(self._read(task))

    def _read(self, task: FileScanTask) -> Iterator[pa.Table]:
        """Yield the rows in batches; raises Unsupported."""
        try:
            yield from stream_file_columns(self._side, task, self.names, self._rows)
        except (NotImplementedError, ResolveError, ValueError) as error:
            kind = type(error).__name__
            raise Unsupported(f"{task.file.file_path} is read by Spark: {kind}") from error


class MeasuringBySize:
    """Measures few rows in this process and many by Spark; all else is Spark's.

    Both give the same numbers; to plan a query takes Spark longer than reading so few rows here.
    """

    def __init__(self, near: LocalMeasurer, spark: Measuring) -> None:
        """Set up."""
        self._near = near
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        """Return what only Spark does: frames, sources, masks."""
        return getattr(self._spark, name)

    def by_file(
        self,
        table: str,
        snapshot_id: int,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        skip: frozenset[str] = frozenset(),
    ) -> dict[tuple[str, str], Checksum]:
        """Compute the checksum of each file in each partition of the scope, by label and path."""
        with suppress(Unsupported):
            return self._near.by_file(table, snapshot_id, scope, ignore, skip)
        return self._spark.by_file(table, snapshot_id, scope, ignore, skip)

    def measure(
        self,
        old: tuple[str, int | None],
        new: tuple[str, int | None],
        scope: Scope,
        measures: tuple[Measure, ...],
        ignore: tuple[str, ...] = (),
        change: SchemaChange = (),
        **known: Any,
    ) -> MeasuredSides:
        """Compute checksums and measures of the scope on both sides."""
        with suppress(Unsupported):
            return self._near.measure(old, new, scope, measures, ignore, change, **known)
        return self._spark.measure(old, new, scope, measures, ignore, change, **known)
