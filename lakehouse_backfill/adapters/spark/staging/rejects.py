"""Tells the rows that a transform rejects from those that it gives, by a column of its output."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, NullType, StringType, StructField, StructType

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.adapters.spark.staging import merge, secret_rows
from lakehouse_backfill.domain.partitions import Chunk, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import REJECT_REASON, RejectedRow, Rejects
from lakehouse_backfill.errors import ChecksFailed

#: Records kept of one chunk, in the order of their keys.
RECORDS_KEPT = 1_000
_REASONS_KEPT = 20
_MOST_OF_A_REASON = 200
_MOST_OF_A_VALUE = 1_000
_COUNT = "lhb_rejected"
#: More than chunks are ever computed side by side.
_CHUNKS_WATCHED = 128


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
    """Counts the rejected rows of chunks that are written, also those of other partitions.

    Only the newest chunks are known: as many as are written side by side.
    """

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str], Observation | None] = {}

    def observe(self, chunk: tuple[str, str], output: DataFrame) -> DataFrame:
        """Return the output, whose rejected rows are counted when it is computed."""
        for old in list(self._watched)[: max(0, len(self._watched) - _CHUNKS_WATCHED)]:
            self._watched.pop(old, None)
        observation = Observation() if declares_rejects(output) else None
        self._watched[chunk] = observation
        if observation is None:
            return output
        rejected = F.count(quoted_column(REJECT_REASON)).alias(_COUNT)
        return output.observe(observation, rejected)

    def look_up(self, chunk: tuple[str, str]) -> tuple[bool, Rejects | None]:
        """Return whether it is known what the chunk rejects, and that: no row, or none declared."""
        if chunk not in self._watched:
            return False, None
        observation = self._watched[chunk]
        if observation is None:
            return True, None
        try:
            count = dict(observation.get).get(_COUNT)
        except Exception:  # noqa: BLE001 (an assertion of the JVM: there are no metrics)
            return False, None
        return count == 0, Rejects(rows=0)


def is_rejected_of(plan: Plan, chunk: Chunk, schema: StructType) -> Column:
    """Build a column that is true for the rejected rows that a chunk answers for.

    Beside its own rows these are the ones whose place cannot be known, as a partition column or a
    column of the row predicate is null; and, where nothing beyond the run is read by design, those
    of partitions that no chunk has.
    """
    ranges = scope_row_ranges(plan.chunk_scope(chunk))
    mine = dataframes.is_in_ranges(ranges)
    if not any(pin.warm_up_days or pin.cool_down_days for pin in plan.resolved.sources):
        mine = mine | ~dataframes.is_in_ranges(scope_row_ranges(plan.resolved.scope))
    for name in {one.column for one in ranges if not one.is_everything}:
        mine = mine | quoted_column(name).isNull()
    predicate = merge.typed_row_predicate(plan, schema)
    if predicate is not None:
        named = merge.matches_predicate(predicate)
        for name in predicate:
            named = named | quoted_column(name).isNull()
        mine = mine & named
    return mine & quoted_column(REJECT_REASON).isNotNull()


def read_rejects(plan: Plan, rows: DataFrame, place: tuple[str, int]) -> Rejects:
    """Count rejected rows, and read the first: their values as texts of limited length.

    The engine makes the texts: a date that Python cannot hold may be why a row was rejected. Raises
    WriteForbidden when one holds the value of a secret; `place` is named then.
    """
    rejected = rows.persist()
    try:
        secret_rows.require_none_in_rows(rejected, place)
        found = Rejects(
            rows=rejected.count(),
            reasons=_count_reasons(rejected),
            records=_first_records(rejected, plan.resolved.contract.key),
        )
    finally:
        rejected.unpersist()
    for record in found.records:
        secret_rows.require_none_in_texts(
            (record.reason, *record.record.values()), place, "of a rejected row"
        )
    secret_rows.require_none_in_texts(found.reasons, place, REJECT_REASON)
    return found


def _count_reasons(rejected: DataFrame) -> dict[str, int]:
    counted = rejected.groupBy(_reason()).agg(F.count(F.lit(1)).alias(_COUNT))
    most = counted.orderBy(F.desc(_COUNT), REJECT_REASON).limit(_REASONS_KEPT)
    return {row[REJECT_REASON]: row[_COUNT] for row in most.collect()}


def _first_records(rejected: DataFrame, key: Sequence[str]) -> tuple[RejectedRow, ...]:
    texts = [_text(field) for field in rejected.schema.fields if field.name != REJECT_REASON]
    order = [*map(quoted_column, key), quoted_column(REJECT_REASON)]
    first = rejected.orderBy(*order).limit(RECORDS_KEPT).select(*texts, _reason())
    records = [row.asDict() for row in first.collect()]
    return tuple(
        RejectedRow(
            reason=record.pop(REJECT_REASON),
            key={name: record[name] for name in key},
            record=record,
        )
        for record in records
    )


def _reason() -> Column:
    text = F.substring(quoted_column(REJECT_REASON), 1, _MOST_OF_A_REASON)
    return text.alias(REJECT_REASON)


def _text(field: StructField) -> Column:
    column = quoted_column(field.name)
    text = F.base64(column) if isinstance(field.dataType, BinaryType) else column.cast("string")
    return F.substring(text, 1, _MOST_OF_A_VALUE).alias(field.name)
