"""A diff in parts on many workers: groups of whole partitions, each compared as in this process.

Keys are matched inside a partition only, so parts are independent. The common plan and each part
are sent as bytes; workers return the sums of a tally.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, NoReturn

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table

from lakehouse_backfill.adapters.local.diff.compare import BatchComparison
from lakehouse_backfill.adapters.local.diff.differ import WORKER_ROWS, LocalDiffer, build_diff
from lakehouse_backfill.adapters.local.diff.layout import (
    FilePiece,
    batch_files,
    batch_partitions,
    read_both_sides,
    read_in_batches,
)
from lakehouse_backfill.adapters.local.diff.plan import DiffPlan, FileSplit
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.duckdb_engine import LazyDuckDB, start_duckdb
from lakehouse_backfill.domain.comparison.diff import Diff, SharedFiles
from lakehouse_backfill.domain.guards.privacy import NOTHING_HIDDEN
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, Unsupported
from lakehouse_backfill.ports.comparison import SummedDiff

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.local.scan import SnapshotScan
    from lakehouse_backfill.ports.comparison import DiffRequest, Workers


_NO_FILES = FileSplit([], [], [], SharedFiles(shared=0, old_only=0, new_only=0))
_ERROR_FIELDS = ("problem", "state", "fix", "field", "faults", "data")
_FIX = "let the executors read the store, or set task_diff_limit_mib: 0 so that Spark reads it"
#: The fields of a table's metadata about its history, which reading files does not need.
_EMPTY_HISTORY: dict[str, Any] = {
    "snapshots": [],
    "snapshot_log": [],
    "metadata_log": [],
    "refs": {},
    "statistics": [],
    "partition_statistics": [],
    "current_snapshot_id": None,
}


@dataclass(frozen=True)
class DiffPart:
    """Files of both sides to compare, or shared ones whose rows are only counted."""

    old: list[FilePiece]
    new: list[FilePiece]
    shared: list[FilePiece]


def serialise_plan(asked: DiffPlan) -> bytes:
    """Serialise what all parts have in common, without files. Raises Unsupported."""
    old, new = _without_history(asked.old), _without_history(asked.new)
    try:
        # Workers return what they find to this process, which alone shows it.
        request = replace(asked.request, redaction=NOTHING_HIDDEN)
        if not asked.row_sums:
            request = replace(request, read_sides=None)
        return pickle.dumps(replace(asked, request=request, old=old, new=new, split=_NO_FILES))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise Unsupported(
            f"the way to the files of {asked.new.name} cannot be sent to workers: {error}",
            fix="set task_diff_limit_mib: 0 in the profile, so that Spark reads the files",
        ) from error


def compare_parts(common: bytes, parts: Sequence[bytes]) -> bytes:
    """Compare parts; return for `merge_tallies` their sums, or the error that ended them."""
    plan: DiffPlan = pickle.loads(common)  # noqa: S301 (made by `serialise_plan`)

    tally = plan.new_tally()

    def compare(comparison: BatchComparison) -> None:
        old, new = plan.side_readers(tally)
        shared, columns = plan.shared_reader(tally), plan.condition_columns
        for serialised in parts:
            part: DiffPart = pickle.loads(serialised)  # noqa: S301 (made by ParallelDiffer)
            for rows, _ in read_in_batches(shared, part.shared, columns, WORKER_ROWS):
                comparison.count_shared_rows(rows)
            if part.old or part.new:
                comparison.compare_batch(
                    *read_both_sides((old, part.old), (new, part.new), plan.columns)
                )

    return sums_of(tally, plan.condition_sql, compare, len(parts))


def sums_of(
    tally: Tally,
    condition: str | None,
    compare: Callable[[BatchComparison], None],
    parts: int = 1,
) -> bytes:
    """Return for `merge_tallies` what `compare` added to the tally, or the error that ended it."""
    with closing(BatchComparison(worker_engine(), tally, condition)) as comparison:
        try:
            compare(comparison)
        except Exception as error:  # noqa: BLE001 (the caller reports it, not Spark's stack trace)
            return error_answer(error)
    return pickle.dumps((replace(tally, labels=[], columns=()), parts))


def error_answer(error: Exception) -> bytes:
    """Return a worker's error as its answer."""
    if isinstance(error, BackfillError):
        return pickle.dumps((type(error), {name: getattr(error, name) for name in _ERROR_FIELDS}))
    # The text of an engine may quote a value; that of the system names a file.
    text = f": {error}" if isinstance(error, OSError) else ""
    problem = f"a worker could not compare its part: {type(error).__name__}{text}"
    return pickle.dumps((EnvironmentDown, {"problem": problem, "fix": _FIX}))


def raise_answered_error(answer: bytes) -> NoReturn:
    """Raise the error that a worker answered with."""
    kind, fields = pickle.loads(answer)  # noqa: S301 (made by `error_answer`)
    raise kind(**fields)


def merge_tallies(answers: Iterable[bytes], tally: Tally, parts: int | None = None) -> None:
    """Add the sums of all parts to a tally; raise the error that a part ended with.

    Also raises EnvironmentDown when not all of `parts` were answered.
    """
    merged = 0
    for answer in answers:
        result, detail = pickle.loads(answer)  # noqa: S301 (made by `compare_parts`)
        if not isinstance(result, Tally):
            raise_answered_error(answer)
        tally.merge(result)
        merged += detail
    if parts is not None and merged != parts:
        raise EnvironmentDown(f"{merged} of {parts} parts came back from workers", fix=_FIX)


def _without_history(side: SnapshotScan) -> SnapshotScan:
    """Return a side that can be sent: without files, the table's history and its catalog."""
    table = side.table
    if table is None:
        return side
    metadata = table.metadata.model_copy(update=_EMPTY_HISTORY)
    detached = Table(
        table.name(), metadata, table.metadata_location, table.io, NoopCatalog("sent with the part")
    )
    return replace(side, table=detached, tasks=())


@lru_cache(1)
def worker_engine() -> LazyDuckDB:
    """Return the engine of this worker process, with one thread, as other workers run alongside.

    The worker process may be killed at any time, so it cannot clean up after itself. The spill
    folder is created on the first spill; Spark removes it with its own local folders.
    """
    folder = os.environ.get("SPARK_LOCAL_DIRS", gettempdir()).split(",")[0]
    spill = Path(folder) / f"lhb-diff-{os.getpid()}"
    return LazyDuckDB(lambda: start_duckdb(str(spill), threads=1))


_MEBIBYTE = 1024 * 1024
#: Fewer rows are compared faster than they are distributed.
MIN_PART_ROWS = 50_000
#: Several tasks per worker balance the load: workers that finish early take more.
_TASKS_PER_WORKER = 4


class ParallelDiffer:
    """Compares partitions on workers where each fits one; this process lists the files."""

    def __init__(
        self,
        differ: LocalDiffer,
        workers: Workers,
        limit_bytes: int,
        least_rows: int = MIN_PART_ROWS,
    ) -> None:
        self._differ = differ
        self._workers = workers
        self._limit_bytes = limit_bytes
        self._min_part_rows = least_rows

    def diff(self, request: DiffRequest) -> Diff:
        """Compare as `diff_and_sum`."""
        return self.diff_and_sum(request).diff

    def diff_and_sum(self, request: DiffRequest) -> SummedDiff:
        """Compare and add up as LocalDiffer does.

        Also raises Unsupported when a partition is too large for a worker, or there are no workers.
        """
        plan = self._differ.plan_diff(request)
        self._require_fitting_partitions(plan)
        count = self._workers.count(compare_parts)
        tally = plan.new_tally()
        parts = list(self._divide_plan(plan, self._differ.count_shared_rows(plan, tally), count))
        tasks = list(_group_into_tasks(parts, count * _TASKS_PER_WORKER))
        merge_tallies(
            self._workers.run_all(compare_parts, serialise_plan(plan), tasks), tally, len(parts)
        )
        division = f"whole partitions in {len(parts)} parts, {min(count, len(parts))} at a time"
        found = build_diff(plan, tally, "spark")
        diff = found.diff.model_copy(update={"how": division})
        return SummedDiff(diff, found.new_side, found.old_side)

    def _require_fitting_partitions(self, asked: DiffPlan) -> None:
        sizes: Counter[str | None] = Counter()
        for piece in asked.split.to_read:
            sizes[piece.label] += piece.size_bytes
        for label, size in sizes.most_common(1):
            if size > self._limit_bytes:
                raise _partition_too_large(label, size, self._limit_bytes)

    def _divide_plan(
        self, asked: DiffPlan, unread: list[FilePiece], count: int
    ) -> Iterator[DiffPart]:
        """Divide the files to read, by rows and by the bytes that a worker takes.

        A partition is never divided, so a larger partition is a part of its own.
        """
        all_rows = sum(piece.rows for piece in (*unread, *asked.split.to_read))
        rows = max(self._min_part_rows, min(WORKER_ROWS, all_rows // (2 * count)), 1)
        limit_bytes = max(self._limit_bytes, 1)
        for group in batch_files(unread, rows):
            yield DiffPart([], [], group)
        groups = batch_partitions(
            asked.split.old,
            asked.split.new,
            asked.layout,
            1,
            lambda piece: max(piece.rows / rows, piece.size_bytes / limit_bytes),
        )
        for old, new in groups:
            yield DiffPart(old, new, [])


def _partition_too_large(label: str | None, size: int, limit: int) -> Unsupported:
    subject = f"partition {label}" if label else "a table without partitions"
    return Unsupported(
        f"{subject} has {size / _MEBIBYTE:,.1f} MiB to compare, more than a worker takes "
        f"({limit / _MEBIBYTE:,.0f})",
        fix="set task_diff_limit_mib in the profile, or let Spark group the rows by key",
    )


def _group_into_tasks(parts: list[DiffPart], wanted: int) -> Iterator[list[bytes]]:
    """Divide the parts, in order, into tasks of equally many parts."""
    size = -(-len(parts) // wanted)
    for first in range(0, len(parts), size or 1):
        yield [pickle.dumps(part) for part in parts[first : first + size]]
