"""What files say of their own columns, as whoever wrote them counted: nothing of them is read.

Only numbers that are exact: counts of nulls, and bounds of whole numbers, dates and times. Bounds
of texts may be cut off, those of floats leave NaN out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.types import DateType, IntegerType, LongType, TimestampType, TimestamptzType

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

    from lakehouse_backfill.adapters.local.scan import SnapshotScan

_EXACT_TYPES = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)


def told_nulls(side: SnapshotScan, task: FileScanTask, column: str) -> int | None:
    """Return how many rows of a file have no value of a column; None where it does not say so."""
    field = next((each for each in side.schema.fields if each.name == column), None)
    if field is None or not field.field_type.is_primitive or task.delete_files:
        return None
    file, number = task.file, field.field_id
    values, nulls = (
        (each or {}).get(number) for each in (file.value_counts, file.null_value_counts)
    )
    if nulls is None or values != file.record_count or not 0 <= nulls <= values:
        return None
    return int(nulls)


def told_bounds(side: SnapshotScan, task: FileScanTask, column: str) -> pa.Array | None:
    """Return the least and the greatest value of a column; none of no value.

    None where the file does not say so, or not exactly.
    """
    nulls = told_nulls(side, task, column)
    if nulls is None:
        return None
    field = side.schema.find_field(column)
    kind = side.schema.select(column).as_arrow().field(0).type
    if nulls == task.file.record_count:
        return pa.nulls(0, kind)
    ends = [
        (each or {}).get(field.field_id)
        for each in (task.file.lower_bounds, task.file.upper_bounds)
    ]
    if not isinstance(field.field_type, _EXACT_TYPES) or None in ends:
        return None
    numbers = [int.from_bytes(end, "little", signed=True) for end in ends if end is not None]
    stored = pa.int32() if isinstance(field.field_type, (IntegerType, DateType)) else pa.int64()
    return pa.array(numbers, stored).cast(kind)
