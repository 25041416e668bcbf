"""Workers inside this process, for a differ that sends parts to them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.distributed.parallel import ParallelDiffer
from lakehouse_backfill.ports.comparison import PartFunction


class Here:
    """Works on one part after the other, as bytes that know nothing of each other."""

    def __init__(self, number: int = 3) -> None:
        self._number = number
        self.tasks: list[int] = []

    def count(self, work: PartFunction) -> int:
        assert callable(work)
        return self._number

    def answers(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        self.tasks = [len(parts) for parts in tasks]
        sent = pickle.loads(pickle.dumps(work))
        yield from (sent(common, parts) for parts in tasks)


def parts_differ(catalog: Catalog, limit_bytes: int = 1 << 40) -> ParallelDiffer:
    """Compare every partition by itself."""
    return ParallelDiffer(LocalDiffer(catalog), Here(), limit_bytes, least_rows=1)
