"""What came to a target since a run read it: only changes of the run's partitions count."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.errors import TargetChanged
from lakehouse_backfill.iceberg.manifests import Live, ScopedReader
from lakehouse_backfill.iceberg.metadata import ancestors, operation_of, summary_of
from lakehouse_backfill.iceberg.names import RUN_ID
from lakehouse_backfill.rules.partitions import describe, sort_key

#: Rewrites of the same rows into other files.
_NEUTRAL = "replace"
_EVERY_PARTITION = "every partition"


@dataclass(frozen=True)
class Verb:
    """What is being tried, for messages: its name, what is safe, what to type."""

    name: str
    state: str
    fix: str


@dataclass(frozen=True)
class Window:
    """The commits to look at: after `since_id` (None: since the table was empty) up to `head`."""

    table: str
    metadata: TableMetadata
    since_id: int | None
    head: Snapshot | None

    def changes(self) -> list[Snapshot]:
        """List the commits, newest first."""
        found = []
        for snapshot in ancestors(self.metadata, self.head.snapshot_id if self.head else None):
            if snapshot.snapshot_id == self.since_id:
                break
            found.append(snapshot)
        return found

    def is_whole(self, changes: list[Snapshot]) -> bool:
        """Tell whether the commits lead back to where the window starts, without a gap."""
        if not changes:
            return self.since_id == (self.head.snapshot_id if self.head else None)
        return changes[-1].parent_snapshot_id == self.since_id


def refuse_changes(window: Window, reader: ScopedReader, then: Live, now: Live, verb: Verb) -> None:
    """Raise TargetChanged when the partitions' rows are no longer those of `then`.

    `then` and `now` are the live files of the partitions at both ends of the window. Equal files
    are equal rows, whatever else was committed. Other files are fine when only compactions made
    them; else the newest commit that changed rows is named.
    """
    if then.keys() == now.keys():
        return
    changes = window.changes()
    culprits = [
        (snapshot, labels)
        for snapshot in reversed(changes)
        if operation_of(snapshot) != _NEUTRAL and (labels := _touched(snapshot, reader))
    ]
    if culprits:
        # The newest: an earlier one may be undone by now, and readers see what won in the end.
        snapshot, labels = culprits[-1]
        more = f" (and {len(culprits) - 1} earlier commits)" if len(culprits) > 1 else ""
        raise _refusal(window, verb, f"{describe_commit(snapshot)} changed {labels}{more}")
    if not window.is_whole(changes):
        raise _refusal(window, verb, "the history in between is gone: expired or rolled back")
    if _rows(then) != _rows(now):
        raise _refusal(
            window,
            verb,
            f"compactions left {_rows(now)} of {_rows(then)} rows",
        )


def describe_commit(snapshot: Snapshot) -> str:
    """Say which commit it is: id, operation, writer, time."""
    at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc)
    return (
        f"snapshot {snapshot.snapshot_id} ({operation_of(snapshot)} by {_writer(snapshot)} "
        f"at {at.isoformat(timespec='seconds')})"
    )


def _refusal(window: Window, verb: Verb, what: str) -> TargetChanged:
    since = "it was empty" if window.since_id is None else f"snapshot {window.since_id}"
    return TargetChanged(
        f"{window.table} cannot be {verb.name}: since {since}, {what}",
        state=verb.state,
        fix=verb.fix,
    )


def _touched(snapshot: Snapshot, reader: ScopedReader) -> str:
    """Say which partitions of the scope the commit added files to or removed files from."""
    labels: set[str] = set()
    for manifest in reader.manifests(snapshot):
        if manifest.added_snapshot_id == snapshot.snapshot_id and reader.may_hold(manifest):
            labels |= _labels(snapshot, manifest, reader)
    if _EVERY_PARTITION in labels:
        return _EVERY_PARTITION
    key = sort_key(reader.scope.field)
    return describe(tuple(sorted(labels & reader.wanted, key=key))) if labels else ""


def _labels(snapshot: Snapshot, manifest: ManifestFile, reader: ScopedReader) -> set[str]:
    entries = [
        entry
        for entry in reader.entries(manifest)
        if entry.snapshot_id == snapshot.snapshot_id
        and entry.status != ManifestEntryStatus.EXISTING
    ]
    if entries and not reader.labels.covers(manifest.partition_spec_id):
        # E.g. an equality delete of an unpartitioned spec: it applies to all rows.
        return {_EVERY_PARTITION}
    return {reader.labels.of(entry.data_file) for entry in entries} & reader.wanted


def _writer(snapshot: Snapshot) -> str:
    summary = summary_of(snapshot)
    if RUN_ID in summary:
        return f"run {summary[RUN_ID]}"
    application = summary.get("app-id") or summary.get("spark.app.id")
    engine = summary.get("engine-name") or ("spark" if "spark.app.id" in summary else "")
    return " ".join(part for part in (engine, application) if part) or "an unnamed writer"


def _rows(files: Live) -> int:
    return sum(entry.data_file.record_count for entry in files.values())
