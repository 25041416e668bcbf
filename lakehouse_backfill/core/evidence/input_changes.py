"""Changes of an input since a run read it: which of its rows, by which commits.

Read from metadata alone: files of both states by partition, then the commits in between. A
compaction that kept the rows is no change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Generic, Literal, TypeVar

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.table import LiveFile
from lakehouse_backfill.errors import (
    HistoryGone,
    NotFound,
    TargetChanged,
    Unsupported,
)

CauseKind = Literal[
    "late rows", "upstream restatement", "deletion", "changed rows", "reference data",
    "newer code", "missing", "unknown",
]  # fmt: skip
#: Semantics of reference data that name a version of the past: newer versions change nothing.
_FIXED_SEMANTICS = ("as_recorded", "as_used_by_original")


Item = TypeVar("Item")


@dataclass(frozen=True)
class ChangedInput:
    """A change of an input since a run read it; `span` None: in rows that are not known."""

    kind: CauseKind
    text: str
    label: str = ""
    span: RowRange | None = None


def rows_overlap(rows: RowRange, window: tuple[datetime, datetime]) -> bool:
    """Return whether a range of rows has instants in the half-open window; null rows have none."""
    if rows.is_null:
        return False
    if rows.equals is not None:
        is_time = isinstance(rows.equals, date)
        return not is_time or window[0] <= partitions.as_instant(rows.equals) < window[1]
    is_before = rows.upper is not None and partitions.as_instant(rows.upper) <= window[0]
    is_after = rows.lower is not None and partitions.as_instant(rows.lower) >= window[1]
    return not is_before and not is_after


class RowSpans(Generic[Item]):
    """Finds the row ranges that have instants in a window, without looking at each of them."""

    def __init__(self, ranges: Iterable[tuple[RowRange | None, Item]]) -> None:
        """Take ranges with what they stand for; None: rows that are not known."""
        self._bounded: list[tuple[datetime, RowRange, Item]] = []
        self._others: list[tuple[RowRange | None, Item]] = []
        longest = timedelta()
        for rows, item in ranges:
            span = time_span(rows) if rows else None
            if rows is None or span is None:
                self._others.append((rows, item))
            else:
                self._bounded.append((span[0], rows, item))
                longest = max(longest, span[1] - span[0])
        self._bounded.sort(key=lambda one: one[0])
        self._starts = [one[0] for one in self._bounded]
        self._longest = longest

    def within(self, window: tuple[datetime, datetime]) -> Iterator[Item]:
        """Yield what has rows in the half-open window, or may have: by its start, others last."""
        try:
            first = bisect_left(self._starts, window[0] - self._longest)
        except OverflowError:
            first = 0
        for _, rows, item in self._bounded[first : bisect_left(self._starts, window[1])]:
            if rows_overlap(rows, window):
                yield item
        for unbounded, item in self._others:
            if unbounded is None or rows_overlap(unbounded, window):
                yield item


def time_span(rows: RowRange) -> tuple[datetime, datetime] | None:
    """Return the half-open instants of a range; None where it is open, or no time."""
    if not isinstance(rows.lower, date) or rows.upper is None:
        return None
    return partitions.as_instant(rows.lower), partitions.as_instant(rows.upper)


def change_kind(drift: Drift) -> CauseKind:
    """Return what a commit did to an input."""
    if drift.writer.startswith("run ") or drift.writer == "a rollback of this toolkit":
        return "upstream restatement"
    if drift.only_deletes:
        return "deletion"
    return "late rows" if drift.operation == "append" else "changed rows"


def changed_labels(then: Iterable[LiveFile], now: Iterable[LiveFile]) -> frozenset[str]:
    """Return the partitions whose files differ; a file of a coarser spec counts for all it spans.

    Rows may be the same in other files: a compaction differs too.
    """
    before, after = _contents_by_label(then), _contents_by_label(now)
    return frozenset(
        label for label in before.keys() | after.keys() if before.get(label) != after.get(label)
    )


def _contents_by_label(files: Iterable[LiveFile]) -> dict[str, list[object]]:
    found: defaultdict[str, list[object]] = defaultdict(list)
    for file in sorted(files, key=lambda one: one.path):
        for label in file.spans or (str(file.partition),):
            found[label].append(file.content)
    return dict(found)


def labels_with_rows(files: Iterable[LiveFile]) -> frozenset[str]:
    """Return the partitions that hold rows, as far as metadata tells."""
    return frozenset(
        label for file in files if file.rows for label in file.spans or (str(file.partition),)
    )


def _is_fixed_reference(plan: Plan, pin: SourcePin) -> bool:
    """Return whether a reference names a version of the past, so that a newer one is not meant."""
    declared = plan.resolved.manifest.reference_data.get(pin.name)
    is_past = declared is not None and declared.semantics in _FIXED_SEMANTICS
    return is_past or "@" in pin.requested


def _whole_change(pin: SourcePin, drift: Drift) -> ChangedInput:
    return ChangedInput("reference data" if pin.range is None else change_kind(drift), str(drift))


@dataclass
class InputReader:
    """Reads changes of inputs; what was read of a table is kept, as many runs pin the same.

    `notes` are sentences about what cannot be told.
    """

    context: Context
    notes: dict[str, None] = field(default_factory=dict)
    _changes: dict[tuple[str, int, str], tuple[ChangedInput, ...]] = field(default_factory=dict)
    _files: dict[tuple[str, int | None, ScopeField], list[LiveFile]] = field(default_factory=dict)
    _spans: dict[tuple[str, int, str], RowSpans[str]] = field(default_factory=dict)

    def changes_since_pin(self, plan: Plan, pin: SourcePin) -> tuple[ChangedInput, ...]:
        """Return what changed of an input since its pin, whatever partition reads it."""
        if pin.range is None and _is_fixed_reference(plan, pin):
            return ()
        column = pin.range.column if pin.range else ""
        key = pin.table, pin.snapshot_id, column
        if key not in self._changes:
            self._changes[key] = self._read_changes(pin, column)
        return self._changes[key]

    def _read_changes(self, pin: SourcePin, column: str) -> tuple[ChangedInput, ...]:
        try:
            info = self.context.tables.describe(pin.table)
            if info is None:
                text = f"{pin.table} does not exist any more"
                return (ChangedInput("unknown", text),)
            if info.snapshot_id == pin.snapshot_id:
                return ()
            source = self._source_field(pin, column) if column else None
            if source is not None:
                with suppress(Unsupported):
                    return tuple(self._partition_changes(pin, source, info.snapshot_id))
                self._note_unknown_rows(pin, column)
            drifts = self.context.publisher.drifts(pin.table, None, pin.snapshot_id)
            return tuple(_whole_change(pin, drift) for drift in drifts)
        except HistoryGone as error:
            return (ChangedInput("unknown", error.problem),)
        except TargetChanged as error:
            return (ChangedInput("changed rows", error.problem),)
        except NotFound as error:
            return (ChangedInput("unknown", f"what it read is gone: {error.problem}"),)

    def _source_field(self, pin: SourcePin, column: str) -> ScopeField | None:
        """Return the field by which an input is partitioned; None where it is by another column."""
        info = self.context.tables.describe(pin.table)
        if info is None:
            return None
        try:
            source = self.context.tables.scope_field(info, column)
            # Files of an earlier spec may lack the field.
            self.live_files(pin.table, info.snapshot_id, source)
        except Unsupported:
            self._note_unknown_rows(pin, column)
            return None
        return source

    def _note_unknown_rows(self, pin: SourcePin, column: str) -> None:
        self.add_note(
            f"{pin.table} is not partitioned by {column}: which rows of it changed is not known, "
            "so each partition that reads it counts as changed"
        )

    def _partition_changes(
        self, pin: SourcePin, source: ScopeField, head: int | None
    ) -> Iterator[ChangedInput]:
        """Yield a change for each partition of the input and kind of commit that changed it."""
        then = self.live_files(pin.table, pin.snapshot_id, source)
        differing = changed_labels(then, self.live_files(pin.table, head, source))
        order = partitions.label_sort_key(source)
        rest = tuple(sorted(differing, key=order))
        while rest:
            # A second look at those that no commit changed: were they only compacted?
            scope = Scope(field=source, partitions=rest)
            try:
                drifts = self.context.publisher.drifts(pin.table, scope, pin.snapshot_id)
            except TargetChanged as error:
                kind: CauseKind = "unknown" if isinstance(error, HistoryGone) else "changed rows"
                for label in rest:
                    span = partitions.partition_row_range(source, label)
                    yield ChangedInput(kind, error.problem, label, span)
                return
            for drift in drifts:
                for label in drift.partitions:
                    span = partitions.partition_row_range(source, label)
                    yield ChangedInput(change_kind(drift), str(drift), label, span)
            touched = {label for drift in drifts for label in drift.partitions}
            if not touched:
                return
            rest = tuple(label for label in rest if label not in touched)

    def live_files(self, table: str, snapshot_id: int | None, by: ScopeField) -> list[LiveFile]:
        key = table, snapshot_id, by
        if key not in self._files:
            self._files[key] = self.context.tables.files(table, snapshot_id, by)
        return self._files[key]

    def partitions_with_rows(self, pin: SourcePin) -> tuple[ScopeField, frozenset[str]] | None:
        source = self._source_field(pin, pin.range.column) if pin.range else None
        info = self.context.tables.describe(pin.table)
        if source is None or info is None:
            return None
        return source, labels_with_rows(self.live_files(pin.table, info.snapshot_id, source))

    def partitions_at_pin(self, pin: SourcePin) -> RowSpans[str]:
        """Return the partitions with rows of an input as it was read; none where not known."""
        key = pin.table, pin.snapshot_id, pin.range.column if pin.range else ""
        if key not in self._spans:
            self._spans[key] = RowSpans(self._partitions_at_pin(pin))
        return self._spans[key]

    def _partitions_at_pin(self, pin: SourcePin) -> Iterator[tuple[RowRange, str]]:
        source = self._source_field(pin, pin.range.column) if pin.range else None
        if source is None:
            return
        try:
            files = self.live_files(pin.table, pin.snapshot_id, source)
        except (NotFound, Unsupported):
            self.add_note(f"snapshot {pin.snapshot_id} of {pin.table} cannot be listed any more")
            return
        for label in labels_with_rows(files):
            yield partitions.partition_row_range(source, label), label

    def add_note(self, text: str) -> None:
        """Add a sentence once."""
        self.notes[text] = None
