"""Computation on data: staging, measuring, inspecting, suites, views, attribution.

`Frame` is an engine's own table value (a Spark DataFrame); the core passes it on without reading
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from lakehouse_backfill.domain import catch_up, checks
from lakehouse_backfill.domain.checks import RowRule, SuiteEntry
from lakehouse_backfill.domain.comparison.attribution import ComparedState, Factor, InputChange
from lakehouse_backfill.domain.comparison.checksums import Checksum, Repetition
from lakehouse_backfill.domain.comparison.diff import DiffSample
from lakehouse_backfill.domain.contract import Measure, SourceTotal
from lakehouse_backfill.domain.guards.privacy import (
    NOTHING_HIDDEN,
    MaskedColumn,
    MaskSources,
    Redaction,
)
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord, Period, Rejects
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.fault_points import side_effect


@dataclass(frozen=True)
class InputSwapRequest:
    """Partitions in which `replaced` is compared with `candidate`, which `new` computed.

    They are computed together, as a chunk is. `old` computed the rows that readers had, from
    `old_pins` (None: its code is unknown, and `new` is used). `published` is its result before live
    commits (None: not known). `keys` holds the declared keys of inputs. `samples` is the number of
    sample rows of each pattern.
    """

    partitions: tuple[str, ...]
    new: Plan
    candidate: catch_up.TableState
    replaced: catch_up.TableState
    old_pins: tuple[SourcePin, ...]
    old: Plan | None = None
    published: catch_up.TableState | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    samples: int = 3


@dataclass(frozen=True)
class RowPattern:
    """Changed rows of a partition with the same history through the states.

    `values` has one number per state: -1 where the row is absent, else the index of the first state
    with the same content.
    """

    values: tuple[int, ...]
    rows: int
    columns: dict[str, int]
    samples: tuple[DiffSample, ...]
    partition: str


@dataclass(frozen=True)
class InputSwapResult:
    """The swapped factors, the compared states in order, and the patterns of the rows."""

    factors: tuple[Factor, ...]
    states: tuple[ComparedState, ...]
    patterns: tuple[RowPattern, ...]
    inputs: tuple[InputChange, ...]
    notes: tuple[str, ...]


class ChangeAttributor(Protocol):
    """Attribution of changed rows: runs archived code on chosen pins and writes nothing."""

    def swap(self, request: InputSwapRequest) -> InputSwapResult:
        """Compute the states of the partitions and compare them by key, partition by partition.

        A state that cannot be computed (old code on a new input) is left out, with a note. Raises
        the code's own errors when it fails on its own inputs, on which it ran before.
        """
        ...


Frame = Any


@dataclass(frozen=True)
class MeasuredSides:
    """The result of one read of both sides; a partition without rows has no checksum.

    `old_files` and `new_files` hold checksums by partition label and file path, for files that read
    as their table does; rows that delete files hide are excluded.
    """

    old: dict[str, Checksum]
    new: dict[str, Checksum]
    totals: tuple[checks.MeasureTotal, ...]
    old_files: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    new_files: dict[tuple[str, str], Checksum] = field(default_factory=dict)
    #: Rows and measures of earlier partitions: by label, then by the name of the total.
    earlier: dict[str, dict[str, Any]] = field(default_factory=dict)


class TableRead(NamedTuple):
    """A table that a plan reads: `namespace.table`, and the version that is named; empty: none."""

    table: str
    version: str


class PlanReads(NamedTuple):
    """The tables that a plan reads; not `is_whole`: rows that the driver made stand for more."""

    tables: tuple[TableRead, ...]
    is_whole: bool


class KeptIntermediate(NamedTuple):
    """An intermediate result of a transform as a table at a snapshot; `because` it is not kept."""

    name: str
    table: str = ""
    snapshot_id: int = 0
    #: An earlier chunk, run or product computed it.
    was_there: bool = False
    because: str = ""


class Staging(Protocol):
    """Runs a transform on pinned inputs into a shadow table."""

    def load(self, plan: Plan) -> None:
        """Import the transform and check name, version and inputs, without running it."""
        ...

    def analysed_plan(self, plan: Plan, chunk: Chunk) -> str | None:
        """Return the engine's analysed plan of a chunk as JSON, before anything is executed.

        None when the engine doesn't give it.
        """
        ...

    def tables_read(self, plan: Plan, chunk: Chunk) -> PlanReads | None:
        """Return the tables that the analysed plan of a chunk reads, subqueries included.

        None when the engine doesn't give it.
        """
        ...

    @side_effect
    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        """Compute one chunk and overwrite exactly its partitions in the shadow, in one commit.

        Raises RunMoved, and commits nothing, once the shadow is fenced by a later epoch.
        """
        ...

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        """Return the ledger row of a chunk that was committed before, but not recorded."""
        ...

    def intermediates(self, plan: Plan) -> tuple[str, ...]:
        """Return the names of the intermediate results that the transform reads; mostly none."""
        ...

    @side_effect
    def keep_intermediates(self, plan: Plan) -> tuple[KeptIntermediate, ...]:
        """Keep each intermediate result of the transform as a table that chunks then read.

        One that is kept under the same key is found, not computed. Only `stage` of this plan reads
        them; what is not kept, and every proof, computes them. A repeated call changes nothing.
        """
        ...

    def rejects(self, plan: Plan, chunk: Chunk) -> Rejects | None:
        """Return the rows of a staged chunk that its transform rejects; None: it declares none.

        All are counted; of the records, some thousand are returned.
        """
        ...

    def beside(self, plan: Plan) -> AbstractContextManager[None]:
        """Let this thread work for the run, beside other threads that do, until the block ends.

        What it computes shares the engine with them, and is ended by `interrupt`.
        """
        ...

    def interrupt(self, plan: Plan) -> None:
        """End what the engine computes for the run at this moment; `stage` raises then.

        Safe from any thread, and to repeat. A commit that is under way is left to end.
        """
        ...

    def application(self) -> str:
        """Return the id that the engine gives its commits; empty if it gives none."""
        ...

    def edges(
        self, plan: Plan, around: Mapping[checks.EdgeSide, tuple[str, ...]]
    ) -> tuple[checks.EdgePartition, ...]:
        """Compute partitions beyond the scope and compare them with the target's base.

        One result per partition, in the order of `around`.
        """
        ...

    def edge_checksums(
        self, plan: Plan, around: Mapping[checks.EdgeSide, tuple[str, ...]]
    ) -> dict[str, Checksum]:
        """Compute the same partitions without lineage columns; those without rows are left out."""
        ...

    def begin_edges(
        self, plan: Plan, around: Mapping[checks.EdgeSide, tuple[str, ...]]
    ) -> Future[dict[str, Checksum]]:
        """Start `edge_checksums` beside what this thread computes; `interrupt` ends it, too."""
        ...

    def prove_warm_up(self, plan: Plan, label: str) -> tuple[Checksum, Checksum]:
        """Compute one partition with the declared warm-up and with twice as much."""
        ...

    def prove_determinism(self, plan: Plan, label: str) -> Repetition:
        """Compute one partition twice: with the rows of the inputs, and shuffles, otherwise."""
        ...

    @side_effect
    def restore(self, chunk: catch_up.RestoreChunk) -> int:
        """Overwrite exactly the chunk's partitions with their earlier rows; return the snapshot id.

        Raises NotFound when a file of the earlier snapshot is missing, ChecksFailed when rows are
        missing after the write.
        """
        ...


class Measuring(Protocol):
    """Reads snapshots for the gates."""

    def checksums(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        beside: RowPredicate | None = None,
        without: catch_up.ExcludedRows | None = None,
    ) -> dict[str, Checksum]:
        """Compute the checksum of each partition of the scope; those without rows are left out.

        With `beside`, only rows that the predicate does not name are included; with `without`,
        only rows that no tombstone or deletion names.
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
        """Compute checksums (without `ignore`) and measures of the scope on both sides.

        Each side is read once: table and snapshot, or None for a side without rows. Results are by
        partition. With `change` the old side is read under the new names and types.

        With `old_is_known` the old checksums are not computed, and the old side is read for
        measures only. With `old_measures` it is not read for these either. With measures, the rows
        and measures of the partitions in `earlier` are read from the old side too.
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
        """Compute the checksum of each file in each partition of the scope, by label and path.

        Rows that delete files hide are not counted, nor are rows of files in `skip`.
        """
        ...

    def source_totals(
        self,
        plan: Plan,
        wanted: tuple[SourceTotal, ...],
        measures: tuple[Measure, ...],
        totals: tuple[checks.MeasureTotal, ...] = (),
    ) -> tuple[checks.CheckResult, ...]:
        """Compare whole-candidate totals with whole-source totals (Q4).

        Totals by partition are compared with `totals`, which were measured on the candidate.
        """
        ...

    def masked(
        self,
        plan: Plan,
        snapshot_id: int | None,
        sources: MaskSources,
    ) -> tuple[MaskedColumn, ...]:
        """Count, in the shadow's partitions of the run, what masks did not make.

        Masks are computed again for columns that copy one column of an input.
        """
        ...

    def frame(self, table: str, snapshot_id: int | None, scope: Scope | None) -> Frame:
        """Return the rows of a table at a snapshot, all or by scope, for the suites."""
        ...

    def input(self, plan: Plan, name: str) -> Frame:
        """Return one pinned input within its range, for the suites."""
        ...

    def distinct(self, plan: Plan, name: str, column: str) -> list[Any]:
        """Return the distinct non-null values of a column of an input, for suite parameters."""
        ...


class Inspecting(Protocol):
    """Inspects pinned inputs and single chunks, for the checks before and during staging."""

    def periods(self, plan: Plan, name: str, unit: Period) -> tuple[str, ...]:
        """Return the hours, days or months that hold a row, within the range that the run reads.

        Raises ConfigError for hours of a column that holds dates.
        """
        ...

    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...] = ()
    ) -> ChunkFacts:
        """Count a chunk's rows in the shadow, its null and duplicate keys, and broken rules."""
        ...

    def breaking(self, frame: Frame, rules: tuple[RowRule, ...]) -> tuple[int, tuple[int, ...]]:
        """Count the rows of a frame, and those that break each of the rules."""
        ...


class Judge(Protocol):
    """Runs Great Expectations suites."""

    def judge(
        self,
        frame: Frame,
        suite_file: str,
        parameters: dict[str, list[Any]],
        group: checks.CheckGroup,
        redaction: Redaction = NOTHING_HIDDEN,
    ) -> tuple[checks.CheckResult, ...]:
        """Run a suite file on a frame; return one result per expectation. Raises ConfigError.

        Of redacted columns the results hold counts, and no value.
        """
        ...

    def entries(
        self, suite_file: str, parameters: dict[str, list[Any]], types: Mapping[str, str]
    ) -> tuple[SuiteEntry, ...]:
        """Return the expectations of a suite file and what can be counted. Raises ConfigError.

        `types` are the types of all columns by name; no row is read.
        """
        ...

    def judge_entries(
        self,
        frame: Frame,
        suite_file: str,
        parameters: dict[str, list[Any]],
        chosen: Sequence[int],
        group: checks.CheckGroup,
        redaction: Redaction = NOTHING_HIDDEN,
    ) -> dict[int, checks.CheckResult]:
        """Run the chosen expectations of a suite file; return the results by their number."""
        ...

    def judge_all(
        self,
        frame: Frame,
        suites: tuple[tuple[str, dict[str, list[Any]]], ...],
        group: checks.CheckGroup,
        redaction: Redaction = NOTHING_HIDDEN,
        rows: int | None = None,
    ) -> tuple[checks.CheckResult, ...]:
        """Run several suite files, each with its parameters, over one read of a frame.

        Only the columns that the suites name are read, once. `rows` is about how many the frame
        has, where that is known; it decides where they are judged, not how.
        """
        ...


@dataclass(frozen=True)
class ComputePorts:
    """The ports that need Spark or Great Expectations; created on first use."""

    staging: Staging
    measuring: Measuring
    inspecting: Inspecting
    attributing: ChangeAttributor
    judge: Judge


class Views(Protocol):
    """SQL views of accepted versions."""

    @side_effect
    def show(
        self, view: str, table: str, snapshot_id: int | None, *, accepted_only: bool = False
    ) -> None:
        """Make the view show a table at a snapshot, or its head; a repeat does nothing.

        `accepted_only`: of a table of versions only the accepted rows.
        """
        ...


class RowReader(Protocol):
    """Single rows, deleted rows and readers' queries, in this process; no JVM."""

    def golden(self, file: str) -> list[dict[str, str | None]]:
        """Read the rows of a golden CSV file of the project; an empty cell is null."""
        ...

    def by_key(
        self, table: str, snapshot_id: int | None, keys: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Fetch the rows that have one of `keys` (column -> value)."""
        ...

    def deleted_rows(
        self, old: catch_up.TableState, new: catch_up.TableState, scope: Scope, key: tuple[str, ...]
    ) -> catch_up.DeletedRows:
        """Count the rows of `old` whose key is missing from `new` in the scope, with samples."""
        ...

    def tombstoned_rows(
        self,
        state: catch_up.TableState,
        partitions: tuple[str, ...],
        left_out: catch_up.ExcludedRows,
    ) -> catch_up.TombstonedRows:
        """Count the rows of the partitions that tombstones or erasures name."""
        ...

    def compare_query(
        self, query: ReaderQuery, old: catch_up.TableState, new: catch_up.TableState
    ) -> QueryComparison:
        """Run a reader's query on both states and compare the results as multisets of rows.

        The query can access only the relation `product`: no file, no network, no setting. Raises
        ConfigError when it is not a single query, or fails.
        """
        ...
