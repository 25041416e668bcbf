"""A stand-in for Spark, the suites and the diff over the in-memory lake."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from lakehouse_backfill.core.evidence import attribution
from lakehouse_backfill.core.planning.inputs.completeness import expected_periods
from lakehouse_backfill.core.planning.target.catch_up import excluded_rows
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.catch_up import ExcludedRows, RestoreChunk
from lakehouse_backfill.domain.checks import (
    CheckResult,
    EdgePartition,
    MeasureTotal,
    NotNull,
    RowRule,
    SuiteEntry,
)
from lakehouse_backfill.domain.comparison.attribution import ComparedState, Factor
from lakehouse_backfill.domain.comparison.checksums import Checksum, Repetition
from lakehouse_backfill.domain.comparison.diff import (
    ColumnDiff,
    Diff,
    DiffPreview,
    DiffSample,
    FileTotals,
    PartitionDiff,
    SharedFiles,
)
from lakehouse_backfill.domain.guards.privacy import MaskedColumn
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import Chunk, Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.domain.run import (
    LINEAGE_NAMES,
    ChunkCounts,
    ChunkFacts,
    ChunkRecord,
    Rejects,
)
from lakehouse_backfill.errors import EnvironmentDown
from lakehouse_backfill.ports.comparison import DiffRequest, SummedDiff
from lakehouse_backfill.ports.compute import (
    InputSwapRequest,
    InputSwapResult,
    KeptIntermediate,
    MeasuredSides,
    PlanReads,
    RowPattern,
)
from tests.support.fakes.catch_up import FakeRowReader, key_of
from tests.support.fakes.lake import (
    DAY,
    FakeLake,
    FixedClock,
)

SHAPE = "f" * 64


def checksum(files: frozenset[str]) -> Checksum:
    """Ten rows a file, and a checksum made of the file names."""
    total = Checksum.empty(SHAPE)
    for name in files:
        mark = zlib.crc32(name.encode())
        total = total + Checksum(rows=10, xor=mark, total=mark, shape=SHAPE)
    return total


@dataclass
class FakeCompute:
    """Staging, Measuring, Judge and Differ in one; what it says can be set by a test."""

    lake: FakeLake
    staged: list[str] = field(default_factory=list)
    dies_at: str | None = None
    open_edges: set[str] = field(default_factory=set)
    bad_suites: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)
    needs_more_warm_up: bool = False
    order_matters: bool = False
    #: of either side, of the candidate alone
    duplicates: tuple[int, int] = (0, 0)
    views: dict[str, tuple[str, int | str | None]] = field(default_factory=dict)
    #: days without a row in the source
    gaps: set[str] = field(default_factory=set)
    #: duplicate keys of each chunk, and rows without a key
    chunk_duplicates: int = 0
    chunk_nulls: int = 0
    #: partitions that hold a row which a suite fails
    bad_rows: set[str] = field(default_factory=set)
    #: rows that a partition comes out with, else one that is named after run and partition
    keys: dict[str, set[str]] = field(default_factory=dict)
    judged: list[str] = field(default_factory=list)
    #: whether the engine can count what suites say of single rows
    counts_rows: bool = False
    #: rows of each chunk that the row predicate does not name
    strays: int = 0
    #: what each chunk of a merge did
    merged: ChunkCounts = field(default_factory=lambda: ChunkCounts(updated_rows=10))
    #: partitions of which rows beside the row predicate differ, or columns that are not restated
    touched: set[str] = field(default_factory=set)
    #: what the diff finds of single columns: rows that differ
    differing_columns: dict[str, int] = field(default_factory=dict)
    #: What was read file by file: tables with their partitions.
    scanned: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    #: what was asked of attribution, and the factors and rows that it finds: pattern -> rows
    swaps: list[InputSwapRequest] = field(default_factory=list)
    factors: tuple[Factor, ...] = ()
    patterns: dict[tuple[int, ...], int] = field(default_factory=dict)

    #: runs whose computation was ended
    interrupted: list[str] = field(default_factory=list)

    #: the intermediate results that the transform reads
    kept: tuple[KeptIntermediate, ...] = ()

    #: what the transform rejects in every chunk
    rejected: Rejects | None = None

    #: the analysed plan of every chunk: by default, of a relation in memory
    analysed: str | None = '[{"class": "LocalRelation", "num-children": 0, "output": []}]'
    #: the tables that the plan of every chunk reads
    reads: PlanReads | None = None

    @property
    def staging(self) -> FakeCompute:
        return self

    measuring = staging
    inspecting = staging
    attributing = staging

    @property
    def judge(self) -> Any:
        return _FakeJudge(self)

    def application(self) -> str:
        return ""

    def restore(self, chunk: RestoreChunk) -> int:
        shadow = self.lake.tables[chunk.shadow]
        content = dict(shadow.content(shadow.head))
        old = self.lake.tables[chunk.table].content(chunk.snapshot_id)
        for label in chunk.scope.partitions:
            names = old.get(label, frozenset())
            content[label] = frozenset(f"{name} rewritten" for name in names)
        return shadow.commit(content, chunk=chunk.chunk_id)

    def swap(self, request: InputSwapRequest) -> InputSwapResult:
        self.swaps.append(request)
        states = (
            ComparedState("replaced"), ComparedState("published"),
            *attribution.states_to_compute(len(self.factors)),
            ComparedState("candidate"),
        )  # fmt: skip
        samples = {
            label: DiffSample(
                kind="changed", key={"day": label, "id": 1}, old={"amount": 1}, new={"amount": 2}
            )
            for label in request.partitions
        }
        found = tuple(
            RowPattern(values, rows, {"amount": rows}, (sample,), label)
            for label, sample in samples.items()
            for values, rows in self.patterns.items()
        )
        return InputSwapResult(self.factors, states, found, (), ())

    def rejects(self, plan: Plan, chunk: Chunk) -> Rejects | None:
        return self.rejected

    def load(self, plan: Plan) -> None:
        self.staged.append("load")

    def intermediates(self, plan: Plan) -> tuple[str, ...]:
        return tuple(one.name for one in self.kept)

    def keep_intermediates(self, plan: Plan) -> tuple[KeptIntermediate, ...]:
        self.staged.append("keep")
        return self.kept

    def beside(self, plan: Plan) -> Any:
        return nullcontext()

    def interrupt(self, plan: Plan) -> None:
        self.interrupted.append(plan.run_id)

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        if self.dies_at == chunk.chunk_id:
            self.dies_at = None
            raise EnvironmentDown("the store does not answer")
        self.staged.append(chunk.chunk_id)
        shadow = self.lake.tables[plan.shadow_table]
        event_log.require_current_epoch(
            plan.run_id, epoch, int(shadow.properties.get("epoch", "0"))
        )
        content = dict(shadow.content(shadow.head))
        for label in chunk.partitions:
            files = self.keys.get(label) or {f"{plan.run_id}/{label}"}
            content[label] = frozenset(set() if label in self.empty else files)
        content |= self._left_out(plan, chunk, content)
        snapshot_id = shadow.commit(content, chunk=chunk.chunk_id)
        return self.remeasure(plan, chunk, snapshot_id, epoch)

    def _left_out(self, plan: Plan, chunk: Chunk, made: dict[str, Any]) -> dict[str, Any]:
        """The chunk's partitions without deleted rows; of the earlier shadow, if it says so."""
        catch_up, left_out = plan.resolved.catch_up, excluded_rows(plan.resolved)
        names = FakeRowReader(self.lake).names(left_out)
        source = catch_up and catch_up.erased_chunk(chunk.chunk_id)
        if source:
            made = self.lake.tables[source.shadow_table].content(source.shadow_snapshot_id)
        return {
            label: frozenset(f for f in made.get(label, ()) if key_of(f) not in names)
            for label in chunk.partitions
        }

    def remeasure(self, plan: Plan, chunk: Chunk, snapshot_id: int, epoch: int) -> ChunkRecord:
        content = self.lake.tables[plan.shadow_table].content(snapshot_id)
        total = Checksum.empty(SHAPE)
        for label in chunk.partitions:
            total = total + checksum(content.get(label, frozenset()))
        return ChunkRecord(
            run_id=plan.run_id, chunk_id=chunk.chunk_id, partitions=chunk.partitions,
            status="done", input_rows=20, output_rows=total.rows, outside_rows=1,
            checksum=total.text, seconds=0.1, snapshot_id=snapshot_id,
            finished_at=FixedClock().now(), epoch=epoch, **self._counts(plan).known,
        )  # fmt: skip

    def _counts(self, plan: Plan) -> ChunkCounts:
        target = plan.resolved.manifest.target
        if target.row_predicate:
            return ChunkCounts(carried_rows=5, stray_rows=self.strays)
        return self.merged if target.publish_mode == "merge" else ChunkCounts()

    def edges(self, plan: Plan, around: Any) -> tuple[EdgePartition, ...]:
        return tuple(
            EdgePartition(
                partition=label, side=side, added=0, removed=0,
                changed=1 if label in self.open_edges else 0, counted_twice={}, lost={},
            )
            for side, labels in around.items()
            for label in labels
        )  # fmt: skip

    def edge_checksums(self, plan: Plan, around: Any) -> dict[str, Checksum]:
        labels = tuple(label for some in around.values() for label in some)
        scope = Scope(field=plan.resolved.scope.field, partitions=labels)
        target = plan.resolved.target
        accepted = self.checksums(target.table, target.snapshot_id, scope) if labels else {}
        return accepted | {label: checksum(frozenset({f"open {label}"})) for label in labels
                           if label in self.open_edges}  # fmt: skip

    def begin_edges(self, plan: Plan, around: Any) -> Future[dict[str, Checksum]]:
        computed: Future[dict[str, Checksum]] = Future()
        computed.set_result(self.edge_checksums(plan, around))
        return computed

    def analysed_plan(self, plan: Plan, chunk: Chunk) -> str | None:
        return self.analysed

    def tables_read(self, plan: Plan, chunk: Chunk) -> PlanReads | None:
        return self.reads

    def prove_warm_up(self, plan: Plan, label: str) -> tuple[Checksum, Checksum]:
        once = checksum(frozenset({label}))
        return once, once + once if self.needs_more_warm_up else once

    def prove_determinism(self, plan: Plan, label: str) -> Repetition:
        first, second = checksum(frozenset({label})), checksum(frozenset({label, "other"}))
        if self.order_matters:
            return Repetition(first=first, second=second, columns=("amount",))
        return Repetition(first=first, second=first)

    def checksums(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Any,
        ignore: tuple[str, ...] = (),
        beside: RowPredicate | None = None,
        without: ExcludedRows | None = None,
    ) -> dict[str, Checksum]:
        content = self.lake.tables[table].content(snapshot_id)
        if beside is not None or set(ignore) - set(LINEAGE_NAMES):
            return {
                label: checksum(content[label] if label in self.touched else frozenset({label}))
                for label in scope.partitions
                if label in content
            }
        return {label: checksum(content[label]) for label in scope.partitions if label in content}

    def measure(
        self, old: Any, new: Any, scope: Any, measures: Any, ignore: tuple[str, ...] = (),
        change: Any = (), *, old_is_known: bool = False, old_measures: Any = None,
        earlier: Any = (),
    ) -> MeasuredSides:  # fmt: skip
        return MeasuredSides(
            old={} if old_is_known else self.checksums(*old, scope),
            new=self.checksums(*new, scope),
            totals=self.totals(measures),
            old_files={} if old_is_known or change else self.by_file(*old, scope, ignore),
            new_files=self.by_file(*new, scope, ignore),
        )

    def by_file(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Any,
        ignore: tuple[str, ...] = (),
        skip: frozenset[str] = frozenset(),
    ) -> dict[tuple[str, str], Checksum]:
        self.scanned.append((table, scope.partitions))
        content = self.lake.tables[table].content(snapshot_id)
        return {
            (label, path): checksum(frozenset({path}))
            for label in scope.partitions
            for path in content.get(label, frozenset()) - skip
        }

    def totals(self, measures: Any) -> tuple[MeasureTotal, ...]:
        return tuple(MeasureTotal(name=item.name, old=100, new=100) for item in measures)

    def masked(self, plan: Plan, *asked: Any) -> tuple[MaskedColumn, ...]:
        return tuple(
            MaskedColumn(column=name, values=1, misshapen=0)
            for name in plan.resolved.contract.masked_columns
        )

    def source_totals(self, *asked: Any) -> tuple[CheckResult, ...]:
        return ()

    def frame(self, table: str, snapshot_id: int | None, scope: Scope | None) -> str:
        labels = f": {', '.join(scope.partitions)}" if scope else ""
        return f"{table}@{snapshot_id}{labels}"

    def input(self, plan: Plan, name: str) -> str:
        return name

    def distinct(self, plan: Plan, name: str, column: str) -> list[Any]:
        return ["A"]

    def periods(self, plan: Plan, name: str, unit: str) -> tuple[str, ...]:
        wanted = expected_periods(pin_of(plan, name), plan.resolved.scope, "day")
        return tuple(label for label in wanted if label not in self.gaps)

    def breaking(self, frame: Any, rules: tuple[RowRule, ...]) -> tuple[int, tuple[int, ...]]:
        broken = any(label in frame for label in self.bad_rows)
        return 10, tuple(int(broken) for _ in rules)

    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...] = ()
    ) -> ChunkFacts:
        is_bad = bool(self.bad_rows & set(chunk.partitions))
        content = self.lake.tables[plan.shadow_table].content(snapshot_id)
        return ChunkFacts(
            rows={
                label: 10 * len(content[label]) for label in chunk.partitions if label in content
            },
            null_keys={"id": self.chunk_nulls} if self.chunk_nulls else {},
            duplicate_keys=self.chunk_duplicates,
            broken=tuple(int(is_bad) for _ in rules),
        )

    def preview(self, request: DiffRequest) -> DiffPreview:
        return DiffPreview(
            old=request.old_table, new=request.new_table, key=request.key, identical=True,
            shared=FileTotals(), equal_by_fingerprint=FileTotals(),
            old_to_read=FileTotals(), new_to_read=FileTotals(),
            partitions=(),
        )  # fmt: skip

    def diff(self, request: DiffRequest) -> Diff:
        old = self.checksums(request.old_table, request.old_snapshot_id, request.scope)
        new = self.checksums(request.new_table, request.new_snapshot_id, request.scope)
        rows = [
            PartitionDiff(
                partition=label, old_rows=old[label].rows if label in old else 0,
                new_rows=new[label].rows if label in new else 0, added=0, removed=0,
                changed=int(old.get(label) != new.get(label)),
                unchanged=10 - int(old.get(label) != new.get(label)),
            )
            for label in request.scope.partitions
        ]  # fmt: skip
        summary = PartitionDiff(
            partition=None, old_rows=sum(row.old_rows for row in rows),
            new_rows=sum(row.new_rows for row in rows), added=0, removed=0,
            changed=sum(row.changed for row in rows),
            unchanged=sum(row.unchanged for row in rows),
        )  # fmt: skip
        return Diff(
            old=request.old_table, new=request.new_table, key=request.key, summary=summary,
            partitions=tuple(rows), samples=(), engine="local",
            columns=tuple(
                ColumnDiff(name=name, changed=changed, old={}, new={})
                for name, changed in self.differing_columns.items()
            ),
            files=SharedFiles(shared=0, old_only=0, new_only=0),
            duplicate_keys=self.duplicates[request.old_snapshot_id is None],
        )  # fmt: skip

    def diff_and_sum(self, request: DiffRequest) -> SummedDiff:
        return SummedDiff(self.diff(request), None)

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        old = self.lake.tables[request.old_table].content(request.old_snapshot_id)
        new = self.lake.tables[request.new_table].content(request.new_snapshot_id)
        for label in request.scope.partitions:
            if old.get(label) != new.get(label):
                sides = (
                    {"day": label, "files": sorted(one[label])} if label in one else None
                    for one in (old, new)
                )
                yield DifferingRow(label, {"day": label}, *sides)

    def show(
        self, view: str, table: str, snapshot_id: int | None, *, accepted_only: bool = False
    ) -> None:
        self.views[view] = (table, "accepted" if accepted_only else snapshot_id)


def pin_of(plan: Plan, name: str) -> SourcePin:
    return next(pin for pin in plan.resolved.sources if pin.name == name)


@dataclass
class _FakeJudge:
    """Fails suites that are bad, and single rows of chunks that are."""

    compute: FakeCompute

    def judge(
        self,
        frame: Any,
        suite_file: str,
        parameters: dict[str, list[Any]],
        group: str,
        redaction: Any = None,
        rows_only: bool = False,
    ) -> tuple[CheckResult, ...]:
        self.compute.judged.append(f"{suite_file} on {frame}")
        passed = suite_file not in self.compute.bad_suites or rows_only
        passed = passed and not any(label in frame for label in self.compute.bad_rows)
        return (
            CheckResult(name=f"{suite_file} on {frame}", group=group, passed=passed, detail="…"),
        )

    def entries(
        self, suite_file: str, parameters: dict[str, list[Any]], types: Any
    ) -> tuple[SuiteEntry, ...]:
        rule = NotNull("id") if self.compute.counts_rows else None
        entry = SuiteEntry(number=0, name=f"rows of {suite_file}", rule=rule, is_of_rows=True)
        whole = SuiteEntry(number=1, name=f"all of {suite_file}", rule=None, is_of_rows=False)
        return (entry, whole)

    def judge_entries(
        self,
        frame: Any,
        suite_file: str,
        parameters: dict[str, list[Any]],
        chosen: Any,
        group: str,
        redaction: Any = None,
    ) -> dict[int, CheckResult]:
        (result,) = self.judge(frame, suite_file, parameters, group, rows_only=True)
        return dict.fromkeys(chosen, result)

    def judge_all(
        self, frame: Any, suites: Any, group: Any, redaction: Any = None, rows: int | None = None
    ) -> tuple[CheckResult, ...]:
        return tuple(
            check for file, given in suites for check in self.judge(frame, file, given, group)
        )


class SilentJournal:
    """A journal that keeps its lines in a list."""

    def __init__(self, lines: list[tuple[str, dict[str, Any]]] | None = None, **bound: Any) -> None:
        self.lines = [] if lines is None else lines
        self.bound = bound

    def log(self, event: str, **fields: Any) -> None:
        line = self.bound | fields
        assert "processing_mode" in line or "run_id" not in line, "a line of a run names its mode"
        self.lines.append((event, line))

    @contextmanager
    def span(self, name: str, **fields: Any) -> Any:
        yield
        self.log(name, **fields)

    def bind(self, **fields: Any) -> SilentJournal:
        return SilentJournal(self.lines, **(self.bound | fields))


class SilentProgress:
    """Progress that nobody watches."""

    def start(self, label: str, total: int, unit: str) -> None:
        """Ignore it."""

    def count(self, label: str, total: int, unit: str) -> None:
        """Ignore it."""

    @contextmanager
    def within(self, label: str, total: int, unit: str) -> Iterator[None]:
        """Count and finish, as a step without others in it does."""
        self.count(label, total, unit)
        yield
        self.finish()

    def advance(self, amount: int = 1, rows: int = 0, *, was_done: bool = False) -> None:
        """Ignore it."""

    def finish(self) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Ignore it."""


__all__ = ["DAY", "FakeCompute", "SilentJournal", "SilentProgress"]
