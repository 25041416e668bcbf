"""Comparing old with new."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.preview import DiffPreview
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.domain.schema_change import SchemaChange
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.tolerance import Tolerance


@dataclass(frozen=True)
class DiffRequest:
    """Compare two snapshots of tables. No scope: everything. No key: as multisets of rows."""

    old_table: str
    old_snapshot_id: int | None
    new_table: str
    new_snapshot_id: int | None
    key: tuple[str, ...]
    scope: Scope | None = None
    ignore: tuple[str, ...] = ()
    samples: int = 5
    where: str | None = None
    tolerances: tuple[Tolerance, ...] = ()
    #: Partitions that are known to hold the same rows on both sides: they are not read.
    known_equal: frozenset[str] = frozenset()
    #: Whether it is told how the values of each column are spread, which reads them all.
    distributions: bool = True
    #: What the new side's columns are of the old one's: it is read under the new names and types,
    #: and columns that come are counted, not compared.
    change: SchemaChange = ()


class Differ(Protocol):
    """Old against new, at a cost that follows the change."""

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported."""
        ...

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every row that differs, whole and as plain values, without limit on their number.

        In the order of partition and key. A key that one side holds more than once is not paired:
        its rows come as removed and added. Raises NotFound, Unsupported.
        """
        ...

    def weigh(self, request: DiffRequest) -> int:
        """Tell from metadata how many bytes of files a diff would read."""
        ...

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Tell from metadata what is the same on both sides, and what a diff would read.

        Raises NotFound; Unsupported by an engine that needs more than this process for it.
        """
        ...
