"""What came to the target since: conflicts, compaction, frozen tables.

Whether a `replace` kept the rows, as far as metadata can tell without reading them.

An operation of `replace` is a writer's promise. What manifests say about the files on both sides
is compared: rows, nulls, and smallest and largest values of each column.

What came to a target since a run read it: only changes of the run's partitions count.

What must stand still while a run is open: the partitioning, and if asked for the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from lakehouse_backfill.adapters.iceberg.manifests import ScopedReader, ScopeFiles
from lakehouse_backfill.adapters.iceberg.metadata import (
    PUBLICATION_PROPERTY,
    RUN_ID_PROPERTY,
    snapshot_ancestors,
    snapshot_operation,
    snapshot_summary,
)
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.partitions import describe_labels, label_sort_key
from lakehouse_backfill.errors import TargetChanged

#: Their bounds are never cut, and smaller values have smaller little-endian integers.
_EXACT_BOUND_TYPES = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)


@dataclass(frozen=True)
class _ColumnStatistics:
    """What the files of one side say about a column; None where one of them does not say."""

    nulls: int | None
    lowest: int | None
    highest: int | None


def compaction_violation(
    then: ScopeFiles, now: ScopeFiles, label_of: Callable[[DataFile], str], schema: Schema
) -> str:
    """Say in which partition the rows cannot be the same any more; empty when they may be.

    Partition by partition. Where delete files apply, readers see fewer rows than the files hold:
    then only the range of their number is compared.
    """
    for label in sorted({*_file_labels(then, label_of), *_file_labels(now, label_of)}):
        sides = [_files_of_label(side, label, label_of) for side in (then, now)]
        (fewest, most), (least, largest) = (side.row_count_range for side in sides)
        if largest < fewest or most < least:
            return (
                f"compactions left {_format_range(least, largest)} of {_format_range(fewest, most)} rows"
                + (f" in {label}")
            )
        if not any(side.effective_deletes for side in sides):
            files = [[e.data_file for e in side.data.values()] for side in sides]
            changed = _changed_column(files[0], files[1], schema)
            if changed:
                return f"a compaction changed the values of {changed} in {label}"
    return ""


def _file_labels(content: ScopeFiles, label_of: Callable[[DataFile], str]) -> set[str]:
    return {label_of(entry.data_file) for entry in content.data.values()}


def _files_of_label(
    content: ScopeFiles, label: str, label_of: Callable[[DataFile], str]
) -> ScopeFiles:
    data = {p: e for p, e in content.data.items() if label_of(e.data_file) == label}
    return ScopeFiles(data, content.deletes)


def _format_range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _changed_column(old: list[DataFile], new: list[DataFile], schema: Schema) -> str:
    if not old or not new:
        return ""
    for column in schema.fields:
        is_exact = isinstance(column.field_type, _EXACT_BOUND_TYPES)
        sides = [
            _column_statistics(files, column.field_id, is_exact=is_exact) for files in (old, new)
        ]
        pairs = zip(vars(sides[0]).values(), vars(sides[1]).values(), strict=True)
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
    return _ColumnStatistics(
        nulls=sum(_all_or_none(nulls)) if _all_or_none(nulls) else None,
        lowest=min(_all_or_none(lowest), default=None) if is_exact else None,
        highest=max(_all_or_none(highest), default=None) if is_exact else None,
    )


def _all_or_none(values: list[int | None]) -> list[int]:
    """Give the values when all are known, else none."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else []


def _decode_bound(bounds: dict[int, bytes] | None, field_id: int) -> int | None:
    """Read a bound; a file from before a promotion has it in fewer bytes."""
    value = (bounds or {}).get(field_id)
    return None if value is None else int.from_bytes(value, "little", signed=True)


#: Rewrites of the same rows into other files.
_REPLACE_OPERATION = "replace"
_EVERY_PARTITION = "every partition"


@dataclass(frozen=True)
class ErrorWording:
    """What is being tried, for messages: its name, what is safe, what to type."""

    name: str
    state: str
    fix: str


@dataclass(frozen=True)
class CommitWindow:
    """The commits to look at: after `since_id` (None: since the table was empty) up to `head`."""

    table: str
    metadata: TableMetadata
    since_id: int | None
    head: Snapshot | None

    def commits(self) -> list[Snapshot]:
        """List the commits, newest first."""
        since = next((s for s in self.metadata.snapshots if s.snapshot_id == self.since_id), None)
        found = []
        for snapshot in snapshot_ancestors(
            self.metadata, self.head.snapshot_id if self.head else None
        ):
            # Where main was set back to before the window, older commits are no changes of it.
            if snapshot.snapshot_id == self.since_id or (
                since and _commit_order(snapshot) <= _commit_order(since)
            ):
                break
            found.append(snapshot)
        return found

    def is_gapless(self, changes: list[Snapshot]) -> bool:
        """Tell whether the commits lead back to where the window starts, without a gap."""
        if not changes:
            return self.since_id == (self.head.snapshot_id if self.head else None)
        return changes[-1].parent_snapshot_id == self.since_id


def _commit_order(snapshot: Snapshot) -> tuple[int, int]:
    """Order commits of a table; before format 2 only their time tells."""
    number = snapshot.sequence_number or 0
    return number, 0 if number else snapshot.timestamp_ms


def refuse_row_changes(
    window: CommitWindow,
    reader: ScopedReader,
    then: ScopeFiles,
    now: ScopeFiles,
    verb: ErrorWording,
) -> None:
    """Raise TargetChanged when the partitions' rows are no longer those of `then`.

    `then` and `now` are the partitions' content at both ends of the window. Equal files under equal
    delete files are equal rows, whatever else was committed. Other files are fine when only
    compactions made them; else the newest commit that changed rows is named.
    """
    found = find_drifts(window, reader, then, now, verb)
    if found:
        # The newest: an earlier one may be undone by now, and readers see what won in the end.
        more = f" (and {len(found) - 1} earlier commits)" if len(found) > 1 else ""
        what = f"{found[-1]} changed {_describe_changed(found[-1], reader)}{more}"
        raise _target_changed_error(window, verb, what)


def find_drifts(
    window: CommitWindow,
    reader: ScopedReader,
    then: ScopeFiles,
    now: ScopeFiles,
    verb: ErrorWording,
) -> tuple[Drift, ...]:
    """Name the commits that changed rows of the partitions, oldest first; compactions are none.

    Raises TargetChanged when no commit can be named for what changed: history in between is gone,
    or a compaction did not keep the rows.
    """
    if then.deletes_by_file == now.deletes_by_file:
        return ()
    changes = window.commits()
    found = tuple(
        drift
        for snapshot in reversed(changes)
        if snapshot_operation(snapshot) != _REPLACE_OPERATION
        and (drift := _find_drift(snapshot, reader)) is not None
    )
    if found:
        return found
    if not window.is_gapless(changes):
        raise _target_changed_error(
            window, verb, "the history in between is gone: expired or rolled back"
        )
    broken = compaction_violation(then, now, reader.labels.file_label, window.metadata.schema())
    if broken:
        raise _target_changed_error(window, verb, broken)
    return ()


def _target_changed_error(window: CommitWindow, verb: ErrorWording, what: str) -> TargetChanged:
    since = "it was empty" if window.since_id is None else f"snapshot {window.since_id}"
    return TargetChanged(
        f"{window.table} cannot be {verb.name}: since {since}, {what}",
        state=verb.state,
        fix=verb.fix,
    )


def _describe_changed(drift: Drift, reader: ScopedReader) -> str:
    is_all = len(drift.partitions) == len(reader.scope_labels) > 1
    return _EVERY_PARTITION if is_all else describe_labels(drift.partitions)


def _find_drift(snapshot: Snapshot, reader: ScopedReader) -> Drift | None:
    """Say what the commit changed in the scope; None when it added and removed nothing there."""
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
    return Drift(
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot_operation(snapshot),
        writer=describe_writer(snapshot),
        at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc),
        partitions=tuple(sorted(labels, key=label_sort_key(reader.scope.field))),
        only_deletes=is_delete,
    )


def _own_entries(
    snapshot: Snapshot, manifest: ManifestFile, reader: ScopedReader
) -> list[ManifestEntry]:
    """Give the entries by which this very snapshot added or removed files."""
    return [
        entry
        for entry in reader.entries(manifest)
        if entry.snapshot_id == snapshot.snapshot_id
        and entry.status != ManifestEntryStatus.EXISTING
    ]


def _touched_labels(entry: ManifestEntry, reader: ScopedReader) -> frozenset[str]:
    if reader.labels.can_label(entry.data_file.spec_id):
        return reader.labels.labels_spanned(entry.data_file) & reader.scope_labels
    # E.g. an equality delete of an unpartitioned spec: it applies to all rows.
    return reader.scope_labels


def _may_add_rows(snapshot: Snapshot, manifest: ManifestFile, entry: ManifestEntry) -> bool:
    is_added = entry.status == ManifestEntryStatus.ADDED
    if manifest.content == ManifestContent.DATA:
        return is_added
    # Without its delete file a row is back, unless its data file went too.
    return not is_added and snapshot_operation(snapshot) != Operation.DELETE.value


def describe_writer(snapshot: Snapshot) -> str:
    """Name the run or the engine that made the commit."""
    summary = snapshot_summary(snapshot)
    if RUN_ID_PROPERTY in summary:
        return f"run {summary[RUN_ID_PROPERTY]}"
    application = summary.get("app-id") or summary.get("spark.app.id")
    engine = summary.get("engine-name") or ("spark" if "spark.app.id" in summary else "")
    return " ".join(part for part in (engine, application) if part) or "an unnamed writer"


def refuse_foreign_commits(window: CommitWindow, verb: ErrorWording) -> None:
    """Raise TargetChanged for any commit in the window that is no publication of ours.

    Also when history in between is gone: nobody can tell then what came.
    """
    changes = window.commits()
    for snapshot in changes:
        if PUBLICATION_PROPERTY not in snapshot_summary(snapshot):
            what = (
                f"snapshot {snapshot.snapshot_id} ({snapshot_operation(snapshot)} by "
                f"{describe_writer(snapshot)}) came to it"
            )
            break
    else:
        if window.is_gapless(changes):
            return
        what = "the history in between is gone"
    raise TargetChanged(
        f"{window.table} cannot be {verb.name}: it is frozen by `safety.freeze`, and since "
        f"snapshot {window.since_id}, {what}",
        state=verb.state,
        fix=f"pause its writers, and {verb.fix}",
    )


def partitioning_change(table: Table, spec_id: int | None) -> str:
    """Say how the table's partitioning changed since it had the spec; empty: it did not."""
    found = table.metadata.default_spec_id
    if spec_id is None or found == spec_id:
        return ""
    specs, schema = table.specs(), table.schema()
    old, new = (_describe_spec(specs[number], schema) for number in (spec_id, found))
    return f"its partitioning changed from {old} to {new}"


def _describe_spec(spec: PartitionSpec, schema: Schema) -> str:
    fields = [
        f"{field.transform}({schema.find_column_name(field.source_id)})" for field in spec.fields
    ]
    return ", ".join(fields) or "none"
