"""Changes of an input since a run read it: which of its rows, by which commits.

Read from metadata alone: files of both states by partition, then the commits in between. A
compaction that kept the rows is no change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Literal

from lakehouse_backfill.core.evidence.inputs.rows import (
    ExpectedPartitions,
    RowSpans,
    expected_by_files,
    expected_by_spans,
    labels_with_rows,
    span_instants,
)
from lakehouse_backfill.core.planning.inputs.read_windows import TIME_TYPES
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.tables.files import ColumnSpan, LiveFile
from lakehouse_backfill.domain.tables.table import TableInfo, TableRef
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
_LAST_INSTANT = datetime.max.replace(tzinfo=timezone.utc)
#: Table as requested and by name, snapshot, and column of the range.
_Key = tuple[str, str, int, str]


@dataclass(frozen=True)
class ChangedInput:
    """A change of an input since a run read it; `span` None: in rows that are not known."""

    kind: CauseKind
    text: str
    label: str = ""
    span: RowRange | None = None


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


def _is_fixed_reference(plan: Plan, pin: SourcePin) -> bool:
    """Return whether a reference names a version of the past, so that a newer one is not meant."""
    declared = plan.resolved.manifest.reference_data.get(pin.name)
    return declared is not None and declared.semantics in _FIXED_SEMANTICS


def _whole_change(pin: SourcePin, drift: Drift) -> ChangedInput:
    return ChangedInput("reference data" if pin.range is None else change_kind(drift), str(drift))


def _appended(kind: CauseKind, column: str, span: ColumnSpan, text: str) -> ChangedInput:
    if span.first is None or span.last is None:
        return ChangedInput(kind, text)
    first, last = span_instants(span)
    stop = last + timedelta(microseconds=1) if last < _LAST_INSTANT else None
    return ChangedInput(kind, text, span=RowRange(column, first, stop))


def _accepted_since_pin(context: Context, pin: SourcePin) -> tuple[ChangedInput, ...]:
    """Return that the product of a reference has another accepted version than the pinned."""
    rows = context.versions.of_table(pin.table)
    product = rows[0].product if rows else ""
    accepted = context.versions.pointer(product).accepted if product else None
    if accepted is None:
        return (ChangedInput("unknown", f"{pin.table} has no accepted version any more"),)
    if (accepted.table, accepted.snapshot_id) == (pin.table, pin.snapshot_id):
        return ()
    text = f"version {accepted.version} of {product} is accepted now"
    return (ChangedInput("reference data", text),)


def published_candidate(context: Context, pin: SourcePin) -> SourcePin | tuple[ChangedInput, ...]:
    """Return what to compare with now: of a followed candidate, its table as it was published.

    Of a pinned one, what its later versions restated. Any other pin is returned as it is.
    """
    if pin.candidate is None:
        return pin
    product, run_id = pin.candidate.product, pin.candidate.run_id
    rows = pointer.accepted_rows(context.versions.history(product))
    own = (n for n, row in enumerate(rows) if (row.run_id, row.action) == (run_id, "publish"))
    place = next(own, None)
    if place is None:
        return (ChangedInput("unknown", f"{run_id} of {product} is not published"),)
    published = rows[place]
    if published.table == pin.product_table:
        at = {"table": published.table, "snapshot_id": published.snapshot_id, "candidate": None}
        return pin.model_copy(update=at)
    found = []
    for row in rows[:place]:
        text = f"version {row.version} of {product} ({row.action})"
        if row.scope is None:
            found.append(ChangedInput("upstream restatement", text))
            continue
        for label in row.scope.partitions:
            span = partitions.partition_row_range(row.scope.field, label)
            found.append(ChangedInput("upstream restatement", text, label, span))
    return tuple(found)


def unseen_windows(context: Context, pin: SourcePin) -> Iterator[tuple[SourcePin, int]]:
    """Yield between which snapshots others wrote to the table of a followed candidate.

    From the plan of its run to its publication: who reads the candidate does not see that.
    """
    if pin.candidate is None:
        return
    table, run_id = pin.product_table, pin.candidate.run_id
    since: int | None = pin.candidate.snapshot_id
    for row in reversed(pointer.accepted_rows(context.versions.history(pin.candidate.product))):
        if (row.run_id, row.action, row.table) != (run_id, "publish", table):
            continue
        until = row.before_snapshot_id
        if since is not None and until is not None and since != until:
            at = {"table": table, "snapshot_id": since, "candidate": None}
            yield pin.model_copy(update=at), until
        since = row.snapshot_id


@dataclass
class InputReader:
    """Reads changes of inputs; what was read of a table is kept, as many runs pin the same.

    `notes` are sentences about what cannot be told.
    """

    context: Context
    notes: dict[str, None] = field(default_factory=dict)
    _changes: dict[_Key, tuple[ChangedInput, ...]] = field(default_factory=dict)
    _files: dict[tuple[str, int | None, ScopeField], list[LiveFile]] = field(default_factory=dict)
    _spans: dict[tuple[str, int, str], RowSpans[str]] = field(default_factory=dict)

    def changes_since_pin(self, plan: Plan, pin: SourcePin) -> tuple[ChangedInput, ...]:
        """Return what changed of an input since its pin, whatever partition reads it."""
        declared = plan.resolved.manifest.reference_data.get(pin.name)
        if declared is not None and declared.semantics == "current_accepted":
            return _accepted_since_pin(self.context, pin)
        if pin.range is None and _is_fixed_reference(plan, pin):
            return ()
        column = pin.range.column if pin.range else ""
        key = pin.requested, pin.table, pin.snapshot_id, column
        if key not in self._changes:
            published = published_candidate(self.context, pin)
            found = [published] if not isinstance(published, SourcePin) else [
                self._read_changes(*window, column)
                for window in (*unseen_windows(self.context, pin), (published, None))
            ]  # fmt: skip
            self._changes[key] = tuple(change for changes in found for change in changes)
        return self._changes[key]

    def _read_changes(
        self, pin: SourcePin, until: int | None, column: str
    ) -> tuple[ChangedInput, ...]:
        """Return what changed until a snapshot, by default the one that is read by now."""
        try:
            info = self.context.tables.describe(pin.table)
            if info is None:
                text = f"{pin.table} does not exist any more"
                return (ChangedInput("unknown", text),)
            head = self._head(pin, info) if until is None else until
            return () if head == pin.snapshot_id else self.changes_until(pin, column, head)
        except HistoryGone as error:
            return (ChangedInput("unknown", error.problem),)
        except TargetChanged as error:
            return (ChangedInput("changed rows", error.problem),)
        except NotFound as error:
            return (ChangedInput("unknown", f"what it read is gone: {error.problem}"),)

    def changes_until(
        self, pin: SourcePin, column: str, head: int | None
    ) -> tuple[ChangedInput, ...]:
        """Return what changed of an input between its pin and a later snapshot.

        Raises TargetChanged (its history is missing too), NotFound.
        """
        source = self.source_field(pin, column) if column else None
        if source is not None:
            with suppress(Unsupported):
                return tuple(self._partition_changes(pin, source, head))
        drifts = self.context.publisher.drifts(pin.table, None, pin.snapshot_id, head)
        appended = self._appended_rows(pin, head, drifts) if column else None
        if appended is not None:
            return appended
        if column and drifts:
            info = self.context.tables.describe(pin.table)
            is_there = info is not None and info.column(column) is not None
            why = f"is not partitioned by {column}" if is_there else f"has no column {column} now"
            self.add_note(
                f"{pin.table} {why}: which rows of it changed is not known, so each partition that "
                "reads it counts as changed"
            )
        return tuple(_whole_change(pin, drift) for drift in drifts)

    def _head(self, pin: SourcePin, info: TableInfo) -> int | None:
        """Return the snapshot that the manifest's name of an input leads to by now.

        Raises NotFound when the tag or branch is gone.
        """
        ref = TableRef.parse(pin.requested)
        if ref.at is None:
            return info.snapshot_id
        head = self.context.tables.resolve(ref).snapshot_id
        if head != info.snapshot_id:
            self.add_note(
                f"{pin.name} is read at {ref.at}, as the run manifest says: what else was "
                f"committed to {pin.table} makes nothing stale or missing"
            )
        return head

    def _appended_rows(
        self, pin: SourcePin, head: int | None, drifts: tuple[Drift, ...]
    ) -> tuple[ChangedInput, ...] | None:
        """Return the rows that only appends added, by the statistics of their files.

        None where another commit changed rows, or the files that were appended are not known.
        """
        kinds: set[CauseKind] = {change_kind(drift) for drift in drifts}
        is_append = all(drift.operation == "append" for drift in drifts)
        if pin.range is None or not is_append or len(kinds) > 1:
            return None
        column, text = pin.range.column, str(drifts[-1]) if drifts else ""
        with suppress(Unsupported):
            spans = self.context.tables.column_spans(pin.table, head, column, pin.snapshot_id)
            kind: CauseKind = next(iter(kinds), "late rows")
            return tuple(_appended(kind, column, span, text) for span in spans)
        return None

    def source_field(self, pin: SourcePin, column: str) -> ScopeField | None:
        """Return the field by which an input is partitioned; None where it is by another column."""
        info = self.context.tables.describe(pin.table)
        if info is None:
            return None
        try:
            source = self.context.tables.scope_field(info, column)
            # Files of an earlier spec may lack the field.
            self.live_files(pin.table, info.snapshot_id, source)
        except Unsupported:
            return None
        return None if source.has_no_order else source

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
                drifts = self.context.publisher.drifts(pin.table, scope, pin.snapshot_id, head)
            except TargetChanged as error:
                yield from self._changes_without_history(pin, scope, head, error)
                return
            # Of a month that only appends changed, the appended files tell the days.
            in_files = self._appended_labels(pin, source, head, drifts)
            yield from (change for changes in in_files.values() for change in changes)
            yield from (
                ChangedInput(
                    change_kind(drift), str(drift), x, partitions.partition_row_range(source, x)
                )
                for drift in drifts
                for x in drift.partitions
                if x not in in_files
            )
            touched = {label for drift in drifts for label in drift.partitions}
            if not touched:
                return
            rest = tuple(label for label in rest if label not in touched)

    def _changes_without_history(
        self, pin: SourcePin, scope: Scope, head: int | None, error: TargetChanged
    ) -> Iterator[ChangedInput]:
        """Yield the changes of partitions where no commits lead from the pin to the head.

        Where the branch was set back, commits until and since the common ancestor tell them.
        """
        kinds: dict[str, CauseKind] = dict.fromkeys(scope.partitions, "changed rows")
        if isinstance(error, HistoryGone):
            kinds = dict.fromkeys(scope.partitions, "unknown")
        elif head is not None:
            with suppress(TargetChanged, NotFound):
                kinds = dict(self._kinds_after_set_back(pin, scope, head))
        for label, kind in kinds.items():
            span = partitions.partition_row_range(scope.field, label)
            yield ChangedInput(kind, error.problem, label, span)

    def _kinds_after_set_back(
        self, pin: SourcePin, scope: Scope, head: int
    ) -> Iterator[tuple[str, CauseKind]]:
        """Yield the partitions that commits changed: those taken back, then those made since.

        Raises NotFound when the two states have no common ancestor any more.
        """
        ancestor = _common_ancestor(self.context, pin.table, pin.snapshot_id, head)
        for until in (head, pin.snapshot_id):
            for drift in self.context.publisher.drifts(pin.table, scope, ancestor, until):
                kind = change_kind(drift) if until == head else "changed rows"
                yield from ((label, kind) for label in drift.partitions)

    def _appended_labels(
        self, pin: SourcePin, source: ScopeField, head: int | None, drifts: tuple[Drift, ...]
    ) -> dict[str, list[ChangedInput]]:
        """Return the rows that appends added, for months and years that nothing else changed."""
        if source.transform not in ("month", "year"):
            return {}
        others = {x for one in drifts if change_kind(one) != "late rows" for x in one.partitions}
        appends = tuple(one for one in drifts if change_kind(one) == "late rows")
        labels = {label for one in appends for label in one.partitions} - others
        found = dict[str, list[ChangedInput]]()
        for change in self._appended_rows(pin, head, appends) or () if labels else ():
            if change.span is None or change.span.lower is None:
                return {}
            label = partitions.partition_label(source, change.span.lower)
            if label in labels:
                found.setdefault(label, []).append(replace(change, label=label))
        return found if found.keys() == labels else {}

    def live_files(self, table: str, snapshot_id: int | None, by: ScopeField) -> list[LiveFile]:
        key = table, snapshot_id, by
        if key not in self._files:
            self._files[key] = self.context.tables.files(table, snapshot_id, by)
        return self._files[key]

    def expected_partitions(self, pin: SourcePin, target: ScopeField) -> ExpectedPartitions:
        """Return the partitions of a product whose own span has rows of an input by now."""
        info = self.context.tables.describe(pin.table)
        is_timed = target.type in TIME_TYPES and not target.has_no_order
        if pin.range is None or info is None or not is_timed:
            return ExpectedPartitions()
        try:
            head = self._head(pin, info)
        except NotFound as error:
            return ExpectedPartitions(unknown=error.problem)
        column = pin.range.column
        source = self.source_field(pin, column)
        with suppress(Unsupported):
            if source is not None:
                files = self.live_files(pin.table, head, source)
                found = expected_by_files(target, source, files)
                if found is not None:
                    return found
            spans = self.context.tables.column_spans(pin.table, head, column)
            return expected_by_spans(target, spans)
        return ExpectedPartitions(unknown=f"{pin.table} has no such column of time any more")

    def partitions_at_pin(self, pin: SourcePin) -> RowSpans[str]:
        """Return the partitions with rows of an input as it was read; none where not known."""
        key = pin.table, pin.snapshot_id, pin.range.column if pin.range else ""
        if key not in self._spans:
            self._spans[key] = RowSpans(self._partitions_at_pin(pin))
        return self._spans[key]

    def _partitions_at_pin(self, pin: SourcePin) -> Iterator[tuple[RowRange, str]]:
        source = self.source_field(pin, pin.range.column) if pin.range else None
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


def _common_ancestor(context: Context, table: str, one: int, other: int) -> int:
    """Return the newest snapshot that led to both; raises NotFound when there is none."""
    older = set(_ancestors(context, table, one))
    for snapshot_id in _ancestors(context, table, other):
        if snapshot_id in older:
            return snapshot_id
    raise NotFound(f"snapshots {one} and {other} of {table} have no common ancestor")


def _ancestors(context: Context, table: str, snapshot_id: int) -> Iterator[int]:
    """Yield a snapshot and those that led to it, the newest first, as far as they are kept."""
    current: int | None = snapshot_id
    with suppress(NotFound):
        while current is not None:
            ref = TableRef(table=table, at=str(current))
            found = context.tables.resolve(ref)
            yield current
            current = found.parent_id
