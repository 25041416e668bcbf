"""Diff engines, correction events, and worker processes for parts of a diff."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

from lakehouse_backfill.domain.comparison.diff import Diff, DiffPreview
from lakehouse_backfill.domain.comparison.partition_sums import NO_ROWS, PartitionSums
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.guards.privacy import NOTHING_HIDDEN, Redaction
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.domain.partitions import RowRange, Scope
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
)
from lakehouse_backfill.domain.sources.topics import (
    CorrectionTopic,
    SentEvents,
    TopicRequest,
    TopicState,
)
from lakehouse_backfill.domain.tables.commits import CommitResult
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.fault_points import side_effect


@dataclass(frozen=True)
class ReadSides:
    """What a diff adds up of its sides while it reads them, so that nobody reads them again.

    All columns but those of `ignore` are hashed. A file that both sides share is read once, for
    both.
    """

    measures: tuple[Measure, ...]
    ignore: tuple[str, ...]
    #: Whether the old side is added up, too: not at all, its measures alone, or hashed as well.
    old: Literal["unread", "measured", "hashed"] = "unread"


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
    #: The columns whose values neither a diff nor a differing row shows.
    redaction: Redaction = NOTHING_HIDDEN
    #: Given where the rows of the sides are to be added up, too.
    read_sides: ReadSides | None = None

    @property
    def states(self) -> tuple[tuple[str, int | None], tuple[str, int | None]]:
        """Table and snapshot of the old and the new side."""
        return (
            (self.old_table, self.old_snapshot_id),
            (self.new_table, self.new_snapshot_id),
        )

    def without_options(self) -> DiffRequest:
        """Return the request for every row that differs, compared exactly."""
        return replace(
            self, where=None, tolerances=(), known_equal=frozenset(), distributions=False
        )


class SummedDiff(NamedTuple):
    """A diff, and what its sides add up to; `old_side` without rows where that was not asked for.

    `new_side` is None where no side was added up: nobody asked for it, or the engine did not read
    all of the rows, or could not add them up as Spark does.
    """

    diff: Diff
    new_side: PartitionSums | None
    old_side: PartitionSums = NO_ROWS


class Differ(Protocol):
    """A diff engine whose cost grows with the change, not with the table."""

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported.

        Values of redacted columns are in no sample, distribution or bound.
        """
        ...

    def diff_and_sum(self, request: DiffRequest) -> SummedDiff:
        """Compare as `diff` does, and add up the request's `read_sides` on the way."""
        ...

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every differing row in full, as plain values, without a limit on their number.

        Values of redacted columns are hidden. In the order of partition and key. A key that one
        side holds more than once is not paired: its rows are yielded as removed and added. Raises
        NotFound, Unsupported.
        """
        ...

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Return from metadata what is the same on both sides, and what a diff would read.

        It says before a row is read whether a diff would add up its sides; one that begins to
        may still find values that it cannot add up. Raises NotFound; Unsupported when the engine
        needs more than this process for it.
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

    def events_of(self, table: str, token: str) -> Iterator[Mapping[str, Any]]:
        """Yield the events of an act, in the order of their positions.

        Raises Tampered when some of them are gone, before the first is yielded.
        """
        ...

    def find(self, table: str, token: str) -> CommitResult | None:
        """Return the append of `token` from the table; None without one, or without a table."""
        ...


class CorrectionTopics(Protocol):
    """Topics that correction events are sent to, beside their table."""

    def look(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic, with the first and last records of its partitions looked at.

        Raises Blocked for a topic that is not there or must not be read, SourceDown.
        """
        ...

    def state(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic as it is; no record is read. Raises Blocked, SourceDown."""
        ...

    @side_effect
    def send(self, request: TopicRequest, events: Iterable[Mapping[str, Any]]) -> SentEvents:
        """Send the events of an act that are not in the topic, in the order of their positions.

        `events` begin at position 0. Each comes once: what a process that was cut off has sent is
        read in the topic first, and a process that still sends is shut out. Raises Blocked when
        that cannot be read any more, Conflict when this process is shut out, SourceDown.
        """
        ...


#: Returns the answer for consecutive parts; the first argument is what all parts have in common.
#: It may be called more than once for a part, so it has no side effects.
PartFunction = Callable[[bytes, Sequence[bytes]], bytes]


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


class Workers(Protocol):
    """Processes that have this product installed, on any machine.

    Their engine reads every kind of file. `run_all` sends them what the caller has; `scan` and
    `cogroup` send rows. Raises Unsupported where workers lack this product; NotFound;
    EnvironmentDown.
    """

    def count(self, work: PartFunction) -> int:
        """Return how many workers can do this work at a time.

        Raises Unsupported where they lack this product, or something else that the work needs.
        """
        ...

    def run_all(
        self, work: PartFunction, common: bytes, tasks: Sequence[Sequence[bytes]]
    ) -> Iterator[bytes]:
        """Run each task's parts together; yield the answers in the order of the parts.

        Consecutive small tasks may be run as one.
        """
        ...

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
