"""Spark's Python workers as processes that each work on a part of one question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING
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

#: Spark divides so many numbers among all that can work at a time.
_PROBE_ROWS = 10_000
#: Whose objects and files both sides have to understand.
_VERSIONED_PACKAGES = ("pyiceberg", "pyarrow", "duckdb")
_worker_counts: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


class SparkWorkers:
    """The Python workers of a session's executors: the port Workers."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def count(self, work: PartFunction) -> int:
        """Tell how many can do this work at a time, which a session is asked once.

        Raises Unsupported where they lack this product, or have another version of it.
        """
        if self._spark not in _worker_counts:
            found, own = _worker_versions(self._spark, work.__module__), _process_versions()
            others = sorted({each for each in found if each != own})
            if others:
                raise Unsupported(
                    f"Spark's workers do not have {own}: {others[0]}",
                    fix="install the same on the executors, or compare by a shuffle",
                )
            _worker_counts[self._spark] = len(found)
        return _worker_counts[self._spark]

    def answers(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        """Work on each task's parts together; yields the answers in the order of the parts."""
        batches, first = [], 0
        for parts in tasks:
            numbers = pa.array(range(first, first + len(parts)), pa.int64())
            batches.append(pa.record_batch({"number": numbers, "part": pa.array(parts)}))
            first += len(parts)
        if not batches:
            return
        with _worker_errors(), write_guard.allow_own_writes():
            # PySpark makes a partition of each batch of large questions. It divides the rows of
            # small ones, as Spark Connect does, by itself: into runs of consecutive parts.
            asked = self._spark.createDataFrame(pa.Table.from_batches(batches))
            found = asked.mapInArrow(_worker(work, common), "number long, answer binary").toArrow()
        yield from (row["answer"] for row in found.sort_by("number").to_pylist())


def _worker(work: PartFunction, common: bytes) -> Callable[[_Batches], _Batches]:
    # A function inside a function is sent whole: workers import only what it calls.
    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            if batch.num_rows:
                answer = work(common, batch["part"].to_pylist())
                yield pa.record_batch({"number": batch["number"][:1], "answer": [answer]})

    return run


def _process_versions() -> str:
    """Name what reads files and what is sent to and fro, with the versions of this process."""
    others = (f"{name} {version(name)}" for name in _VERSIONED_PACKAGES)
    return ", ".join([f"lakehouse-backfill {__version__}", *others])


@contextmanager
def _worker_errors() -> Iterator[None]:
    """Say of workers that died what can be done."""
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
    """Ask every worker for its version of this product; one that cannot import it says why."""

    def tell(batches: _Batches) -> _Batches:
        try:
            import_module(module)
            found = _process_versions()
        except Exception as error:  # noqa: BLE001 (whatever it is, these workers cannot)
            found = f"{type(error).__name__}: {error}"
        for _ in batches:
            pass
        yield pa.record_batch({"version": [found]})

    try:
        with write_guard.allow_own_writes():
            answers = spark.range(_PROBE_ROWS).mapInArrow(tell, "version string").toArrow()
    except Exception as error:  # noqa: BLE001 (Python itself may be missing or another one there)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return [next((line.strip() for line in lines if "Error: " in line), lines[0])]
    return [str(version) for version in answers["version"].to_pylist()]
