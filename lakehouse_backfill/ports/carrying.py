"""Taking over chunks of an earlier revision, and finding rows that must not come back."""

from __future__ import annotations

from typing import Protocol

from lakehouse_backfill.domain.carrying import CarryRequest, TableState
from lakehouse_backfill.domain.catch_up import DeletedRows, ExcludedRows, TombstonedRows
from lakehouse_backfill.domain.publication import ChunkCommit
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.fault_points import side_effect


class Carrying(Protocol):
    """Moving staged partitions from one shadow to another, by metadata alone."""

    @side_effect
    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Let a shadow hold the partitions as another one has them, in one commit.

        A chunk that is there already is given back as it is. Raises RunMoved once the shadow was
        fenced by a later epoch, TargetChanged when the two have other columns.
        """
        ...


class DeletionFinder(Protocol):
    """Looking for deleted rows; reads key columns, and starts no JVM."""

    def gone(
        self, old: TableState, new: TableState, scope: Scope, key: tuple[str, ...]
    ) -> DeletedRows:
        """Count the rows of `old` whose key `new` does not hold in the scope, and say where."""
        ...

    def named(
        self, state: TableState, partitions: tuple[str, ...], left_out: ExcludedRows
    ) -> TombstonedRows:
        """Count the rows of the partitions that tombstones or erasures name."""
        ...
