"""Tells the rows that a transform rejects from those that it gives, by a column of its output."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import NullType, StringType, StructField, StructType

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.domain.partitions import Scope, scope_row_ranges
from lakehouse_backfill.domain.run import REJECT_REASON, RejectedRow, Rejects
from lakehouse_backfill.errors import ChecksFailed

#: Records kept of one chunk, in the order of their keys.
RECORDS_KEPT = 1_000
_REASONS_KEPT = 20
_COUNT = "lhb_rejected"


def declares_rejects(output: DataFrame) -> bool:
    """Return whether a transform says of its rows which are rejected."""
    return REJECT_REASON in output.columns


def accepted_rows(output: DataFrame) -> DataFrame:
    """Return the rows that are not rejected, without the column that says so.

    Raises ChecksFailed when that column is no text.
    """
    if not declares_rejects(output):
        return output
    kind = output.schema[REJECT_REASON].dataType
    if not isinstance(kind, (StringType, NullType)):
        raise ChecksFailed(
            f"{REJECT_REASON} of the transform's output is {kind.simpleString()}",
            state="nothing was written",
            fix="make it a string: the reason why a row is rejected, null for the others",
        )
    return output.where(quoted_column(REJECT_REASON).isNull()).drop(REJECT_REASON)


def with_reason(target: StructType) -> StructType:
    """Return the columns of rejected rows: those of the target, and the reason."""
    return StructType([*target.fields, StructField(REJECT_REASON, StringType())])


class RejectWatch:
    """Counts the rejected rows of the chunk that is written, also those of other partitions."""

    def __init__(self) -> None:
        self._chunk: tuple[str, str] | None = None
        self._observation: Observation | None = None

    def observe(self, chunk: tuple[str, str], output: DataFrame) -> DataFrame:
        """Return the output, whose rejected rows are counted when it is computed."""
        self._chunk = chunk
        self._observation = Observation() if declares_rejects(output) else None
        if self._observation is None:
            return output
        rejected = F.count(quoted_column(REJECT_REASON)).alias(_COUNT)
        return output.observe(self._observation, rejected)

    def look_up(self, chunk: tuple[str, str]) -> tuple[bool, Rejects | None]:
        """Return whether it is known what the chunk rejects, and that: no row, or none declared."""
        if chunk != self._chunk:
            return False, None
        if self._observation is None:
            return True, None
        try:
            count = dict(self._observation.get).get(_COUNT)
        except Exception:  # noqa: BLE001 (an assertion of the JVM: there are no metrics)
            return False, None
        return count == 0, Rejects(rows=0)


def read_rejects(fitted: DataFrame, scope: Scope, key: Sequence[str]) -> Rejects:
    """Count and read the rejected rows of a chunk; those without a partition belong to it too."""
    ranges = scope_row_ranges(scope)
    is_mine = dataframes.is_in_ranges(ranges)
    for name in {one.column for one in ranges}:
        is_mine = is_mine | quoted_column(name).isNull()
    reason = quoted_column(REJECT_REASON)
    rejected = fitted.where(reason.isNotNull() & is_mine).persist()
    try:
        count = F.count(F.lit(1)).alias(_COUNT)
        reasons = (
            rejected.groupBy(reason.alias(REJECT_REASON))
            .agg(count)
            .orderBy(F.desc(_COUNT), REJECT_REASON)
            .limit(_REASONS_KEPT)
            .collect()
        )
        order = [*map(quoted_column, key), reason]
        records = [
            row.asDict(recursive=True)
            for row in rejected.orderBy(*order).limit(RECORDS_KEPT).collect()
        ]
        return Rejects(
            rows=rejected.count(),
            reasons={row[REJECT_REASON]: row[_COUNT] for row in reasons},
            records=tuple(
                RejectedRow(
                    reason=record.pop(REJECT_REASON),
                    key={name: record[name] for name in key},
                    record=record,
                )
                for record in records
            ),
        )
    finally:
        rejected.unpersist()
