"""Computes the same output twice: with rows of the inputs and shuffles in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructType

from lakehouse_backfill.adapters.spark import row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.domain.diff import Checksum, Repetition

#: Shuffle partitions of the second computation: no multiple of what people configure.
_OTHER_PARTITIONS = 7
_OTHER_SETTINGS = {
    "spark.sql.shuffle.partitions": str(_OTHER_PARTITIONS),
    # Small shuffles would be brought to one partition again.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}
_LOW_BITS = (1 << 40) - 1


class _Computed(NamedTuple):
    checksum: Checksum
    columns: dict[str, tuple[int, int]]


def compare_repeated(
    spark: SparkSession,
    build: Callable[[Callable[[DataFrame], DataFrame]], DataFrame],
    ignore: tuple[str, ...] = (),
) -> Repetition:
    """Compute an output twice and compare it as a multiset of rows.

    `build` makes it from inputs that it passes through the function that it is given: once as they
    are, once with their rows in other partitions and in another order.
    """
    first = _compute(build(lambda frame: frame), ignore)
    with _other_shuffles(spark):
        second = _compute(build(reordered), ignore)
    columns = tuple(
        name for name, value in first.columns.items() if second.columns.get(name) != value
    )
    return Repetition(first=first.checksum, second=second.checksum, columns=columns)


def reordered(frame: DataFrame) -> DataFrame:
    """Return the same rows in other partitions and another order, which depends on values only."""
    hashable = [
        quoted_column(field.name)
        for field in frame.schema.fields
        if not isinstance(field.dataType, MapType)
    ]
    if not hashable:
        return frame.repartition(_OTHER_PARTITIONS)
    order = F.xxhash64(*hashable)
    return frame.repartition(_OTHER_PARTITIONS, order).sortWithinPartitions(order.desc())


@contextmanager
def _other_shuffles(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in _OTHER_SETTINGS}
    for name, value in _OTHER_SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _compute(output: DataFrame, ignore: tuple[str, ...]) -> _Computed:
    """Compute the checksum of all rows, and a sum for each column, in one job."""
    fields = [field for field in output.schema.fields if field.name not in ignore]
    aggregates = row_hash.hash_aggregates(row_hash.row_hash_column(output.schema, ignore))
    for number, field in enumerate(fields):
        hashed = row_hash.row_hash_column(StructType([field]))
        aggregates += [
            F.bit_xor(hashed).alias(f"lhb_xor_{number}"),
            F.sum(hashed.bitwiseAND(F.lit(_LOW_BITS))).alias(f"lhb_sum_{number}"),
        ]
    values = output.agg(*aggregates).collect()[0].asDict()
    shape = row_hash.shape_digest(output.schema, ignore)
    sums = {
        field.name: (values[f"lhb_xor_{number}"], values[f"lhb_sum_{number}"])
        for number, field in enumerate(fields)
    }
    return _Computed(row_hash.to_checksum(values, shape), sums)
