"""Finds values of known secrets in what a job makes: in its queries, and in the rows of a chunk.

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
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, StructType

from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.adapters.spark.guard import driver_guard
from lakehouse_backfill.domain.guards.outside import SECRET_ROWS_READ
from lakehouse_backfill.domain.run import LINEAGE_NAMES

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
