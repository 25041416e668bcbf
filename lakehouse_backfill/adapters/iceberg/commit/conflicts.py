"""What came to a target since a run read it: only changes of the run's partitions count."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill.adapters.iceberg.commit.compaction import compaction_violation
from lakehouse_backfill.adapters.iceberg.content import ScopeFiles
from lakehouse_backfill.adapters.iceberg.manifests import ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import (
    snapshot_ancestors,
    snapshot_operation,
    snapshot_summary,
)
from lakehouse_backfill.adapters.iceberg.names import RUN_ID_PROPERTY
from lakehouse_backfill.domain.drift import Drift
from lakehouse_backfill.domain.partitions import describe_labels, label_sort_key
from lakehouse_backfill.errors import TargetChanged

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

    def changes(self) -> list[Snapshot]:
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

    def is_whole(self, changes: list[Snapshot]) -> bool:
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
    if then.hidden_by == now.hidden_by:
        return ()
    changes = window.changes()
    found = tuple(
        drift
        for snapshot in reversed(changes)
        if snapshot_operation(snapshot) != _REPLACE_OPERATION
        and (drift := _find_drift(snapshot, reader)) is not None
    )
    if found:
        return found
    if not window.is_whole(changes):
        raise _target_changed_error(
            window, verb, "the history in between is gone: expired or rolled back"
        )
    broken = compaction_violation(then, now, reader.labels.of, window.metadata.schema())
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
    is_all = len(drift.partitions) == len(reader.wanted) > 1
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
    if reader.labels.knows(entry.data_file.spec_id):
        return reader.labels.spanned(entry.data_file) & reader.wanted
    # E.g. an equality delete of an unpartitioned spec: it applies to all rows.
    return reader.wanted


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
