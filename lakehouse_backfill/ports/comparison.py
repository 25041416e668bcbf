"""Diff engines, readers' queries, correction events, and worker processes for parts of a diff."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lakehouse_backfill.domain.catch_up import TableState
from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.diff import DiffPreview
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.domain.partitions import RowRange, Scope
from lakehouse_backfill.domain.publication import CommitResult
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
    QueryComparison,
    ReaderQuery,
)
from lakehouse_backfill.domain.table import SchemaChange
from lakehouse_backfill.fault_points import side_effect


@dataclass(frozen=True)
class DiffRequest:
    """Two snapshots of tables to compare. No scope: everything. No key: as multisets of rows."""

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
    #: Partitions known to hold the same rows on both sides; they are not read.
    known_equal: frozenset[str] = frozenset()
    #: Whether the distribution of each column is reported, which reads all values.
    distributions: bool = True
    #: How the new side's columns derive from the old side's. The old side is read under the new
    #: names and types; added columns are counted, not compared.
    change: SchemaChange = ()


class Differ(Protocol):
    """A diff engine whose cost grows with the change, not with the table."""

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported."""
        ...

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every differing row in full, as plain values, without a limit on their number.

        In the order of partition and key. A key that one side holds more than once is not paired:
        its rows are yielded as removed and added. Raises NotFound, Unsupported.
        """
        ...

    def weigh(self, request: DiffRequest) -> int:
        """Return from metadata how many bytes of files a diff would read."""
        ...

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Return from metadata what is the same on both sides, and what a diff would read.

        Raises NotFound; Unsupported when the engine needs more than this process for it.
        """
        ...


class QueryRunner(Protocol):
    """Runs a reader's own query."""

    def compare(self, query: ReaderQuery, old: TableState, new: TableState) -> QueryComparison:
        """Run the query on both states and compare the results as multisets of rows.

        The query can access only the relation `product`: no file, no network, no setting. Raises
        ConfigError when it is not a single query, or fails.
        """
        ...


class Corrections(Protocol):
    """A table of correction events."""

    @side_effect
    def write(self, request: CorrectionEventsRequest, rows: Iterable[DifferingRow]) -> CommitResult:
        """Write the events of a publication by one append, unless its token has landed already.

        Creates the table when it does not exist; `rows` are read at most once. Raises Unsupported
        (the table's columns differ), TooBusy, OutcomeUnknown.
        """
        ...

    @side_effect
    def compensate(self, request: CompensationRequest) -> CommitResult:
        """Write the reverse of what publications wrote, newest first, by one append; once."""
        ...

    def find(self, table: str, token: str) -> CommitResult | None:
        """Return the append of `token` from the table; None without one, or without a table."""
        ...


#: Returns the answer for consecutive parts; the first argument is what all parts have in common.
#: It may be called more than once for a part, so it has no side effects.
PartFunction = Callable[[bytes, Sequence[bytes]], bytes]


class Workers(Protocol):
    """Processes that have this product installed, on any machine."""

    def count(self, work: PartFunction) -> int:
        """Return how many workers can do this work at a time.

        Raises Unsupported where they lack this product, or something else that the work needs.
        """
        ...

    def answers(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        """Run each task's parts together; yield the answers in the order of the parts.

        Consecutive small tasks may be run as one.
        """
        ...


@dataclass(frozen=True)
class RowSource:
    """Rows of one snapshot to group: those of the given files, each with the file's number."""

    table: str
    snapshot_id: int | None
    #: Path and number of each file; without files there are no rows.
    files: Mapping[str, int]
    #: The columns to read, by the name that workers see.
    columns: Mapping[str, str]
    #: The ranges that hold the rows; empty when every row of the files is meant.
    rows: tuple[RowRange, ...] = ()
    #: How the columns derive from the snapshot's own.
    change: SchemaChange = ()


#: Returns numbered answers for Arrow tables of rows; the first argument is what all calls have in
#: common. Each table has the source's columns, and `number` of each row's file.
RowFunction = Callable[..., Iterable[tuple[int, bytes]]]


class RowGroups(Protocol):
    """An engine that reads every kind of file, and sends rows to workers with this product.

    Raises Unsupported where workers lack this product; NotFound; EnvironmentDown.
    """

    def scan(self, source: RowSource, work: RowFunction, common: bytes) -> Iterator[bytes]:
        """Call `work(common, rows)` on parts of the rows; yield the answers."""
        ...

    def cogroup(
        self, sides: tuple[RowSource, RowSource], by: Sequence[str], groups: int,
        work: RowFunction, common: bytes,
    ) -> Iterator[tuple[int, list[bytes]]]:  # fmt: skip
        """Call `work(common, old, new)` on groups of the rows of both sides.

        Rows that are equal in number and in the columns `by` are in one group. Yields the answers
        by their numbers, in ascending order; memory holds those of one number at a time.
        """
        ...
