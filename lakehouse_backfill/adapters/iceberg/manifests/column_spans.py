"""The values of a time column that files hold, from their statistics, else their partitions."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lakehouse_backfill.adapters.iceberg.manifests.partition_labels import PartitionLabels
from lakehouse_backfill.domain.partitions import (
    ScopeField,
    partition_row_range,
    partition_start,
)
from lakehouse_backfill.domain.tables.files import ColumnSpan, LiveFile, visible_rows
from lakehouse_backfill.errors import Unsupported

_Time = datetime | date | None


#: The types of time that an input is cut by, with the length of their bounds.
BOUND_BYTES = {"date": 4, "timestamp": 8, "timestamptz": 8}


class ColumnSpans:
    """Reads the bounds of one time column from the statistics of files, else from partitions."""

    def __init__(self, table: Table, column: NestedField) -> None:
        self._column, self._type = column, str(column.field_type)
        self._labels: PartitionLabels | None = None
        with suppress(Unsupported):
            field = ScopeField.model_validate(
                {
                    "column": column.name,
                    "transform": "identity" if self._type == "date" else "hour",
                    "type": self._type,
                }
            )
            self._labels = PartitionLabels(table.metadata, field)

    def span(self, file: DataFile, added_by: int | None = None, **hidden: Any) -> ColumnSpan:
        """Return the values that a file holds; `hidden` says what delete files hide of it."""
        nulls = (file.null_value_counts or {}).get(self._column.field_id)
        most_null = 0 if self._column.required else file.record_count if nulls is None else nulls
        least, most = visible_rows(
            (
                LiveFile(
                    path=file.file_path, spec_id=file.spec_id, partition=None,
                    rows=file.record_count, size_bytes=file.file_size_in_bytes, **hidden,
                ),
            )
        )  # fmt: skip
        bounds = self._bound(file.lower_bounds), self._bound(file.upper_bounds)
        is_known = None not in bounds
        first, last = bounds if is_known else self._of_partition(file)
        return ColumnSpan(
            path=file.file_path,
            first=first,
            last=last,
            least_rows=max(0, least - most_null),
            most_rows=max(0, min(most, file.record_count - (nulls or 0))),
            is_exact=is_known and not hidden,
            added_by=added_by,
            deletes=hidden.get("deletes", ()),
        )

    def _bound(self, bounds: dict[int, bytes] | None) -> _Time:
        """Decode a bound; one from before a type promotion has another length, and is unknown."""
        stored = (bounds or {}).get(self._column.field_id)
        if stored is None or len(stored) != BOUND_BYTES[self._type]:
            return None
        number = int.from_bytes(stored, "little", signed=True)
        try:
            start = partition_start("identity", self._type, number)
        except OverflowError:
            return None
        return start if isinstance(start, date) else None

    def _of_partition(self, file: DataFile) -> tuple[_Time, _Time]:
        """Return the first and last value that a file's partition may hold."""
        if self._labels is None or not self._labels.can_label(file.spec_id):
            return None, None
        source = self._labels.require_source(file.spec_id, 1)
        rows = partition_row_range(source.field, self._labels.file_label(file))
        if not isinstance(rows.lower, date) or not isinstance(rows.upper, date):
            return None, None
        is_time = isinstance(rows.upper, datetime)
        last = rows.upper - (timedelta(microseconds=1) if is_time else timedelta(days=1))
        return rows.lower, last
