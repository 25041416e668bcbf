"""Fits the transform's output to the target's columns, or says what does not fit."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.errors import ChecksFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_INTEGERS = ("byte", "short", "integer", "long")
_FLOATS = ("float", "double")
_TEXTS = ("string", "char", "varchar")


def fit_to_target(
    frame: DataFrame, target: StructType, left_out: Collection[str] = ()
) -> DataFrame:
    """Give the output in the target's column order and types; only lossless widening is done.

    Raises ChecksFailed that names every missing, extra and clashing column.
    """
    wanted = [field for field in target.fields if field.name not in left_out]
    given = {field.name: field for field in frame.schema.fields}
    faults = _faults(given, wanted, len(frame.schema.fields))
    if faults:
        raise ChecksFailed(
            "the transform's output does not fit the target: " + "; ".join(faults),
            state="nothing was written",
            fix="correct the transform, or change the contract and plan again",
        )
    return frame.select(*(_as_target(given[field.name], field) for field in wanted))


def _faults(given: dict[str, StructField], wanted: list[StructField], width: int) -> list[str]:
    names = {field.name for field in wanted}
    missing = [f"missing {field.name}" for field in wanted if field.name not in given]
    extra = [f"extra {name}" for name in given if name not in names]
    twice = ["a column name appears twice"] if width != len(given) else []
    clashing = [
        f"{field.name} is {given[field.name].dataType.simpleString()}, "
        f"the target has {field.dataType.simpleString()}"
        for field in wanted
        if field.name in given and not _is_lossless(given[field.name].dataType, field.dataType)
    ]
    return missing + extra + twice + clashing


def _as_target(given: StructField, wanted: StructField) -> Column:
    value = quoted_column(given.name)
    if given.dataType.simpleString() == wanted.dataType.simpleString():
        return value
    return value.cast(wanted.dataType).alias(wanted.name)


def _is_lossless(given: DataType, wanted: DataType) -> bool:
    """Tell whether every value of one type is also one of the other, with the same meaning."""
    if given.simpleString() == wanted.simpleString():
        return True
    from pyspark.sql import types as T

    if isinstance(given, T.DecimalType) and isinstance(wanted, T.DecimalType):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return whole and wanted.scale >= given.scale
    if isinstance(given, T.NullType):
        return True
    before, after = given.typeName(), wanted.typeName()
    if before in _TEXTS and after in _TEXTS:
        return after == "string"
    return any(
        before in chain and after in chain and chain.index(before) <= chain.index(after)
        for chain in (_INTEGERS, _FLOATS)
    )
