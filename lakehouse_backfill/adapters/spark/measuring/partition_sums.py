"""Checksums and sums of the partitions of frames, in one pass over the rows of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import localcontext
from functools import reduce
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark import labels, rowhash
from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.scope import ScopeField
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

#: Iceberg's metadata column: the path of the file that a row was read from.
FILE_COLUMN = "_file"
_SIDE = "lhb_side"
_LABEL = "lhb_label"
_HASH = "lhb_hash"
_FILE = "lhb_file"
_VALUE = "lhb_value_"
_ROWS = "lhb_rows_all"
#: What rows without a value of a counted column count as.
NULL_STATE = "null"
#: Groups by partition, file and state that are brought to the driver at most.
MAX_GROUPS = 200_000
#: Sums of decimals of 38 digits must not be rounded where files are added up.
_DIGITS = 100


@dataclass(frozen=True)
class PartitionSums:
    """What one frame holds: by label the checksum, and the measures in the order asked for.

    Partitions without rows are left out. `files` are the checksums by label and file.
    """

    checksums: dict[str, Checksum] = field(default_factory=dict)
    measures: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    files: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, label: str, file: str | None, checksum: Checksum, values: list[Any]) -> None:
        """Add what a file holds of a partition; None: the file is not told."""
        if file is not None:
            held = self.files.get((label, file))
            self.files[label, file] = checksum if held is None else held + checksum
        known = self.checksums.get(label)
        self.checksums[label] = checksum if known is None else known + checksum
        before = self.measures.get(label)
        self.measures[label] = tuple(values if before is None else map(_plus, before, values))


def sum_partitions(
    frames: Mapping[str, DataFrame],
    by: ScopeField,
    ignore: Sequence[str] = (),
    measures: Sequence[Measure] = (),
    told: Collection[str] = (),
    unhashed: Collection[str] = (),
) -> dict[str, PartitionSums]:
    """Give checksums and measures by partition, of each named frame, in one job.

    `ignore` names columns that take no part in checksums. A column that a frame lacks has no value
    in it. Frames of `told` must come right from a table: their files are told apart. Of those of
    `unhashed` only the measures are worked out.
    """
    from pyspark.sql import functions as F

    if not frames:
        return {}
    shapes = {name: rowhash.shape_digest(frame.schema, ignore) for name, frame in frames.items()}
    narrow = [
        _narrow(name, frame, by, measures, *_hash_and_file(name, frame, ignore, told, unhashed))
        for name, frame in frames.items()
    ]
    rows = reduce(lambda one, other: one.unionAll(other), narrow)
    sums = [_sum_column(each, at) for at, each in enumerate(measures) if not each.counts_by]
    states = [f"{_VALUE}{at}" for at, measure in enumerate(measures) if measure.counts_by]
    grouped = rows.groupBy(_SIDE, _LABEL, _FILE, *states).agg(
        *rowhash.hash_aggregates(quoted_column(_HASH)), F.count(F.lit(1)).alias(_ROWS), *sums
    )
    found = {name: PartitionSums() for name in frames}
    for row in _collect_state_groups(grouped, measures) if states else grouped.collect():
        checksum = rowhash.to_checksum(row.asDict(), shapes[row[_SIDE]])
        values = [_group_value(row, measure, at) for at, measure in enumerate(measures)]
        side, label = found[row[_SIDE]], labels.format_label(by, row[_LABEL])
        side.add(label, row[_FILE], checksum, values)
        side.rows[label] = side.rows.get(label, 0) + row[_ROWS]
    return found


def _collect_state_groups(grouped: DataFrame, measures: Sequence[Measure]) -> list[Row]:
    """Collect groups by state; raises ConfigError where a column has too many values for states."""
    found = grouped.limit(MAX_GROUPS + 1).collect()
    if len(found) > MAX_GROUPS:
        names = ", ".join(each.counts_by for each in measures if each.counts_by)
        raise ConfigError(
            f"counts by {names}: more than {MAX_GROUPS:,} groups in the run's partitions",
            fix="count by a column of few values, e.g. a state",
        )
    return found


def _group_value(row: Row, measure: Measure, at: int) -> Any:
    """Give what a group adds to a measure: a number, or the rows of one state."""
    value = row[f"{_VALUE}{at}"]
    if not measure.counts_by:
        return value
    return Counter({state_text(value): row[_ROWS]})


def state_text(value: Any) -> str:
    """Name the state of a counted value: the text `null` is not the missing value."""
    if value is None:
        return NULL_STATE
    text = str(value)
    return f"={text}" if text == NULL_STATE or text.startswith("=") else text


def _hash_and_file(
    name: str,
    frame: DataFrame,
    ignore: Sequence[str],
    told: Collection[str],
    unhashed: Collection[str],
) -> tuple[Column, Column]:
    """Give the hash of each row of a frame, and the path of its file; null where not asked for."""
    from pyspark.sql import functions as F

    no_hash, no_file = F.lit(None).cast("bigint"), F.lit(None).cast("string")
    return (
        no_hash if name in unhashed else rowhash.row_hash_column(frame.schema, ignore),
        quoted_column(FILE_COLUMN) if name in told else no_file,
    )


def _narrow(
    name: str,
    frame: DataFrame,
    by: ScopeField,
    measures: Sequence[Measure],
    hashed: Column,
    file: Column,
) -> DataFrame:
    """Reduce rows to what is grouped: hashed here, or each aggregate would carry the hash."""
    from pyspark.sql import functions as F

    values = [
        _measure_input(frame, each).alias(f"{_VALUE}{at}") for at, each in enumerate(measures)
    ]
    side, label = F.lit(name).alias(_SIDE), labels.raw_label(by).alias(_LABEL)
    return frame.select(side, label, file.alias(_FILE), hashed.alias(_HASH), *values)


def _plus(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    with localcontext() as exact:
        exact.prec = _DIGITS
        return one + other


def _measure_input(frame: DataFrame, measure: Measure) -> Column:
    from pyspark.sql import functions as F

    name = measure.sum or measure.count or measure.counts_by or ""
    value = quoted_column(name) if name in frame.columns else F.lit(None)
    if measure.counts_by:
        return value.cast("string")
    return value if measure.sum else value.isNotNull()


def _sum_column(measure: Measure, at: int) -> Column:
    from pyspark.sql import functions as F

    value = quoted_column(f"{_VALUE}{at}")
    return (F.sum(value) if measure.sum else F.count_if(value)).alias(f"{_VALUE}{at}")
