"""A diff of rows that another engine reads and groups by key, compared as in this process.

For partitions that are too large for one worker, and for files that PyIceberg cannot read. The plan
is that of the local engine: shared files are not read, and partitions keep their numbers.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from operator import itemgetter, methodcaller
from typing import Any

import pyarrow as pa
from pyiceberg.types import UUIDType

from lakehouse_backfill.adapters.local.diff.columns import PARTITION_SLOT, DiffColumn, SideName
from lakehouse_backfill.adapters.local.diff.compare import BatchComparison
from lakehouse_backfill.adapters.local.diff.differ import WORKER_ROWS, LocalDiffer, build_diff
from lakehouse_backfill.adapters.local.diff.layout import FilePiece, arrow_type, number_partitions
from lakehouse_backfill.adapters.local.diff.plan import DiffPlan, FileSplit
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.distributed import parallel
from lakehouse_backfill.domain.comparison.diff import Diff, DiffPreview
from lakehouse_backfill.domain.partitions import Scope, ScopeField, scope_row_ranges
from lakehouse_backfill.domain.rollout import DifferingRow, redact_row
from lakehouse_backfill.errors import BackfillError, Unsupported
from lakehouse_backfill.ports.comparison import DiffRequest, RowSource, SummedDiff, Workers

#: The numbers of rows whose own values give the partition, and of an error's answer.
_BY_ROW, _FAILED = -1, -2
_SCOPE = "scope"


class DistributedDiffer:
    """The Differ for large changes; `how` of its answer says which way was taken, and why."""

    def __init__(self, tasks: parallel.ParallelDiffer, grouped: GroupedDiffer) -> None:
        self._tasks = tasks
        self._grouped = grouped

    def diff(self, request: DiffRequest) -> Diff:
        """Compare whole partitions in tasks, which moves no row; group by key what they refuse."""
        return self.diff_and_sum(request).diff

    def diff_and_sum(self, request: DiffRequest) -> SummedDiff:
        """Compare as `diff` does; rows that are grouped by key are not added up."""
        try:
            return self._tasks.diff_and_sum(request)
        except Unsupported as error:
            how = f"rows grouped by key: {error.problem}"
        return SummedDiff(self._grouped.diff(request).model_copy(update={"how": how}), None)

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every differing row in full; memory holds those of one partition."""
        return self._grouped.differing(request)

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Refuse: the local engine previews a diff without workers."""
        raise Unsupported(
            f"a preview of {request.old_table} against {request.new_table} needs no Spark",
            fix="preview with the local engine",
        )


class GroupedDiffer:
    """Compares rows of both sides that another engine groups by key.

    A group has about `group_rows` rows.
    """

    def __init__(self, local: LocalDiffer, workers: Workers, group_rows: int = WORKER_ROWS) -> None:
        self._local = local
        self._workers = workers
        self._group_rows = group_rows

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key as LocalDiffer does. Raises NotFound, Unsupported, ConfigError."""
        plan = self._plan(request)
        tally = plan.new_tally()
        unread = self._local.count_shared_rows(plan, tally)
        if unread:
            shared = _row_source(plan, "new", unread, plan.condition_columns)
            parallel.merge_tallies(
                self._workers.scan(shared, count_shared, _worker_plan(plan)), tally
            )
        if plan.split.to_read:
            for _, answers in self._cogroup(plan, compare_group):
                parallel.merge_tallies(answers, tally)
        return build_diff(plan, tally, "spark").diff

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every differing row in full, by partition and key."""
        plan = self._plan(request.without_options())
        if not plan.split.to_read:
            return
        for number, answers in self._cogroup(plan, list_group):
            if number == _FAILED:
                parallel.raise_answered_error(answers[0])
            rows = sorted(map(pickle.loads, answers), key=itemgetter(0))
            yield from (redact_row(row, request.redaction) for _, row in rows)

    def _cogroup(self, plan: DiffPlan, work: Any) -> Iterator[tuple[int, list[bytes]]]:
        # Without a key rows match whole.
        use = "key" if plan.request.key else "compared"
        by = [each.slot for each in plan.columns if each.use == use and each.tolerance is None]
        rows = sum(piece.rows for piece in plan.split.to_read)
        sides = (
            _row_source(plan, "old", plan.split.old, plan.columns),
            _row_source(plan, "new", plan.split.new, plan.columns),
        )
        groups = max(1, -(-rows // self._group_rows))
        return self._workers.cogroup(sides, by, groups, work, _worker_plan(plan))

    def _plan(self, request: DiffRequest) -> DiffPlan:
        """Plan as the local engine does; a file that lies in several partitions is not shared.

        Spark reads a file by its path, in all of its partitions at once. It adds up no side.
        """
        request = replace(request, read_sides=None)
        plan = self._local.plan_diff(request, any_deletes=True)
        scattered = _scattered_files(plan.split)
        if not scattered:
            return plan
        if plan.layout.field is None:
            raise Unsupported(
                f"{sorted(scattered)[0]} lies in several partitions that no column tells apart",
                fix="compare with --engine local",
            )
        plan = self._local.plan_diff(replace(request, known_equal=frozenset()), any_deletes=True)
        return replace(
            plan,
            split=_unshared(plan.split, scattered),
            layout=replace(plan.layout, is_partition_aligned=False),
        )


def _row_source(
    plan: DiffPlan, name: SideName, pieces: list[FilePiece], columns: tuple[DiffColumn, ...]
) -> RowSource:
    """Return what to read of the files: the columns by slot, and the numbers of partitions."""
    side, field = (plan.old if name == "old" else plan.new), _row_field(plan)
    numbers, rows = plan.partition_numbers, plan.row_ranges
    if plan.layout.is_partition_aligned and plan.layout.field is not None:
        # So that no other partition's files are opened.
        labels = {piece.label for piece in pieces}
        known = tuple(label for label in plan.labels if label is not None and label in labels)
        rows = scope_row_ranges(Scope(field=plan.layout.field, partitions=known))
    read = {column.slot: column.name for column in columns if column.field(name) is not None}
    return RowSource(
        table=side.name,
        snapshot_id=side.snapshot_id,
        files={
            piece.task.file.file_path: _BY_ROW if field else numbers[piece.label]
            for piece in pieces
        },
        columns={_SCOPE: field.column, **read} if field else read,
        rows=rows,
        change=plan.request.change if name == "old" else (),
    )


def _row_field(plan: DiffPlan) -> ScopeField | None:
    """Return the field whose values give each row's partition; None: the row's file does."""
    if plan.layout.is_partition_aligned:
        return None
    if plan.layout.field is not None and plan.layout.field.path:
        raise Unsupported(
            f"files of older partition specs do not tell {plan.layout.field.column} apart",
            fix="rewrite them to the current spec first: CALL system.rewrite_data_files",
        )
    return plan.layout.field


def _scattered_files(split: FileSplit) -> frozenset[str]:
    """Return the paths of files that are listed in several partitions, or shared in one only."""
    places: dict[str, set[tuple[bool, str | None]]] = {}
    for pieces, is_shared in ((split.shared, True), (split.to_read, False)):
        for piece in pieces:
            places.setdefault(piece.task.file.file_path, set()).add((is_shared, piece.label))
    return frozenset(path for path, found in places.items() if len(found) > 1)


def _unshared(split: FileSplit, paths: frozenset[str]) -> FileSplit:
    """Return the split with these files read on both sides."""
    moved = [piece for piece in split.shared if piece.task.file.file_path in paths]
    kept = [piece for piece in split.shared if piece.task.file.file_path not in paths]
    return replace(split, shared=kept, old=[*split.old, *moved], new=[*split.new, *moved])


@dataclass(frozen=True)
class _WorkerPlan:
    """What the workers of a diff need of its plan."""

    tally: Tally
    condition: str | None
    by_row: ScopeField | None

    def read(self, rows: pa.Table, name: SideName, columns: tuple[DiffColumn, ...]) -> pa.Table:
        """Return rows as the local engine reads them, with partition numbers."""
        numbers = rows["number"]
        if self.by_row is not None and _SCOPE in rows.column_names:
            labels = {label: number for number, label in enumerate(self.tally.labels)}
            numbers = number_partitions(rows[_SCOPE], self.by_row, labels)
        arrays = [_column_values(rows, column, name) for column in columns]
        names = [column.slot for column in columns]
        return pa.table([*arrays, numbers], names=[*names, PARTITION_SLOT])

    def both(self, old: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return both sides as the local engine reads them."""
        columns = self.tally.columns
        return self.read(old, "old", columns), self.read(new, "new", columns)


def _worker_plan(plan: DiffPlan) -> bytes:
    return pickle.dumps(_WorkerPlan(plan.new_tally(), plan.condition_sql, _row_field(plan)))


def _column_values(rows: pa.Table, column: DiffColumn, name: SideName) -> Any:
    """Return a column in the type that PyIceberg reads; UUIDs are texts, as in Spark."""
    own = column.field(name)
    field = own or column.known_field
    kind = pa.string() if isinstance(field.field_type, UUIDType) else arrow_type(column, own)
    if own is None or column.slot not in rows.column_names:
        return pa.nulls(rows.num_rows, kind)
    values = rows[column.slot]
    return values.cast(kind) if field.field_type.is_primitive else values


def count_shared(common: bytes, rows: pa.Table) -> Iterable[tuple[int, bytes]]:
    """Count shared rows that meet the condition; runs in a worker."""
    plan: _WorkerPlan = pickle.loads(common)  # noqa: S301 (made by `_worker_plan`)
    columns = tuple(each for each in plan.tally.columns if each.slot in rows.column_names)
    shared = plan.read(rows, "new", columns)
    count = methodcaller("count_shared_rows", shared)
    yield 0, parallel.sums_of(plan.tally, plan.condition, count)


def compare_group(common: bytes, old: pa.Table, new: pa.Table) -> Iterable[tuple[int, bytes]]:
    """Compare the rows of one group; runs in a worker."""
    plan: _WorkerPlan = pickle.loads(common)  # noqa: S301 (made by `_worker_plan`)
    compare = methodcaller("compare_batch", *plan.both(old, new))
    yield 0, parallel.sums_of(plan.tally, plan.condition, compare)


def list_group(common: bytes, old: pa.Table, new: pa.Table) -> Iterable[tuple[int, bytes]]:
    """Return the differing rows of one group by partition number; runs in a worker."""
    plan: _WorkerPlan = pickle.loads(common)  # noqa: S301 (made by `_worker_plan`)
    with closing(BatchComparison(parallel.worker_engine(), plan.tally, None)) as comparison:
        try:
            for order, row in comparison.iterate_differing(*plan.both(old, new)):
                yield order[0], pickle.dumps((order, row))
        except BackfillError as error:
            yield _FAILED, parallel.error_answer(error)
