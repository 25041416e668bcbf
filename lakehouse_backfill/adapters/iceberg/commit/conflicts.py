"""Conflicts on a target since a run read it: changed rows, compactions, frozen tables.

Only changes of the run's partitions and of the partitioning count, unless the table is frozen
(`safety.freeze`).

The operation `replace` is only a writer's promise that the rows are the same. It is checked by
what manifests record about the files on both sides, without reading rows: row counts, nulls, and
the smallest and largest values of each column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import ErrorWording
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import ScopeFiles
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ScopedReader
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.partitions import describe_labels, label_sort_key
from lakehouse_backfill.errors import HistoryGone, TargetChanged

#: Their bounds are never truncated, and decode as little-endian integers in the same order.
_EXACT_BOUND_TYPES = {"int", "long", "date", "time", "timestamp", "timestamptz"}
#: Nulls, smallest and largest value of a column over files; None where a file has none.
_ColumnStatistics = tuple[int | None, int | None, int | None]


def compaction_violation(
    then: ScopeFiles, now: ScopeFiles, label_of: Callable[[DataFile], str], schema: Schema
) -> str:
    """Return in which partition, and how, compactions changed rows; empty if none is proven.

    Partitions are compared one by one. Where delete files apply, readers see fewer rows than the
    files hold; only the possible range of the row count is compared then.
    """
    before, after = _files_by_label(then, label_of), _files_by_label(now, label_of)
    for label in sorted(before.keys() | after.keys()):
        sides = before[label], after[label]
        (min_before, max_before), (min_after, max_after) = (side.row_count_range for side in sides)
        if max_after < min_before or max_before < min_after:
            return (
                f"compactions left {_format_range(min_after, max_after)} "
                f"of {_format_range(min_before, max_before)} rows in {label}"
            )
        if not any(side.effective_deletes for side in sides):
            files = [[e.data_file for e in side.data.values()] for side in sides]
            changed = _changed_column(files[0], files[1], schema)
            if changed:
                return f"a compaction changed the values of {changed} in {label}"
    return ""


def _files_by_label(
    content: ScopeFiles, label_of: Callable[[DataFile], str]
) -> defaultdict[str, ScopeFiles]:
    by_label = defaultdict[str, ScopeFiles](lambda: ScopeFiles({}, content.deletes))
    for path, entry in content.data.items():
        by_label[label_of(entry.data_file)].data[path] = entry
    return by_label


def _format_range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _changed_column(old: list[DataFile], new: list[DataFile], schema: Schema) -> str:
    if not old or not new:
        return ""
    for column in schema.fields:
        is_exact = str(column.field_type) in _EXACT_BOUND_TYPES
        before, after = (
            _column_statistics(files, column.field_id, is_exact=is_exact) for files in (old, new)
        )
        pairs = zip(before, after, strict=True)
        if any(a is not None and b is not None and a != b for a, b in pairs):
            return column.name
    return ""


def _column_statistics(
    files: Iterable[DataFile], field_id: int, *, is_exact: bool
) -> _ColumnStatistics:
    nulls: list[int | None] = []
    lowest: list[int | None] = []
    highest: list[int | None] = []
    for file in files:
        empty = (file.null_value_counts or {}).get(field_id)
        nulls.append(empty)
        if file.record_count == 0 or (empty is not None and empty == file.record_count):
            continue
        lowest.append(_decode_bound(file.lower_bounds, field_id))
        highest.append(_decode_bound(file.upper_bounds, field_id))
    return (
        sum(_all_or_none(nulls)) if _all_or_none(nulls) else None,
        min(_all_or_none(lowest), default=None) if is_exact else None,
        max(_all_or_none(highest), default=None) if is_exact else None,
    )


def _all_or_none(values: list[int | None]) -> list[int]:
    """Return the values when all are known, else none."""
    known_values = [value for value in values if value is not None]
    return known_values if len(known_values) == len(values) else []


def _decode_bound(bounds: dict[int, bytes] | None, field_id: int) -> int | None:
    """Decode a bound; a file written before a type promotion has it in fewer bytes."""
    value = (bounds or {}).get(field_id)
    return None if value is None else int.from_bytes(value, "little", signed=True)


#: The operation of commits that rewrite the same rows into other files.
_REPLACE_OPERATION = "replace"
_DELETE_OPERATION = Operation.DELETE.value


@dataclass(frozen=True)
class CommitWindow:
    """The commits to inspect: after `since_id` (None: since the table was empty) up to `head`.

    `wording` is that of the errors about them.
    """

    table: str
    metadata: TableMetadata
    since_id: int | None
    head: Snapshot | None
    wording: ErrorWording

    def commits(self) -> list[Snapshot]:
        """List the commits, newest first."""
        since = next((s for s in self.metadata.snapshots if s.snapshot_id == self.since_id), None)
        commits = []
        for snapshot in metadata.snapshot_ancestors(
            self.metadata, self.head.snapshot_id if self.head else None
        ):
            # If main was set back to before the window, older commits are not part of the window.
            if snapshot.snapshot_id == self.since_id or (
                since and _commit_order(snapshot) <= _commit_order(since)
            ):
                break
            commits.append(snapshot)
        return commits

    def is_gapless(self, changes: list[Snapshot]) -> bool:
        """Return whether the commits lead back to the start of the window without a gap."""
        if not changes:
            return self.since_id == (self.head.snapshot_id if self.head else None)
        return changes[-1].parent_snapshot_id == self.since_id

    def changed_error(self, what: str, kind: type[TargetChanged] = TargetChanged) -> TargetChanged:
        """Build the error for what was changed since the start of the window."""
        since = "it was empty" if self.since_id is None else f"snapshot {self.since_id}"
        return self.wording.target_changed(self.table, f"since {since}, {what}", kind)


def _commit_order(snapshot: Snapshot) -> tuple[int, int]:
    """Return the sort key of a table's commits; before format 2 it is the time."""
    number = snapshot.sequence_number or 0
    return number, 0 if number else snapshot.timestamp_ms


def refuse_row_changes(
    window: CommitWindow, reader: ScopedReader, then: ScopeFiles, now: ScopeFiles
) -> None:
    """Raise TargetChanged when the partitions' rows are no longer those of `then`.

    `then` and `now` are the partitions' content at both ends of the window. Equal files under equal
    delete files are equal rows, whatever else was committed. Other files are accepted when only
    compactions made them; else the newest commit that changed rows is named.
    """
    drifts = find_drifts(window, reader, then, now)
    if drifts:
        # Name the newest drift: an earlier one may be undone, and readers see the last one.
        more = f" (and {len(drifts) - 1} earlier commits)" if len(drifts) > 1 else ""
        labels = drifts[-1].partitions
        is_all = len(labels) == len(reader.scope_labels) > 1
        where = "every partition" if is_all else describe_labels(labels)
        raise window.changed_error(f"{drifts[-1]} changed {where}{more}")


def find_drifts(
    window: CommitWindow, reader: ScopedReader, then: ScopeFiles, now: ScopeFiles
) -> tuple[Drift, ...]:
    """List the commits that changed rows of the partitions, oldest first; compactions do not count.

    Raises TargetChanged when a change cannot be attributed to a commit: history in between is
    missing, or a compaction did not keep the rows.
    """
    if then.deletes_by_file == now.deletes_by_file:
        return ()
    changes = _without_undone(window, reader, now)
    drifts = tuple(
        drift
        for snapshot in reversed(changes)
        if metadata.snapshot_operation(snapshot) != _REPLACE_OPERATION
        and (drift := _find_drift(snapshot, reader)) is not None
    )
    if drifts:
        return drifts
    if not window.is_gapless(changes):
        raise _gap_error(window, changes)
    violation = compaction_violation(then, now, reader.labels.file_label, window.metadata.schema())
    if violation:
        raise window.changed_error(violation)
    return ()


#: Counts in the summary of a commit that changed files. Other counts are totals after it.
_FILE_COUNTS = (
    "added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files",
)  # fmt: skip


def find_table_drifts(window: CommitWindow) -> tuple[Drift, ...]:
    """List the commits that changed rows of the table in any partition, oldest first.

    Read from the table's metadata alone, so partitions are not named. Compactions, and commits
    whose summary counts no changed file, are left out. Raises TargetChanged when history is
    missing.
    """
    changes = window.commits()
    if not window.is_gapless(changes):
        raise _gap_error(window, changes)
    return tuple(
        _drift(snapshot, (), is_delete=metadata.snapshot_operation(snapshot) == _DELETE_OPERATION)
        for snapshot in reversed(changes)
        if metadata.snapshot_operation(snapshot) != _REPLACE_OPERATION and _changes_files(snapshot)
    )


def _changes_files(snapshot: Snapshot) -> bool:
    """Return whether a commit changed files; a summary without counts does not tell, so it did."""
    summary = metadata.snapshot_summary(snapshot)
    counts = [summary[name] for name in _FILE_COUNTS if name in summary]
    return any(count != "0" for count in counts) or "total-data-files" not in summary


def _without_undone(window: CommitWindow, reader: ScopedReader, now: ScopeFiles) -> list[Snapshot]:
    """List the commits without publications of ours, and what followed, that were undone.

    After a rollback the partitions hold what they held before the publication: only the commits
    until then can have changed their rows.
    """
    changes = window.commits()
    by_id = {snapshot.snapshot_id: snapshot for snapshot in window.metadata.snapshots}
    for position in reversed(range(len(changes))):
        before = by_id.get(changes[position].parent_snapshot_id or 0)
        is_ours = metadata.PUBLICATION_PROPERTY in metadata.snapshot_summary(changes[position])
        if before is None or not is_ours:
            continue
        if reader.scope_files(before).deletes_by_file == now.deletes_by_file:
            return changes[position + 1 :]
    return changes


def _gap_error(window: CommitWindow, changes: list[Snapshot]) -> TargetChanged:
    """Build the error for a main branch that does not lead back to the start of the window."""
    start = changes[-1].parent_snapshot_id if changes else window.head and window.head.snapshot_id
    # Without a parent, or with one that is not there: expiry removed what was before.
    is_known = any(snapshot.snapshot_id == start for snapshot in window.metadata.snapshots)
    if changes and not is_known:
        return window.changed_error("the history in between is gone: it has expired", HistoryGone)
    where = "no rows" if start is None else f"snapshot {start}"
    return window.changed_error(
        f"the main branch was set back to {where}, which does not contain it"
    )


def _find_drift(snapshot: Snapshot, reader: ScopedReader) -> Drift | None:
    """Return what the commit changed in the scope; None when it added and removed nothing there."""
    return reader.derive("drift", snapshot.snapshot_id, lambda: _read_drift(snapshot, reader))


def _read_drift(snapshot: Snapshot, reader: ScopedReader) -> Drift | None:
    labels: set[str] = set()
    is_delete = True
    for manifest in reader.manifests(snapshot):
        if manifest.added_snapshot_id != snapshot.snapshot_id or not reader.may_hold(manifest):
            continue
        for entry in _own_entries(snapshot, manifest, reader):
            touched = _touched_labels(entry, reader)
            labels |= touched
            is_delete = is_delete and not (touched and _may_add_rows(snapshot, manifest, entry))
    if not labels:
        return None
    ordered = tuple(sorted(labels, key=label_sort_key(reader.scope.field)))
    return _drift(snapshot, ordered, is_delete=is_delete)


def _drift(snapshot: Snapshot, labels: tuple[str, ...], *, is_delete: bool) -> Drift:
    return Drift(
        snapshot_id=snapshot.snapshot_id,
        operation=metadata.snapshot_operation(snapshot),
        writer=metadata.describe_writer(snapshot),
        at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc),
        partitions=labels,
        only_deletes=is_delete,
    )


def _own_entries(
    snapshot: Snapshot, manifest: ManifestFile, reader: ScopedReader
) -> list[ManifestEntry]:
    """Return the entries by which this snapshot added or removed files."""
    return [
        entry
        for entry in reader.entries(manifest)
        if entry.snapshot_id == snapshot.snapshot_id
        and entry.status != ManifestEntryStatus.EXISTING
    ]


def _touched_labels(entry: ManifestEntry, reader: ScopedReader) -> frozenset[str]:
    if reader.labels.can_label(entry.data_file.spec_id):
        return reader.labels.labels_spanned(entry.data_file) & reader.scope_labels
    # For example, an equality delete of an unpartitioned spec applies to all rows.
    return reader.scope_labels


def _may_add_rows(snapshot: Snapshot, manifest: ManifestFile, entry: ManifestEntry) -> bool:
    is_added = entry.status == ManifestEntryStatus.ADDED
    if manifest.content == ManifestContent.DATA:
        return is_added
    # A row whose delete file is removed is visible again, unless its data file is removed too.
    return not is_added and metadata.snapshot_operation(snapshot) != _DELETE_OPERATION


def refuse_foreign_commits(window: CommitWindow) -> None:
    """Raise TargetChanged for any commit in the window that is not a publication of ours.

    Also raised when history in between is missing, because its commits are then unknown.
    """
    changes = window.commits()
    foreign = (
        s for s in changes if metadata.PUBLICATION_PROPERTY not in metadata.snapshot_summary(s)
    )
    snapshot = next(foreign, None)
    if snapshot is not None:
        what = (
            f"snapshot {snapshot.snapshot_id} ({metadata.snapshot_operation(snapshot)} by "
            f"{metadata.describe_writer(snapshot)}) came to it"
        )
    elif not window.is_gapless(changes):
        what = "the history in between is gone"
    else:
        return
    wording = replace(window.wording, fix=f"pause its writers, and {window.wording.fix}")
    raise wording.target_changed(
        window.table,
        f"it is frozen by `safety.freeze`, and since snapshot {window.since_id}, {what}",
    )


def partitioning_change(table: Table, spec_id: int | None) -> str:
    """Return how the table's partitioning changed since it had the spec; empty: unchanged."""
    current_spec_id = table.metadata.default_spec_id
    if spec_id is None or current_spec_id == spec_id:
        return ""
    specs, schema = table.specs(), table.schema()
    old, new = (
        _describe_spec(specs[spec_number], schema) for spec_number in (spec_id, current_spec_id)
    )
    return f"its partitioning changed from {old} to {new}"


def _describe_spec(spec: PartitionSpec, schema: Schema) -> str:
    fields = [
        f"{field.transform}({schema.find_column_name(field.source_id)})" for field in spec.fields
    ]
    return ", ".join(fields) or "none"
