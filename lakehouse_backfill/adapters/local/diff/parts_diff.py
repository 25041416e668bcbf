"""Old against new by many workers: each compares whole partitions, as this process would."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.local.diff.diff import BATCH_ROWS, LocalDiffer, build_diff
from lakehouse_backfill.adapters.local.diff.parts import (
    DiffPart,
    compare_parts,
    divide_into_parts,
    merge_tallies,
    serialise_plan,
)
from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.errors import Unsupported

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.local.diff.asking import DiffPlan
    from lakehouse_backfill.adapters.local.diff.grouping import FilePiece
    from lakehouse_backfill.ports.diffing import DiffRequest
    from lakehouse_backfill.ports.workers import Workers

_MEBIBYTE = 1024 * 1024
#: Fewer rows are compared faster than they are handed out.
MIN_PART_ROWS = 50_000
#: Workers that are done early take more.
_TASKS_PER_WORKER = 4


class ParallelDiffer:
    """Compares partitions where they fit a worker; files are listed in this process."""

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
        self._least_rows = least_rows

    def diff(self, request: DiffRequest) -> Diff:
        """Compare as LocalDiffer does.

        Raises Unsupported too where a partition is too large for a worker, or there are none.
        """
        asked = self._differ.asked(request)
        self._require_small(asked)
        count = self._workers.count(compare_parts)
        tally = asked.tally()
        parts = list(self._parts(asked, self._differ.begin(asked, tally), count))
        tasks = list(_group_into_tasks(parts, count * _TASKS_PER_WORKER))
        merge_tallies(
            self._workers.answers(compare_parts, serialise_plan(asked), tasks), tally, len(parts)
        )
        how = f"whole partitions in {len(parts)} parts, {min(count, len(parts))} at a time"
        return build_diff(asked, tally, "spark").model_copy(update={"how": how})

    def _require_small(self, asked: DiffPlan) -> None:
        sizes: Counter[str | None] = Counter()
        for piece in (*asked.split.old, *asked.split.new):
            sizes[piece.label] += piece.bytes
        for label, size in sizes.most_common(1):
            if size > self._limit_bytes:
                raise _partition_too_large(label, size, self._limit_bytes)

    def _parts(self, asked: DiffPlan, unread: list[FilePiece], count: int) -> Iterator[DiffPart]:
        rows = sum(piece.rows for piece in (*unread, *asked.split.old, *asked.split.new))
        wanted = max(self._least_rows, min(BATCH_ROWS, rows // (2 * count)), 1)
        return divide_into_parts(asked, unread, wanted, max(self._limit_bytes, 1))


def _partition_too_large(label: str | None, size: int, limit: int) -> Unsupported:
    what = f"partition {label}" if label else "a table without partitions"
    return Unsupported(
        f"{what} has {size / _MEBIBYTE:,.1f} MiB to compare, more than a worker takes "
        f"({limit / _MEBIBYTE:,.0f})",
        fix="set task_diff_limit_mib in the profile, or compare by a shuffle",
    )


def _group_into_tasks(parts: list[DiffPart], wanted: int) -> Iterator[list[bytes]]:
    """Divide the parts, in their order, into tasks of as many parts."""
    size = -(-len(parts) // wanted)
    for first in range(0, len(parts), size or 1):
        yield [pickle.dumps(part) for part in parts[first : first + size]]
