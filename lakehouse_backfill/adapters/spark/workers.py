"""Parts of one comparison in Python workers of Spark: the Workers port.

Workers get bytes, or rows of files that Spark reads and groups by key. Spark's reader applies every
kind of delete file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from lakehouse_backfill import __version__
from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, quoted_column
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.session.spark_errors import root_cause_line, spark_errors
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, Unsupported
from lakehouse_backfill.ports.comparison import PartFunction, RowFunction, RowSource

_Batches = Iterable[pa.RecordBatch]

#: Rows of the probe query; Spark divides them among all task slots.
_PROBE_ROWS = 10_000
#: Packages whose objects and files both sides must understand.
_VERSIONED_PACKAGES = ("pyiceberg", "pyarrow", "duckdb")
_FILE, _GROUP, _NUMBER = "lhb_file", "lhb_group", "number"
_ANSWER = "number int, answer binary"
#: Spark's hash of these types is that of the value alone, and equal values have equal hashes.
_HASHED_TYPES = frozenset(
    ("boolean", "byte", "short", "integer", "long", "decimal", "string", "binary", "date",
     "timestamp", "timestamp_ntz")
)  # fmt: skip
_worker_counts: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


class SparkWorkers:
    """The Python workers of a session's executors."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables
        self._spark = tables.spark

    def count(self, work: Callable[..., Any]) -> int:
        """Return how many workers can do this work at a time; a session is probed once.

        Raises Unsupported where the workers lack this package, or have another version of it.
        """
        if self._spark not in _worker_counts:
            reported, own = _worker_versions(self._spark, work.__module__), _process_versions()
            others = sorted({each for each in reported if each != own})
            if others:
                raise Unsupported(
                    f"Spark's workers do not have {own}: {others[0]}",
                    fix="install the same on the executors, or compare with --engine local",
                )
            _worker_counts[self._spark] = len(reported)
        return _worker_counts[self._spark]

    def run_all(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        """Run `work` on the parts of each task; yield the answers in the order of the parts."""
        batches, first = [], 0
        for parts in tasks:
            numbers = pa.array(range(first, first + len(parts)), pa.int64())
            batches.append(pa.record_batch({"number": numbers, "part": pa.array(parts)}))
            first += len(parts)
        if not batches:
            return
        with worker_errors(), write_guard.allow_own_writes():
            # PySpark makes one partition of each batch of large input. It divides the rows of
            # small input itself, as Spark Connect does: into runs of consecutive parts.
            questions = self._spark.createDataFrame(pa.Table.from_batches(batches))
            answers = questions.mapInArrow(
                _worker(work, common), "number long, answer binary"
            ).toArrow()
        yield from (row["answer"] for row in answers.sort_by("number").to_pylist())

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
            answers = old.cogroup(new).applyInArrow(_comparer(work, common), _ANSWER)
            with dataframes.cached(answers) as found:
                for number in sorted(found.select(_NUMBER).distinct().toArrow()[0].to_pylist()):
                    of_number = found.where(quoted_column(_NUMBER) == number).toArrow()
                    yield number, of_number["answer"].to_pylist()

    @contextmanager
    def _working(self, work: RowFunction, doing: str) -> Iterator[None]:
        """Check that workers can do the work; allow our own writes, and translate errors."""
        self.count(work)
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
        if not source.files:
            only = StructType([StructField(_NUMBER, IntegerType())])
            return self._tables.empty_frame(only)
        frame = self._tables.read(source.table, source.snapshot_id).select(
            "*", F.col("_file").alias(_FILE)
        )
        frame = dataframes.apply_schema_change(frame, source.change)
        if source.rows:
            frame = self._tables.restrict_to_ranges(source.table, frame, source.rows)
        numbers = pa.array(source.files.values(), pa.int32())
        listed = self._spark.createDataFrame(
            pa.table({_FILE: pa.array(source.files), _NUMBER: numbers})
        )
        columns = [quoted_column(name).alias(short) for short, name in source.columns.items()]
        number = listed[_NUMBER].alias("lhb_number")
        joined = frame.join(F.broadcast(listed.select(_FILE, number)), _FILE)
        return joined.select(F.col("lhb_number").alias(_NUMBER), *columns)


def _worker(work: PartFunction, common: bytes) -> Callable[[_Batches], _Batches]:
    # A nested function is pickled by value: workers import only what it calls.
    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            if batch.num_rows:
                answer = work(common, batch["part"].to_pylist())
                yield pa.record_batch({"number": batch["number"][:1], "answer": [answer]})

    return run


def _process_versions() -> str:
    """Return names and versions, in this process, of the packages that both sides must share."""
    others = (f"{name} {version(name)}" for name in _VERSIONED_PACKAGES)
    return ", ".join([f"lakehouse-backfill {__version__}", *others])


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise EnvironmentDown, with a fix, when workers fail."""
    try:
        yield
    except BackfillError:
        raise
    except Exception as error:
        raise EnvironmentDown(
            f"Spark's workers failed: {root_cause_line(str(error))}",
            fix="give executors more spark.executor.memoryOverhead, or lower task_diff_limit_mib",
        ) from error


def _worker_versions(spark: SparkSession, module: str) -> list[str]:
    """Return the versions that every worker reports, or the error of its failed import."""

    def tell(batches: _Batches) -> _Batches:
        try:
            import_module(module)
            report = _process_versions()
        except Exception as error:  # noqa: BLE001 (any error means that this worker cannot work)
            report = f"{type(error).__name__}: {error}"
        for _ in batches:
            pass
        yield pa.record_batch({"version": [report]})

    try:
        with write_guard.allow_own_writes():
            answers = spark.range(_PROBE_ROWS).mapInArrow(tell, "version string").toArrow()
    except Exception as error:  # noqa: BLE001 (Python may be missing or of another version)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return [next((line.strip() for line in lines if "Error: " in line), lines[0])]
    return [str(version) for version in answers["version"].to_pylist()]


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
