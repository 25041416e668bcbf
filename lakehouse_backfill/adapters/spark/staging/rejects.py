"""Tells the rows that a transform rejects from those that it gives, by a column of its output.

Finds values of known secrets in what a job makes: in its queries, and in the rows of a chunk.

The engine never gets such a value: it would stand in plans and event logs. Queries are read here.
Rows are counted whose text has a part of the checksum of a secret, 20 of 32 bits, in the job that
writes them; only where there are such rows they are read again and compared here. So a text that is
exactly a secret is found in all rows. Inside longer texts, and in columns of other kinds, secrets
are looked for in the first rows of a chunk, which come to the driver for that.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.adapters.spark.guard import driver_guard
from lakehouse_backfill.adapters.spark.staging import merge
from lakehouse_backfill.core.planning.scope.key_chunks import reads_own_rows
from lakehouse_backfill.domain.guards.outside import SECRET_ROWS_READ
from lakehouse_backfill.domain.partitions import Chunk, scope_row_ranges
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES, REJECT_REASON, RejectedRow, Rejects
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
    of partitions that no chunk has. A chunk by key that computes all rows answers for its bucket.
    """
    # The predicate itself names rows: of tuples, whole partitions are looked at.
    ranges = scope_row_ranges(plan.chunk_scope(chunk).whole)
    mine = dataframes.is_in_ranges(ranges)
    if not any(pin.warm_up_days or pin.cool_down_days for pin in plan.resolved.sources):
        mine = mine | ~dataframes.is_in_ranges(scope_row_ranges(plan.resolved.scope.whole))
    for name in {one.column for one in ranges if not one.is_everything}:
        mine = mine | quoted_column(name).isNull()
    predicate = merge.typed_row_predicate(plan, schema)
    if predicate is not None:
        named = merge.matches_predicate(predicate)
        for name in predicate:
            named = named | quoted_column(name).isNull()
        mine = mine & named
    if chunk.keys is not None and not reads_own_rows(plan.resolved):
        mine = mine & dataframes.is_in_ranges(scope_row_ranges(chunk.keys))
    return mine & quoted_column(REJECT_REASON).isNotNull()


def read_rejects(plan: Plan, rows: DataFrame, place: tuple[str, int]) -> Rejects:
    """Count rejected rows, and read the first: their values as texts of limited length.

    The engine makes the texts: a date that Python cannot hold may be why a row was rejected. Raises
    WriteForbidden when one holds the value of a secret; `place` is named then.
    """
    rejected = rows.persist()
    try:
        require_none_in_rows(rejected, place)
        found = Rejects(
            rows=rejected.count(),
            reasons=_count_reasons(rejected),
            records=_first_records(rejected, plan.resolved.contract.key),
        )
    finally:
        rejected.unpersist()
    for record in found.records:
        require_none_in_texts((record.reason, *record.record.values()), place, "of a rejected row")
    require_none_in_texts(found.reasons, place, REJECT_REASON)
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


_BITS = 0xFFFFF
#: Different texts that share those bits with a secret; nobody has more of them by chance.
_MOST_CANDIDATES = 10_000
#: Rows of a chunk that are read for it: one small job of Spark a chunk, at most 10 MB a column.
ROWS_READ_WHOLE = SECRET_ROWS_READ
_CHARACTERS_READ = 10_000
_LITERAL = re.compile(r'expressions\.Literal"[^{}]*?"value":"((?:[^"\\]|\\.)*)"')


def require_none_in_plan(frame: DataFrame, plan_json: str | None, place: tuple[str, int]) -> None:
    """Raise WriteForbidden when a literal of a query holds the value of a secret.

    `plan_json` is its analysed plan; on Spark Connect, which gives none, what the client would send
    is looked at.
    """
    secrets = driver_guard.secrets_in_texts()
    if not secrets:
        return
    if plan_json is not None:
        texts = [json.loads(f'"{found}"').encode() for found in _LITERAL.findall(plan_json)]
    else:
        texts = _sent_by_client(frame)
    for name, value in secrets.items():
        if any(value.encode() in text for text in texts):
            raise driver_guard.secret_in_rows(name, place, is_written=False)


def _sent_by_client(frame: Any) -> list[bytes]:
    """Return what a client of Spark Connect would send to compute a frame; none of others."""
    if not hasattr(frame, "_plan"):
        return []
    return [frame._plan.to_proto(frame.sparkSession.client).SerializeToString()]


def count_candidates(schema: StructType) -> Column | None:
    """Return the number of rows that may hold a secret as a text; None: nothing to look for."""
    matches = _matches(schema)
    if not matches:
        return None
    return F.count(F.when(reduce(or_, matches.values()), F.lit(1)))


def require_none_stored(rows: DataFrame, place: tuple[str, int], *, may_hold: bool) -> None:
    """Raise WriteForbidden for a secret in stored rows; `may_hold`: some were counted."""
    if may_hold:
        require_none_in_rows(rows, place)
    require_none_in_first_rows(rows, place)


def require_none_in_rows(rows: DataFrame, place: tuple[str, int]) -> None:
    """Raise WriteForbidden when a text of stored rows is the value of a secret."""
    names = {value: name for name, value in driver_guard.secrets_of_rows().items()}
    for column, match in _matches(rows.schema).items():
        value = quoted_column(column)
        found = rows.where(match).select(value).distinct().limit(_MOST_CANDIDATES).collect()
        held = sorted(names[row[0]] for row in found if row[0] in names)
        if held:
            raise driver_guard.secret_in_rows(held[0], place, column=column)


def require_none_in_first_rows(rows: DataFrame, place: tuple[str, int]) -> None:
    """Raise WriteForbidden when one of the first rows holds the value of a secret anywhere."""
    secrets = driver_guard.secrets_in_texts()
    columns = {
        field.name: text
        for field in rows.schema.fields
        if field.name not in LINEAGE_NAMES and (text := _as_text(field)) is not None
    }
    if not secrets or not columns:
        return
    texts = [text.alias(f"lhb_{at}") for at, text in enumerate(columns.values())]
    found = rows.limit(ROWS_READ_WHOLE).select(*texts).collect()
    for column, values in zip(columns, zip(*found, strict=True), strict=False):
        require_none_in_texts(values, place, column)


def require_none_in_texts(
    values: Iterable[str | bytes | bytearray | None], place: tuple[str, int], column: str
) -> None:
    """Raise WriteForbidden when a text of a column contains the value of a secret."""
    secrets = driver_guard.secrets_in_texts()
    wanted = [
        (name, form.encode())
        for name, value in secrets.items()
        for form in {value, json.dumps(value)[1:-1]}  # nested columns are read as JSON
    ]
    for value in values:
        text = value.encode() if isinstance(value, str) else bytes(value or b"")
        for name, form in wanted:
            if form in text:
                raise driver_guard.secret_in_rows(name, place, column=column)


def _as_text(field: StructField) -> Column | None:
    """Return a column as a text or bytes that is not too long; None when it can hold no text."""
    column, kind = quoted_column(field.name), field.dataType
    if isinstance(kind, StructType | ArrayType | MapType):
        column = F.to_json(column)
    elif not isinstance(kind, StringType | BinaryType):
        return None
    return F.substring(column, 1, _CHARACTERS_READ)


def _matches(schema: StructType) -> Mapping[str, Column]:
    """Return by column of text which rows may hold a secret."""
    values = driver_guard.secrets_of_rows().values()
    parts = sorted({zlib.crc32(value.encode()) & _BITS for value in values})
    if not parts:
        return {}
    least = driver_guard.LEAST_LENGTH_IN_ROWS
    return {
        field.name: (F.octet_length(column) >= least)
        & F.crc32(column).bitwiseAND(F.lit(_BITS)).isin(parts)
        for field in schema.fields
        if isinstance(field.dataType, StringType) and field.name not in LINEAGE_NAMES
        for column in [quoted_column(field.name)]
    }
