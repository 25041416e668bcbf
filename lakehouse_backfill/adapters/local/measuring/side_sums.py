"""Sums of Arrow rows by partition: checksums and declared measures, exact as Spark's.

Whoever reads rows may add them up here: a scan that only measures, and a diff that has them anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import FileFormat

from lakehouse_backfill.adapters.local.diff.layout import partition_values_of
from lakehouse_backfill.adapters.local.row_hash import checksum_of, shape_of, table_hashes
from lakehouse_backfill.core.validation.partition_totals import (
    MAX_GROUPS,
    state_text,
    state_total_name,
)
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.comparison.partition_sums import PartitionSums
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_LABEL,
    Scope,
    ScopeField,
    partition_label,
)
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

    from lakehouse_backfill.adapters.local.diff.columns import SideName
    from lakehouse_backfill.adapters.local.diff.tally import Tally
    from lakehouse_backfill.adapters.local.scan import SnapshotScan

#: Decimals of more digits are hashed one by one.
_MAX_SMALL_DECIMAL = 18
_MAX_LONG = 2**63 - 1
#: Rows of a file that are hashed at a time, as they stay in the processor's caches.
_BATCH_ROWS = 65_536
#: Rows of a partition: label, number, checksum, and values of measures by name.
Group = tuple[str, int, Checksum, dict[str, Any]]


class SideSums:
    """Adds up the rows of one side, by partition of a scope and by value, not by file."""

    def __init__(
        self,
        side: SnapshotScan,
        scope: Scope,
        ignore: tuple[str, ...],
        measures: tuple[Measure, ...],
        *,
        is_hashed: bool = True,
    ) -> None:
        """Set up: all columns but those of `ignore` are hashed, if any.

        Raises Unsupported where a hash, a sum, or a value as it is read may differ from Spark's.
        """
        if scope.field.path:
            raise Unsupported("rows of partitions by a struct's field are measured by Spark")
        kinds = {field.name: field.type for field in side.schema.as_arrow()}
        hashed = [name for name in kinds if name not in ignore] if is_hashed else []
        for name in hashed:
            _require_plain_hash(name, kinds[name])
        for measure in measures:
            _require_exact(measure, kinds)
        field = scope.field
        placing = [] if field.is_whole_table else [field.column]
        counted = [name for measure in measures if (name := _column_of(measure)) in kinds]
        read = {*hashed, *placing, *counted} or {next(iter(kinds))}
        #: The columns to read, in the order of the table, in which its files are read.
        self.names = [name for name in kinds if name in read]
        self.plain_measures = sum(not measure.counts_by for measure in measures)
        self.counts_states = self.plain_measures < len(measures)
        self._measures, self._field, self._kinds, self._hashed = measures, field, kinds, hashed
        self._shape = shape_of(pa.schema([(name, kinds[name]) for name in hashed]))
        self._labels, self._is_hashed = set(scope.partitions), is_hashed
        _require_stored_as_read(side, self.names, kinds)

    def groups(self, batches: Iterable[pa.Table]) -> Iterator[Group]:
        """Yield the rows of a file by partition; those outside the scope are left out.

        Raises Unsupported for too many counted values, and for a sum of more than 64 bits.
        """
        sums = PartitionSums()
        for batch in batches:
            rows = batch.combine_chunks()
            hashes = self._hashes(rows)
            for label, numbers in _split_by_label(rows, self._field):
                if label in self._labels:
                    part = rows if numbers is None else rows.take(pa.array(numbers))
                    own = hashes if numbers is None else hashes[numbers]
                    checksum = checksum_of(own, self._shape)
                    sums.add_group(label, None, part.num_rows, checksum, self._values(part))
        for label, values in sums.measures.items():
            _require_fitting(values)
            yield label, sums.row_counts[label], sums.checksums[label], values

    def kept_checksum(self, found: Checksum) -> Checksum:
        """Return the checksum of rows that this side lists, too; none where it hashes none."""
        return found if self._is_hashed else Checksum.empty(self._shape)

    def _hashes(self, rows: pa.Table) -> Any:
        if not self._is_hashed:
            return np.zeros(rows.num_rows, np.uint64)
        return table_hashes(rows.select(self._hashed))

    def _values(self, rows: pa.Table) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for measure in self._measures:
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


class ReadSums:
    """Adds up what a diff reads, file by file, into the sums of the sides that list the file."""

    def __init__(self, rows: SideSums, tally: Tally, sides: Mapping[SideName, SideSums]) -> None:
        """Set up; `tally.sums` becomes None where Arrow may add up otherwise than Spark."""
        self.names = rows.names
        self._rows, self._tally, self._sides = rows, tally, sides

    def add(self, path: str, rows: pa.Table) -> None:
        """Add rows of a file, with the columns `names`; dictionaries are decoded."""
        sums = self._tally.sums
        if sums is None:
            return
        batches = (
            pa.table([_plain(column) for column in batch.columns], names=batch.column_names)
            for start in range(0, rows.num_rows, _BATCH_ROWS)
            for batch in [rows.slice(start, _BATCH_ROWS)]
        )
        try:
            for label, count, checksum, values in self._rows.groups(batches):
                for side, own in self._sides.items():
                    kept = own.kept_checksum(checksum)
                    sums[side].add_group(label, path, count, kept, values)
        except Unsupported:
            self._tally.sums = None
        if self._rows.counts_states:
            self._tally.drop_many_sums()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    is_encoded = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_encoded else column


def require_parquet(tasks: Iterable[FileScanTask]) -> None:
    """Raise Unsupported for files that are no Parquet."""
    if any(task.file.file_format != FileFormat.PARQUET for task in tasks):
        raise Unsupported("files of other formats than Parquet are read by Spark")


def _require_fitting(values: Mapping[str, Any]) -> None:
    """Raise Unsupported for too many counted values, or a sum of more than 64 bits."""
    if len(values) > MAX_GROUPS:
        raise Unsupported(f"{len(values):,} counted values are refused by Spark")
    if any(isinstance(value, int) and abs(value) > _MAX_LONG for value in values.values()):
        raise Unsupported("a sum that does not fit into 64 bits is computed by Spark")


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
