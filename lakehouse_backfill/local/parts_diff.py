"""Old against new by many workers: each compares whole partitions, as this process would."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.local.diff import BATCH_ROWS, LocalDiffer, answer
from lakehouse_backfill.local.parts import Part, parts_of, received, sent, work
from lakehouse_backfill.model.checks import Diff

if TYPE_CHECKING:
    from lakehouse_backfill.local.asking import Asked
    from lakehouse_backfill.local.grouping import Piece
    from lakehouse_backfill.ports.diffing import DiffRequest
    from lakehouse_backfill.ports.workers import Workers

_MEBIBYTE = 1024 * 1024
#: Fewer rows are compared faster than they are handed out.
LEAST_ROWS = 50_000
#: Workers that are done early take more.
_TASKS_PER_WORKER = 4


class PartsDiffer:
    """Compares partitions where they fit a worker; files are listed in this process."""

    def __init__(
        self,
        differ: LocalDiffer,
        workers: Workers,
        limit_bytes: int,
        least_rows: int = LEAST_ROWS,
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
        count = self._workers.count(work)
        tally = asked.tally()
        parts = list(self._parts(asked, self._differ.begin(asked, tally), count))
        tasks = list(_tasks(parts, count * _TASKS_PER_WORKER))
        received(self._workers.answers(work, sent(asked), tasks), tally)
        how = f"whole partitions in {len(parts)} parts, {min(count, len(parts))} at a time"
        return answer(asked, tally, "spark").model_copy(update={"how": how})

    def _parts(self, asked: Asked, unread: list[Piece], count: int) -> Iterator[Part]:
        pieces = (*unread, *asked.split.old, *asked.split.new)
        rows = sum(piece.rows for piece in pieces)
        size = sum(int(piece.task.file.file_size_in_bytes) for piece in pieces)
        fitting = rows * self._limit_bytes // max(size, 1)
        limit = max(self._least_rows, min(BATCH_ROWS, fitting, rows // (2 * count)))
        for part in parts_of(asked, unread, limit):
            if len(part.labels) == 1 and part.bytes > self._limit_bytes:
                raise _too_large(part, self._limit_bytes)
            yield part


def _too_large(part: Part, limit_bytes: int) -> Unsupported:
    (label,) = part.labels
    what = f"partition {label}" if label else "a table without partitions"
    return Unsupported(
        f"{what} has {part.bytes / _MEBIBYTE:,.0f} MiB to compare, "
        f"more than a worker takes ({limit_bytes // _MEBIBYTE})",
        fix="set task_diff_limit_mib in the profile, or compare by a shuffle",
    )


def _tasks(parts: list[Part], wanted: int) -> Iterator[list[bytes]]:
    """Divide the parts, in their order, into tasks of as many parts."""
    size = -(-len(parts) // wanted)
    for first in range(0, len(parts), size or 1):
        yield [pickle.dumps(part) for part in parts[first : first + size]]
