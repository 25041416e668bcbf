"""Staging, measuring, inspecting, restoring, suites, attribution.

Computing partitions again with single inputs swapped, to see which of them changes a row.

Computation on data: staging, checksums and edges on Spark, suites, diffs.

`Frame` is an engine's own table value (a Spark DataFrame); stages pass it on without looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakehouse_backfill.domain.catch_up import RestoreChunk, TableState
from lakehouse_backfill.domain.checks import (
    CheckGroup,
    CheckResult,
    DiffSample,
    EdgePartition,
    EdgeSide,
    MeasureTotal,
)
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.diff import Checksum, ComparedState, Factor, InputChange
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord, Period
from lakehouse_backfill.domain.table import SchemaChange
from lakehouse_backfill.fault_points import side_effect


@dataclass(frozen=True)
class InputSwapRequest:
    """One partition: `replaced` against `candidate`, which `new` made.

    `old` made what readers had (None: its code is unknown, `new`'s is taken), from `old_pins`;
    `published` is what it left, before live commits (None: not known). `keys` gives the key of
    inputs for which one is declared. `samples` rows of each pattern are shown.
    """

    partition: str
    new: Plan
    candidate: TableState
    replaced: TableState
    old_pins: tuple[SourcePin, ...]
    old: Plan | None = None
    published: TableState | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    samples: int = 3


@dataclass(frozen=True)
class RowPattern:
    """Changed rows that went through the states alike.

    `values` has one number per state: -1 where the row is absent, else the place of the first
    state with the same content.
    """

    values: tuple[int, ...]
    rows: int
    columns: dict[str, int]
    samples: tuple[DiffSample, ...]


@dataclass(frozen=True)
class InputSwapResult:
    """What was swapped, the states that were compared in their order, and what rows did."""

    factors: tuple[Factor, ...]
    states: tuple[ComparedState, ...]
    patterns: tuple[RowPattern, ...]
    inputs: tuple[InputChange, ...]
    notes: tuple[str, ...]


class ChangeAttributor(Protocol):
    """Running archived code on chosen pins; nothing is written anywhere."""

    def swap(self, request: InputSwapRequest) -> InputSwapResult:
        """Compute the states of a partition and compare them by key.

        A state that cannot be computed (old code on a new input) is left out, and a note says so.
        Raises what the code raises where it ran before: on its own inputs.
        """
        ...


# Many know these two by this module's name.


Frame = Any


@dataclass(frozen=True)
class MeasuredSides:
    """What one reading of both sides gave; a partition without rows has no checksum.

    The checksums of their files stand beside it, by label and path, where a file reads as its table
    does; rows that delete files hide are not in them.
    """

    old: dict[str, Checksum]
    new: dict[str, Checksum]
    totals: tuple[MeasureTotal, ...]
    old_files: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    new_files: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    #: Rows and measures of earlier partitions: by label, then by the name of the total.
    earlier: dict[str, dict[str, Any]] = field(default_factory=dict)


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

    def edge_checksums(
        self, plan: Plan, around: Mapping[EdgeSide, tuple[str, ...]]
    ) -> dict[str, Checksum]:
        """Compute the same partitions, without lineage columns; those without rows are left out."""
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
        beside: RowPredicate | None = None,
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
        *,
        old_is_known: bool = False,
        old_measures: Mapping[str, tuple[Any, ...]] | None = None,
        earlier: tuple[str, ...] = (),
    ) -> MeasuredSides:
        """Checksums (without `ignore`) and measures of the scope's partitions on both sides.

        Of `earlier` partitions of the old side rows and measures are read too, where there are
        measures.
        Each side is read once: table and snapshot, or None for a side without rows. With `change`
        the old side is read under the new names and types. Where its checksums are known, they are
        not worked out again, and it is read for measures only; not even for these where they are
        given as `old_measures`.
        """
        ...

    def by_file(
        self,
        table: str,
        snapshot_id: int,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        skip: frozenset[str] = frozenset(),
    ) -> dict[tuple[str, str], Checksum]:
        """Checksum of what each file holds of each partition of the scope, by label and path.

        Rows that delete files hide are not counted, nor are those of files in `skip`.
        """
        ...

    def source_totals(
        self,
        plan: Plan,
        wanted: tuple[SourceTotal, ...],
        measures: tuple[Measure, ...],
        totals: tuple[MeasureTotal, ...] = (),
    ) -> tuple[CheckResult, ...]:
        """Whole-candidate totals against whole-source totals (Q4).

        Those by partition are compared with `totals`: what was measured of the candidate's.
        """
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

    def judge_all(
        self,
        frame: Frame,
        suites: tuple[tuple[str, dict[str, list[Any]]], ...],
        group: CheckGroup,
    ) -> tuple[CheckResult, ...]:
        """Run several suite files, each with its parameters, over one read of a frame.

        Only the columns that they name are read, once.
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
