"""Runs parts of one comparison in Python workers of Spark: the Workers port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from lakehouse_backfill import __version__
from lakehouse_backfill.adapters.spark.dataframes import root_cause_line
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, Unsupported
from lakehouse_backfill.ports.comparison import PartFunction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    _Batches = Iterable[pa.RecordBatch]

#: Rows of the probe query; Spark divides them among all task slots.
_PROBE_ROWS = 10_000
#: Packages whose objects and files both sides must understand.
_VERSIONED_PACKAGES = ("pyiceberg", "pyarrow", "duckdb")
_worker_counts: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


class SparkWorkers:
    """The Python workers of a session's executors: the port Workers."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

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

    def answers(
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
