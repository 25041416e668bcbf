"""Rows of files that Spark reads, grouped by key on its Python workers: the RowGroups port.

Spark's reader applies every kind of delete file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import quoted_column, spark_errors
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.session.python_workers import SparkWorkers, worker_errors
from lakehouse_backfill.ports.comparison import RowFunction, RowSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    _Batches = Iterable[pa.RecordBatch]

_FILE, _GROUP, _NUMBER = "lhb_file", "lhb_group", "number"
_ANSWER = "number int, answer binary"
#: Spark's hash of these types is that of the value alone, and equal values have equal hashes.
_HASHED_TYPES = frozenset(
    ("boolean", "byte", "short", "integer", "long", "decimal", "string", "binary", "date",
     "timestamp", "timestamp_ntz")
)  # fmt: skip


class SparkRowGroups:
    """Reads files with Spark and groups their rows by a hash of the key."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def scan(self, source: RowSource, work: RowFunction, common: bytes) -> Iterator[bytes]:
        """Call `work` on batches of the rows; yield the answers."""
        with self._working(work, f"reading {source.table}"):
            found = self._read(source).mapInArrow(_scanner(work, common), _ANSWER).toArrow()
        yield from found["answer"].to_pylist()

    def cogroup(
        self, sides: tuple[RowSource, RowSource], by: Sequence[str], groups: int,
        work: RowFunction, common: bytes,
    ) -> Iterator[tuple[int, list[bytes]]]:  # fmt: skip
        """Call `work` on groups of both sides' rows; yield the answers number by number.

        A column of `by` counts where both sides hold it in one type that Spark hashes by value.
        """
        doing = f"comparing {sides[0].table} with {sides[1].table}"
        with self._working(work, doing):
            frames = [self._read(source) for source in sides]
            hashed = _hashed_columns(by, frames)
            old, new = (_with_group(each, hashed, groups).groupBy(_GROUP) for each in frames)
            found = old.cogroup(new).applyInArrow(_comparer(work, common), _ANSWER).persist()
            try:
                for number in sorted(found.select(_NUMBER).distinct().toArrow()[0].to_pylist()):
                    answers = found.where(quoted_column(_NUMBER) == number).toArrow()
                    yield number, answers["answer"].to_pylist()
            finally:
                found.unpersist()

    @contextmanager
    def _working(self, work: RowFunction, doing: str) -> Iterator[None]:
        """Check that workers can do the work; allow our own writes, and translate errors."""
        SparkWorkers(self._spark).count(work)
        # A job's code may be at work on another thread.
        with write_guard.allow_own_writes(), spark_errors(doing):
            try:
                yield
            except Exception as error:
                if type(error).__name__ != "PythonException":
                    raise
                with worker_errors():
                    raise

    def _read(self, source: RowSource) -> DataFrame:
        """Return the rows of the source's files under its names, with the files' numbers."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import IntegerType, StructField, StructType

        if not source.files:
            only = StructType([StructField(_NUMBER, IntegerType())])
            return dataframes.empty_frame(self._spark, only)
        frame = dataframes.read_table(
            self._spark, self._catalog, source.table, source.snapshot_id
        ).select("*", F.col("_file").alias(_FILE))
        frame = dataframes.apply_schema_change(frame, source.change)
        if source.rows:
            frame = dataframes.restrict_to_ranges(
                self._spark, self._catalog, source.table, frame, source.rows
            )
        numbers = pa.array(source.files.values(), pa.int32())
        listed = self._spark.createDataFrame(
            pa.table({_FILE: pa.array(source.files), _NUMBER: numbers})
        )
        columns = [quoted_column(name).alias(short) for short, name in source.columns.items()]
        number = listed[_NUMBER].alias("lhb_number")
        joined = frame.join(F.broadcast(listed.select(_FILE, number)), _FILE)
        return joined.select(F.col("lhb_number").alias(_NUMBER), *columns)


def _hashed_columns(by: Sequence[str], frames: list[DataFrame]) -> list[str]:
    types: list[dict[str, Any]] = [
        {field.name: field.dataType for field in frame.schema.fields}
        for frame in frames
        if len(frame.schema.fields) > 1  # A side without rows has no columns.
    ]
    return [
        name
        for name in by
        if all(name in side for side in types)
        and len({side[name] for side in types}) == 1
        and types[0][name].typeName() in _HASHED_TYPES
    ]


def _with_group(frame: DataFrame, hashed: list[str], groups: int) -> DataFrame:
    from pyspark.sql import functions as F

    present = [name for name in hashed if name in frame.columns]
    together = F.hash(_NUMBER, *present) if groups > 1 else F.lit(0)
    return frame.withColumn(_GROUP, F.pmod(together, F.lit(groups)))


# Nested functions are pickled by value: workers import only what these call.


def _scanner(work: RowFunction, common: bytes) -> Callable[[_Batches], _Batches]:
    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            for number, answer in work(common, pa.Table.from_batches([batch])):
                yield pa.record_batch(
                    {"number": pa.array([number], pa.int32()), "answer": pa.array([answer])}
                )

    return run


def _comparer(work: RowFunction, common: bytes) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def run(old: pa.Table, new: pa.Table) -> pa.Table:
        found = list(work(common, old, new))
        numbers = pa.array([number for number, _ in found], pa.int32())
        return pa.table(
            {"number": numbers, "answer": pa.array([each for _, each in found], pa.binary())}
        )

    return run
