"""Checksums and measures of few rows in this process with Arrow, as Spark measures many.

Each Spark job has half a second before its first task begins; hashing a few hundred thousand rows
here takes less. Rows whose hash or sum could differ from Spark's are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import ResolveError
from pyiceberg.manifest import FileFormat

from lakehouse_backfill.adapters.local.diff.layout import partition_values_of
from lakehouse_backfill.adapters.local.parquet import stream_file_columns, thread_pool
from lakehouse_backfill.adapters.local.row_hash import checksum_of, shape_of, table_hashes
from lakehouse_backfill.adapters.local.scan import SnapshotScan, filter_of_ranges, plan_scan
from lakehouse_backfill.core.validation.partition_totals import (
    MAX_GROUPS,
    NO_ROWS,
    PartitionSums,
    measured_sides,
    state_text,
    state_total_name,
)
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_LABEL,
    RowRange,
    Scope,
    ScopeField,
    partition_label,
    scope_row_ranges,
)
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
#: Decimals of more digits are hashed one by one.
_MAX_SMALL_DECIMAL = 18
_MAX_LONG = 2**63 - 1


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
        if values > self._max_values:
            raise Unsupported(f"{values:,} values are more than {self._max_values:,}")
        stored = sum(reader.stored_bytes(task) for reader, task in work)
        if stored > self._max_bytes:
            raise Unsupported(f"{stored:,} bytes are more than {self._max_bytes:,}")


#: Rows of a file in one partition: label, number, checksum, and values of measures by name.
_Group = tuple[str, int, Checksum, dict[str, Any]]


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
        if any(task.file.file_format != FileFormat.PARQUET for task in tasks):
            raise Unsupported("files of other formats than Parquet are read by Spark")
        return tasks

    def of(self, side: SnapshotScan) -> _FileReader:
        """Return what reads files of a side; raises Unsupported."""
        kinds = {field.name: field.type for field in side.schema.as_arrow()}
        hashed = [name for name in kinds if name not in self._ignore] if self.is_hashed else []
        for name in hashed:
            _require_plain_hash(name, kinds[name])
        for measure in self.measures:
            _require_exact(measure, kinds)
        reader = _FileReader(self, side, kinds, hashed)
        _require_stored_as_read(side, reader.names, kinds)
        return reader


class _FileReader:
    """Reads files of a side, and sums up their rows by partition."""

    def __init__(
        self, of: _Reading, side: SnapshotScan, kinds: dict[str, pa.DataType], hashed: list[str]
    ) -> None:
        self._of, self._side, self._kinds, self._hashed = of, side, kinds, hashed
        field = of.scope.field
        placing = [] if field.is_whole_table else [field.column]
        counted = [name for measure in of.measures if (name := _column_of(measure)) in kinds]
        read = {*hashed, *placing, *counted} or {next(iter(kinds))}
        #: In the order of the table, in which its files are read.
        self.names = [name for name in kinds if name in read]
        self._ids = [each.field_id for each in side.schema.fields if each.name in read]
        self._shape = shape_of(pa.schema([(name, kinds[name]) for name in hashed]))
        self._labels = set(of.scope.partitions)
        #: Files of a spec without the other partition fields hold rows of other tuples, too.
        only = next((rows.only for rows in scope_row_ranges(of.scope)), ())
        self._rows = filter_of_ranges([RowRange(field.column, is_everything=True, only=only)])

    def stored_bytes(self, task: FileScanTask) -> int:
        """Return how many bytes of a file are read: all, where metadata has no sizes of columns."""
        sizes = task.file.column_sizes or {}
        known = [sizes[number] for number in self._ids if number in sizes]
        return sum(known) if known else int(task.file.file_size_in_bytes)

    def groups(self, task: FileScanTask) -> Iterator[_Group]:
        """Yield the rows of a file by partition; those outside the scope are left out.

        Raises Unsupported for a file that PyIceberg cannot read.
        """
        sums = PartitionSums()
        for rows in self._read(task):
            hashes = self._hashes(rows)
            for label, numbers in _split_by_label(rows, self._of.scope.field):
                if label in self._labels:
                    part = rows if numbers is None else rows.take(pa.array(numbers))
                    own = hashes if numbers is None else hashes[numbers]
                    checksum = checksum_of(own, self._shape)
                    sums.add_group(label, None, part.num_rows, checksum, self._values(part))
        for label, values in sums.measures.items():
            self._require_fitting(values)
            yield label, sums.row_counts[label], sums.checksums[label], values

    def _read(self, task: FileScanTask) -> Iterator[pa.Table]:
        """Yield the rows in batches, each column in one chunk; raises Unsupported."""
        try:
            for rows in stream_file_columns(self._side, task, self.names, self._rows):
                yield rows.combine_chunks()
        except (NotImplementedError, ResolveError, ValueError) as error:
            kind = type(error).__name__
            raise Unsupported(f"{task.file.file_path} is read by Spark: {kind}") from error

    def _require_fitting(self, values: Mapping[str, Any]) -> None:
        """Raise Unsupported for too many counted values, or a sum of more than 64 bits."""
        if len(values) > MAX_GROUPS:
            raise Unsupported(f"{len(values):,} counted values are refused by Spark")
        if any(isinstance(value, int) and abs(value) > _MAX_LONG for value in values.values()):
            raise Unsupported("a sum that does not fit into 64 bits is computed by Spark")

    def _hashes(self, rows: pa.Table) -> Any:
        if not self._of.is_hashed:
            return np.zeros(rows.num_rows, np.uint64)
        return table_hashes(rows.select(self._hashed))

    def _values(self, rows: pa.Table) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for measure in self._of.measures:
            name = _column_of(measure)
            column = rows[name] if name in self._kinds else pa.nulls(rows.num_rows)
            if measure.counts_by:
                counts = pc.value_counts(column)
                if len(counts) > MAX_GROUPS:
                    raise Unsupported(f"{len(counts):,} values of {name} are refused by Spark")
                for count in counts.to_pylist():
                    state = state_text(count["values"])
                    values[state_total_name(measure, state)] = count["counts"]
            elif measure.sum:
                values[measure.name] = _exact_sum(column)
            else:
                values[measure.name] = len(column) - column.null_count
        return values


def _column_of(measure: Measure) -> str:
    return measure.sum or measure.count or measure.counts_by or ""


def _require_plain_hash(name: str, kind: pa.DataType) -> None:
    """Raise Unsupported for a column whose values are hashed one by one here."""
    is_wide = pa.types.is_decimal(kind) and kind.precision > _MAX_SMALL_DECIMAL
    if is_wide or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        raise Unsupported(f"{name}, {kind}, is hashed by Spark")


def _require_stored_as_read(
    side: SnapshotScan, names: list[str], kinds: Mapping[str, pa.DataType]
) -> None:
    """Raise Unsupported where PyIceberg may read other values than Spark.

    It takes default values as the text that metadata has. Files that were not written for Iceberg
    have no field ids but names, and may have timestamps of 96 bits: Arrow reads them as
    nanoseconds, so that those before 1677 and after 2262 become others.
    """
    filled = {each.name for each in side.schema.fields if each.initial_default is not None}
    if found := filled.intersection(names):
        raise Unsupported(f"default values of {min(found)} are filled in by Spark")
    is_imported = side.table is not None and side.table.name_mapping() is not None
    if is_imported and any(pa.types.is_timestamp(kinds[name]) for name in names):
        raise Unsupported("timestamps of files that were added as they are are read by Spark")


def _require_exact(measure: Measure, kinds: Mapping[str, pa.DataType]) -> None:
    """Raise Unsupported for a sum that depends on the order, and for states that are no texts."""
    kind = kinds.get(_column_of(measure))
    is_number = kind is not None and (pa.types.is_integer(kind) or pa.types.is_decimal(kind))
    if measure.sum and not is_number:
        raise Unsupported(f"{measure.sum}, {kind}, is summed by Spark")
    if measure.counts_by and not (kind is not None and _is_text(kind)):
        raise Unsupported(f"values of {measure.counts_by}, {kind}, are told apart by Spark")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _exact_sum(values: pa.ChunkedArray) -> Any:
    """Return the sum of whole numbers or decimals, None of no value; raises Unsupported."""
    if pa.types.is_decimal(values.type):
        # Arrow's sum of decimals has 38 digits, as the sum of Spark's would.
        if values.type.precision > _MAX_SMALL_DECIMAL:
            raise Unsupported("a sum of so many digits is computed by Spark")
        return pc.sum(values).as_py()
    bounds = pc.min_max(values.cast(pa.int64())).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    if largest * len(values) > _MAX_LONG:
        raise Unsupported("a sum that may not fit into 64 bits is computed by Spark")
    return pc.sum(values.cast(pa.int64())).as_py()


def _split_by_label(rows: pa.Table, field: ScopeField) -> Iterator[tuple[str, Any]]:
    """Yield each partition's label and its rows' numbers; None: all rows. By value, not by file."""
    if rows.num_rows == 0:
        return
    if field.is_whole_table:
        yield WHOLE_TABLE_LABEL, None
        return
    encoded = partition_values_of(rows[field.column], field).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    encoded = encoded.dictionary_encode(null_encoding="encode")
    try:
        labels = [partition_label(field, value) for value in encoded.dictionary.to_pylist()]
    except (OverflowError, ValueError) as error:
        raise Unsupported(f"{field.column} has times outside of the years 1 to 9999") from error
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    if len(numbers) == 1:
        yield labels[0], None
        return
    of_value = np.array([numbers[label] for label in labels])
    of_row = of_value[encoded.indices.to_numpy(zero_copy_only=False)]
    for label, number in numbers.items():
        yield label, np.flatnonzero(of_row == number)


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
