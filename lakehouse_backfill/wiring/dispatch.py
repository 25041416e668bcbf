"""The differ on Spark: partitions are compared in tasks of their own, else by a shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.diff import DiffPreview
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.comparison import Differ, DiffRequest


class _TaskDiffer(Protocol):
    def diff(self, request: DiffRequest) -> Diff: ...


class SparkDifferWithFallback:
    """The Differ on Spark: `how` of its answer says which way was taken, and why."""

    def __init__(self, tasks: _TaskDiffer, shuffle: Differ) -> None:
        self._tasks = tasks
        self._shuffle = shuffle

    def diff(self, request: DiffRequest) -> Diff:
        """Compare in tasks, which moves no row; what they refuse is shuffled by key."""
        try:
            return self._tasks.diff(request)
        except Unsupported as error:
            how = f"rows shuffled by key: {error.problem}"
        return self._shuffle.diff(request).model_copy(update={"how": how})

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every row that differs, by a shuffle."""
        return self._shuffle.differing(request)

    def weigh(self, request: DiffRequest) -> int:
        """Describe from metadata how many bytes of files a diff would read."""
        return self._shuffle.weigh(request)

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Refuse: what metadata tells is told without Spark."""
        return self._shuffle.preview(request)
