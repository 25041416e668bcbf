"""Computation on data: staging, checksums and edges on Spark, suites, diffs.

`Frame` is an engine's own table value (a Spark DataFrame); stages pass it on without looking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lakehouse_backfill.fault_points import side_effect
from lakehouse_backfill.model.checks import (
    CheckGroup,
    CheckResult,
    Diff,
    EdgePartition,
    EdgeSide,
    MeasureTotal,
)
from lakehouse_backfill.model.checksum import Checksum
from lakehouse_backfill.model.contract import Measure, SourceTotal
from lakehouse_backfill.model.inspection import ChunkFacts, Period
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.predicate import Predicate
from lakehouse_backfill.model.restoring import RestoreChunk
from lakehouse_backfill.model.rollout import Differing
from lakehouse_backfill.model.run import ChunkRecord
from lakehouse_backfill.model.schema_change import SchemaChange
from lakehouse_backfill.model.scope import Chunk, Scope

Frame = Any


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
    #: What the new side's columns are of the old one's: it is read under the new names and types,
    #: and columns that come are counted, not compared.
    change: SchemaChange = ()


@dataclass(frozen=True)
class Measured:
    """What one reading of both sides gave; a partition without rows has no checksum."""

    old: dict[str, Checksum]
    new: dict[str, Checksum]
    totals: tuple[MeasureTotal, ...]


class Staging(Protocol):
    """Running a transform on pinned inputs into a shadow table."""

    def load(self, plan: Plan) -> None:
        """Import the transform and check name, version and inputs, without running it."""
        ...

    @side_effect
    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        """Compute one chunk and overwrite exactly its partitions in the shadow, in one commit.

        Raises RunMoved, and commits nothing, once the shadow was fenced by a later epoch.
        """
        ...

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        """Give the ledger row of a chunk that was committed, but not recorded, before."""
        ...

    def edges(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> tuple[EdgePartition, ...]:
        """Compute partitions beyond the scope and compare them with the target's base.

        One result per partition, in the order of `around`.
        """
        ...

    def prove_warm_up(self, plan: Plan, label: str) -> tuple[Checksum, Checksum]:
        """Compute one partition with the declared warm-up and with twice as much."""
        ...


class Measuring(Protocol):
    """Reading snapshots for the gates."""

    def checksums(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        beside: Predicate | None = None,
    ) -> dict[str, Checksum]:
        """Checksum of each partition of the scope; partitions without rows are left out.

        With `beside`: only of the rows that the predicate does not name.
        """
        ...

    def measure(
        self,
        old: tuple[str, int | None],
        new: tuple[str, int | None],
        scope: Scope,
        measures: tuple[Measure, ...],
        ignore: tuple[str, ...] = (),
        change: SchemaChange = (),
    ) -> Measured:
        """Checksums (without `ignore`) and measures of the scope's partitions on both sides.

        Each side is read once: table and snapshot, or None for a side without rows. With `change`
        the old side is read under the new names and types.
        """
        ...

    def source_totals(
        self, plan: Plan, wanted: tuple[SourceTotal, ...], measures: tuple[Measure, ...]
    ) -> tuple[CheckResult, ...]:
        """Whole-candidate totals against whole-source totals (Q4)."""
        ...

    def output(self, plan: Plan) -> Frame:
        """The restated partitions of the shadow, for the suites."""
        ...

    def input(self, plan: Plan, name: str) -> Frame:
        """One pinned input within its range, for the suites."""
        ...

    def distinct(self, plan: Plan, name: str, column: str) -> list[Any]:
        """Distinct non-null values of a column of a pinned input, for suite parameters."""
        ...


class Inspecting(Protocol):
    """Looking at pinned inputs and at single chunks, for the checks before and during staging."""

    def periods(self, plan: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Label the hours, days or months of which an input holds a row, where the run reads it.

        Raises ConfigError for hours of a column that holds dates.
        """
        ...

    def chunk(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> ChunkFacts:
        """Count the rows that the shadow holds of a chunk, and look at their keys."""
        ...

    def snapshot(self, table: str, snapshot_id: int | None, scope: Scope | None) -> Frame:
        """The rows of a table at a snapshot, all or those of some partitions, for the suites."""
        ...

    def visible(self, table: str, snapshot_id: int, scope: Scope) -> Frame:
        """The rows of some partitions of a table as its readers see them, for the suites."""
        ...

    def rows(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> Frame:
        """The rows that the shadow holds of a chunk, for the suites."""
        ...


class Restoring(Protocol):
    """Writing earlier content of partitions into the shadow of a rollback."""

    @side_effect
    def restore(self, chunk: RestoreChunk) -> int:
        """Overwrite exactly the chunk's partitions by their rows then; give the shadow's snapshot.

        Raises NotFound when a file of the earlier snapshot is gone, ChecksFailed when the rows did
        not all arrive.
        """
        ...


class Differ(Protocol):
    """Old against new, at a cost that follows the change."""

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported."""
        ...

    def differing(self, request: DiffRequest) -> Iterator[Differing]:
        """Yield every row that differs, whole and as plain values, without limit on their number.

        In the order of partition and key. A key that one side holds more than once is not paired:
        its rows come as removed and added. Raises NotFound, Unsupported.
        """
        ...

    def weigh(self, request: DiffRequest) -> int:
        """Tell from metadata how many bytes of files a diff would read."""
        ...


class Judge(Protocol):
    """Great Expectations."""

    def judge(
        self,
        frame: Frame,
        suite_file: str,
        parameters: dict[str, list[Any]],
        group: CheckGroup,
        *,
        rows_only: bool = False,
    ) -> tuple[CheckResult, ...]:
        """Run a suite file on a frame: one result per expectation; raises ConfigError.

        With `rows_only`: those that block, and that fail for the whole when they fail for a part
        of its rows; nothing is read when the suite holds none.
        """
        ...


class Views(Protocol):
    """SQL views of accepted versions."""

    @side_effect
    def show(self, view: str, table: str, snapshot_id: int | None) -> None:
        """Make the view show a table at a snapshot, or its head; the same again does nothing."""
        ...


class Records(Protocol):
    """Single records, for golden data and spot checks; no JVM."""

    def golden(self, file: str) -> list[dict[str, str | None]]:
        """Read the rows of a golden CSV file of the project; an empty cell is null."""
        ...

    def by_key(
        self, table: str, snapshot_id: int | None, keys: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Fetch the rows that have one of `keys` (column -> value)."""
        ...
