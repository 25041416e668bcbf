"""Masks columns of a transform's output; counts stored values that are not what a mask makes."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.privacy import (
    ColumnPrivacy,
    MaskedColumn,
    MaskKey,
    MaskKind,
    derived_key,
)

SecretReader = Callable[[MaskKey], bytes]


def mask_output(frame: DataFrame, contract: Contract, read_secret: SecretReader) -> DataFrame:
    """Return the output with each masked column replaced by its masks; nulls stay null."""
    masked = contract.masked_columns
    if not masked:
        return frame
    key = contract.privacy.key if contract.privacy else None
    secret = derived_key(read_secret(key), "masks") if key else b""
    types = {field.name: field.dataType for field in frame.schema.fields}
    return frame.select(
        *(
            _masked(name, masked[name], secret).cast(types[name]).alias(name)
            if name in masked
            else quoted_column(name)
            for name in frame.columns
        )
    )


def _masked(name: str, declared: ColumnPrivacy, key: bytes) -> Column:
    column = quoted_column(name)
    if declared.mask == "null":
        return F.lit(None)
    if declared.mask == "truncate":
        return F.substring(column, 1, declared.length or 0)
    # The key is in the function, not in a literal: plans, which Spark logs, show literals.
    return F.udf(_mask_function(declared.mask or "hash", key), StringType(), useArrow=False)(column)


def _mask_function(kind: MaskKind, key: bytes) -> Callable[[str | None], str | None]:
    """Return `privacy.mask_text` for workers, which may lack this package: only the stdlib."""

    def mask(value: str | None) -> str | None:
        if value is None:
            return None
        mark = hmac.new(key, f"{kind}\0{value}".encode(), hashlib.sha256).digest()
        if kind == "hash":
            return mark.hex()
        return "tok_" + base64.b32encode(mark[:16]).decode("ascii").rstrip("=").lower()

    return mask


def count_misshapen(
    stored: DataFrame,
    masked: Mapping[str, ColumnPrivacy],
    raw: Mapping[str, Iterable[DataFrame]],
) -> tuple[MaskedColumn, ...]:
    """Count, in stored rows, what the masks did not make, and what inputs hold as raw values.

    `raw` has one column of raw values for each input column that a masked column comes from.
    """
    aggregates: list[Column] = []
    for number, (name, declared) in enumerate(masked.items()):
        column = quoted_column(name)
        aggregates += [
            F.count(column).alias(f"n{number}"),
            F.count(F.when(_is_misshapen(column, declared), F.lit(1))).alias(f"m{number}"),
        ]
    counts = stored.agg(*aggregates).collect()[0]
    return tuple(
        MaskedColumn(
            column=name,
            values=int(counts[f"n{number}"]),
            misshapen=int(counts[f"m{number}"]),
            raw=_count_raw(stored, name, tuple(raw.get(name, ()))),
        )
        for number, name in enumerate(masked)
    )


def _is_misshapen(column: Column, declared: ColumnPrivacy) -> Column:
    if declared.mask == "null":
        return column.isNotNull()
    if declared.mask == "truncate":
        return F.length(column) > F.lit(declared.length or 0)
    # With `$`, a line break at the end would pass.
    return ~column.rlike(rf"\A(?:{declared.shape})\z")


def _count_raw(stored: DataFrame, name: str, inputs: tuple[DataFrame, ...]) -> int | None:
    """Count the stored rows whose value an input holds; None without an input to compare with."""
    if not inputs:
        return None
    values = reduce(DataFrame.union, (frame.toDF("lhb_raw") for frame in inputs)).distinct()
    column = stored.select(quoted_column(name).alias("lhb_stored"))
    return column.join(values, F.col("lhb_stored") == F.col("lhb_raw"), "left_semi").count()
