"""Diff engines, readers' queries, workers.

Comparing old with new.

What readers do before a switch, and the events that they get instead of one.

Processes that each work on a part of one question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.diff import DiffPreview
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import CommitResult
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
    QueryComparison,
    ReaderQuery,
    TableState,
)
from lakehouse_backfill.domain.table import SchemaChange
from lakehouse_backfill.fault_points import side_effect


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


class QueryRunner(Protocol):
    """Running a reader's own query."""

    def compare(self, query: ReaderQuery, old: TableState, new: TableState) -> QueryComparison:
        """Run the query on both states and compare the results as multisets of rows.

        The query reaches nothing but the relation `product`: no file, no network, no setting.
        Raises ConfigError when it is no single query, or cannot be run.
        """
        ...


class Corrections(Protocol):
    """A table of correction events."""

    @side_effect
    def write(self, request: CorrectionEventsRequest, rows: Iterable[DifferingRow]) -> CommitResult:
        """Write the events of a publication by one append; a token that has landed writes none.

        The table is made when it does not exist, and `rows` are read once, if at all. Raises
        Unsupported (its columns are others), TooBusy, OutcomeUnknown.
        """
        ...

    @side_effect
    def compensate(self, request: CompensationRequest) -> CommitResult:
        """Write the reverse of what publications wrote, newest first, by one append; once."""
        ...

    def find(self, table: str, token: str) -> CommitResult | None:
        """Look in the table for the append of `token`; None when there is none, or no table."""
        ...


#: Answers for consecutive parts of a question; the first argument is what all parts have in common.
#: It may be called more than once for a part, so it has no side effects.
PartFunction = Callable[[bytes, Sequence[bytes]], bytes]


class Workers(Protocol):
    """Processes that have this product installed, on any machine."""

    def count(self, work: PartFunction) -> int:
        """Tell how many can do this work at a time.

        Raises Unsupported where they lack this product, or something that the work needs.
        """
        ...

    def answers(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        """Work on each task's parts together; yields the answers in the order of the parts.

        Small tasks that follow each other may be taken as one.
        """
        ...
