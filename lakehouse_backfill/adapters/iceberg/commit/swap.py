"""Swaps of a table's files: the loop of load, check, write and commit.

The loop repeats on a busy table until the commit succeeds, a check fails, or the time budget is
spent. Added files are checked in the store before the commit: each must exist with its listed size.

PyIceberg writes the snapshot, or a delegated committer does what PyIceberg cannot: it commits
through Iceberg's Java API, or rewrites rows. Which files to swap is decided before, in the same
way. A rewrite of rows sets no tags in its commit. It is finalised afterwards: a proof that the
snapshot equals the candidate, then the tags of both states. The pending work is written in the
snapshot's summary, so that any later process can finish it; the tag of the new state is set last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg import manifests, metadata
from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.commit import conflicts, snapshot_producer
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    SnapshotChange,
    Swap,
    SwapPart,
    plan_swap,
)
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.iceberg.rest.answers import commit_refusal
from lakehouse_backfill.adapters.iceberg.schema import build_new_schema
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import (
    REWRITE_PROPERTY,
    AddedFile,
    CommitResult,
    InspectedState,
    PendingRewrite,
    SwapCommit,
)
from lakehouse_backfill.errors import OutcomeUnknown, Unsupported
from lakehouse_backfill.ports.tables import SwapCommitter

_CHECK_THREADS = 16


@dataclass(frozen=True)
class TokenCommit:
    """One commit to a table that others write to; its token finds it, so it lands only once.

    `action`, `state`, `busy_fix` and `unknown_state` are the wording of its errors.
    """

    catalog: Catalog
    table: str
    token: str
    action: str
    state: str
    busy_fix: str
    unknown_state: str

    def run(
        self,
        prepare: Callable[[Table, int], Callable[[], Snapshot | None] | None],
        budget_s: float,
    ) -> Snapshot:
        """Prepare and land the commit, again while other writers win; return its snapshot.

        `prepare` gets the table as it was loaded last and the number of the attempt. It returns
        None when another writer was first. Raises TooBusy, OutcomeUnknown.
        """
        for number in catalogs.retry_attempts(budget_s):
            table = catalogs.load_table(self.catalog, self.table)
            committed = metadata.find_publication_snapshot(table.metadata, self.token)
            if committed is not None:
                return committed
            land = prepare(table, number)
            committed = None if land is None else self._land(land, table)
            if committed is not None:
                return committed
        raise errors.TooBusy(
            f"other writers kept winning on {self.table} for {budget_s:.0f} s",
            state=self.state,
            fix=self.busy_fix,
        )

    def _land(self, land: Callable[[], Snapshot | None], table: Table) -> Snapshot | None:
        """Commit; return None when another writer was first."""
        try:
            committed = land()
        except Exception as error:  # noqa: BLE001 (after any error the commit may have succeeded)
            return None if catalogs.is_lost_race(error) else self._resolve_outcome(error, table)
        return committed or self._resolve_outcome(None, table)

    def _resolve_outcome(self, cause: Exception | None, table: Table) -> Snapshot | None:
        """Look for the commit; return None when it can no longer land.

        It needs the head that was loaded, so that it is refused once the head has moved.
        Everything is kept if its outcome stays unknown.
        """
        current = committed = None
        try:
            current = catalogs.load_table(self.catalog, self.table)
            committed = metadata.find_publication_snapshot(current.metadata, self.token)
        except errors.BackfillError:
            pass
        if committed is not None:
            return committed
        # Spark rebases the commits that it makes, so that they may land on another head.
        is_own = cause is not None and catalogs.is_outage(cause)
        if is_own and current is not None and _has_moved(table, current):
            return None
        reason = f"{type(cause).__name__}: {cause}" if cause else "it is not in the history"
        refusal = commit_refusal(cause, self.table, self.state)
        if refusal is not None:
            raise refusal from cause
        raise errors.OutcomeUnknown(
            f"the {self.action} {self.table} may or may not have landed: {reason}",
            state=self.unknown_state,
            fix="repeat the same command: it looks at the table first",
        ) from cause


def _has_moved(loaded: Table, current: Table) -> bool:
    """Return whether main has another head than the one that a commit on `loaded` needs."""
    is_same_table = loaded.metadata.table_uuid == current.metadata.table_uuid
    heads = {table.metadata.current_snapshot_id for table in (loaded, current)}
    return is_same_table and len(heads) > 1


def run_swap(
    catalog: Catalog,
    budget_s: float,
    swap: Swap,
    cache: manifests.ManifestCache,
    commits: SwapCommitter | None = None,
) -> Snapshot:
    """Commit the swap once, also while other writers commit; return its snapshot.

    `commits` writes what PyIceberg cannot write. Raises TargetChanged, TooBusy, OutcomeUnknown,
    Unsupported. Files are never deleted: a commit that was reported as failed may have succeeded.
    """
    target = swap.request.target
    commit = TokenCommit(
        catalog,
        target,
        swap.request.token,
        action="commit on",
        state=swap.wording.state,
        busy_fix="try again, pause the live writer, or use a quiet window",
        unknown_state=f"{target} is either as before or fully swapped, never in between; "
        "no file was deleted",
    )
    return commit.run(_SwapAttempts(swap, cache, commits).prepare, budget_s)


def check_swap(table: Table, swap: Swap, cache: manifests.ManifestCache) -> None:
    """Raise what `run_swap` would raise of the table and the files now; nothing is written."""
    _SwapAttempts(swap, cache, None).plan_change(table)


class _SwapAttempts:
    """The attempts of one swap; what one has read, written and checked, the next one uses."""

    def __init__(
        self, swap: Swap, cache: manifests.ManifestCache, commits: SwapCommitter | None
    ) -> None:
        self._swap = swap
        self._cache = cache
        self._writer = (
            PyIcebergSnapshotWriter(cache) if commits is None else DelegatedSnapshotWriter(commits)
        )
        self._checked_files: set[str] = set()

    def prepare(self, table: Table, number: int) -> Callable[[], Snapshot | None] | None:
        """Check and write one attempt; return its commit, or None when another writer was first."""
        with catalogs.translate_errors():
            change = self.plan_change(table)
            try:
                return self._writer.prepare(table, change, self._swap, number)
            except errors.TooBusy:
                return None

    def plan_change(self, table: Table) -> SnapshotChange:
        """Check the table; decide which files are removed and added, against the current head."""
        _refuse_changed_table(self._swap, table)
        swap, head = self._swap, table.metadata.snapshot_by_name(MAIN_BRANCH)
        listed = self._cache.manifests(table.io, head)
        removed: manifests.LiveEntries = {}
        added: manifests.LiveEntries = {}
        for part in swap.parts:
            reader = manifests.ScopedReader(table, part.scope, self._cache)
            now = reader.scope_files_in(listed)
            self._refuse_conflict(table, head, part, reader, now)
            swapped = plan_swap(now, part.wanted)
            _refuse_ambiguous(swap, swapped.ambiguous)
            removed.update(swapped.removed)
            added.update(swapped.added)
        _refuse_removal_on_append(swap, removed)
        self._check_files(table.io, added)
        return SnapshotChange(
            head,
            tuple(listed),
            removed,
            added,
            Operation(swap.request.operation),
            swap.schema_evolution.after if swap.schema_evolution else None,
            _before_tag(swap, table, head),
        )

    def _refuse_conflict(
        self,
        table: Table,
        head: Snapshot | None,
        part: SwapPart,
        reader: manifests.ScopedReader,
        now: manifests.ScopeFiles,
    ) -> None:
        target = self._swap.request.target
        window = conflicts.CommitWindow(
            target, table.metadata, part.since_id, head, self._swap.wording
        )
        if self._swap.request.is_frozen:
            conflicts.refuse_foreign_commits(window)
        if part.since_id is None:
            then = manifests.ScopeFiles()
        elif head is not None and head.snapshot_id == part.since_id:
            return
        else:
            then = reader.scope_files(metadata.find_snapshot(table.metadata, part.since_id, target))
        conflicts.refuse_row_changes(window, reader, then, now)

    def _check_files(self, io: FileIO, added: manifests.LiveEntries) -> None:
        """Raise NotFound when a file is missing or has another size than its entry says."""
        sizes = {
            path: entry.data_file.file_size_in_bytes
            for path, entry in added.items()
            if path not in self._checked_files
        }
        found = catalogs.fetch_all(lambda path: len(io.new_input(path)), sizes, _CHECK_THREADS)
        faults = [
            f"{path} has {found[path]} bytes, not {size}" if path in found else f"{path} is missing"
            for path, size in sizes.items()
            if found.get(path) != size
        ]
        if faults:
            raise errors.NotFound(
                f"{len(faults)} of {len(sizes)} files are not as the table lists them: {faults[0]}",
                state=self._swap.wording.state,
                fix=self._swap.wording.fix,
            )
        self._checked_files.update(sizes)


def read_commit_result(target: str, snapshot: Snapshot, seconds: float) -> CommitResult:
    """Read the result of a swap from its snapshot."""
    summary = metadata.snapshot_summary(snapshot)

    def count(name: str) -> int:
        return int(summary.get(name, "0"))

    return CommitResult(
        table=target,
        snapshot_id=snapshot.snapshot_id,
        before_snapshot_id=snapshot.parent_snapshot_id,
        files_added=count("added-data-files"),
        files_removed=count("deleted-data-files"),
        rows_added=count("added-records"),
        rows_removed=count("deleted-records"),
        attempts=count(metadata.ATTEMPTS_PROPERTY),
        seconds=seconds,
    )


def _refuse_changed_table(swap: Swap, table: Table) -> None:
    """Refuse a table that was recreated, or whose columns or partitioning changed."""
    current_columns, problem = metadata.column_ids(table.schema()), ""
    if str(table.metadata.table_uuid) != swap.uuid:
        problem = "it was dropped and made again"
    elif swap.columns is not None and current_columns != swap.columns:
        # Files are read by column id: a column added since would show values of another column.
        names = sorted({column[0] for _, column in current_columns.items() ^ swap.columns.items()})
        problem = f"its columns changed: {', '.join(names)}"
    elif swap.schema_evolution is not None:
        problem = swap.schema_evolution.taken_ids_problem(table.metadata)
    problem = problem or conflicts.partitioning_change(table, swap.spec_id)
    if problem:
        raise swap.wording.target_changed(swap.request.target, problem)


def _refuse_removal_on_append(swap: Swap, removed: manifests.LiveEntries) -> None:
    """Refuse an append that removes files: a streaming reader would not see the removal."""
    if swap.request.operation == "append" and removed:
        raise swap.wording.target_changed(
            swap.request.target,
            f"its partitions hold {len(removed)} files, e.g. {min(removed)}, but the run only "
            "appends",
        )


def _refuse_ambiguous(swap: Swap, ambiguous: dict[str, frozenset[str]]) -> None:
    """Refuse to re-add a file while live delete files may name it."""
    for path, deletes in ambiguous.items():
        raise errors.Unsupported(
            f"{swap.request.target} cannot be {swap.wording.name} by adding files again: "
            f"live delete file {min(deletes)} may hide rows of {path}",
            state=swap.wording.state,
            fix="repeat the command: partitions with delete files are rewritten",
        )


def _before_tag(swap: Swap, table: Table, head: Snapshot | None) -> dict[str, int]:
    """Return the tag of the state before; raises Conflict when a tag name is already used."""
    before = swap.request.tags.get("before")
    before_tags = {before: head.snapshot_id} if before and head else {}
    for name in swap.request.tags.values():
        ref = table.metadata.refs.get(name)
        if ref is None:
            continue
        if ref.snapshot_ref_type != SnapshotRefType.TAG or before_tags.get(name) != ref.snapshot_id:
            raise errors.Conflict(
                f"{swap.request.target}: {name} already names snapshot {ref.snapshot_id}",
                state=swap.wording.state,
                fix="use a new publication token",
            )
    return before_tags


class PyIcebergSnapshotWriter:
    """Writes snapshots of formats 1 and 2, without a JVM."""

    def __init__(self, cache: ManifestCache) -> None:
        self._producer = snapshot_producer.SwapProducer(cache)

    def prepare(
        self, table: Table, change: snapshot_producer.SnapshotChange, swap: Swap, attempt: int
    ) -> Callable[[], Snapshot]:
        """Write the snapshot for the table as it was loaded last; return its commit.

        Manifests of earlier attempts are reused. Readers see nothing before the commit.
        """
        metadata.refuse_unwritable_format(swap.request.target, table.metadata)
        snapshot = self._producer.write_snapshot(table, change, swap.summary(attempt), attempt)
        after = swap.request.tags.get("after")
        tags = {**change.before_tags, **({after: snapshot.snapshot_id} if after else {})}

        def land() -> Snapshot:
            snapshot_producer.commit_snapshot(
                table, snapshot, tags, swap.request.token, change.schema
            )
            return snapshot

        return land


class DelegatedSnapshotWriter:
    """Writes snapshots of any format, through the given committer."""

    def __init__(self, commits: SwapCommitter) -> None:
        self._commits = commits

    def prepare(
        self, table: Table, change: snapshot_producer.SnapshotChange, swap: Swap, attempt: int
    ) -> Callable[[], None]:
        """Order a swap of exactly the inspected files; return its commit.

        Readers see nothing before the commit. The new snapshot is found by its token. Raises
        TooBusy when the table has changed since it was loaded.
        """
        if change.schema is not None and self._commits.writes_rows:
            raise Unsupported(
                f"{swap.request.target}: commits of rows carry no change of columns",
                state="nothing was published; readers see what they saw before",
                fix="change the columns on the table itself, and plan the run again without them",
            )
        return self._commits.prepare(_swap_commit(table, change, swap, attempt))


def _swap_commit(
    table: Table, change: snapshot_producer.SnapshotChange, swap: Swap, attempt: int
) -> SwapCommit:
    current, head, request = table.metadata, change.head, swap.request
    return SwapCommit(
        base=InspectedState(
            table=request.target,
            uuid=str(current.table_uuid),
            head_id=head.snapshot_id if head else None,
            schema_id=current.current_schema_id,
            spec_id=current.default_spec_id,
            last_column_id=current.last_column_id,
        ),
        contents=tuple(part.row_content for part in swap.parts),
        token=request.token,
        removed=tuple(name for name, e in change.removed.items() if _is_data_file(e)),
        removed_deletes=tuple(name for name, e in change.removed.items() if not _is_data_file(e)),
        added=tuple(AddedFile(name, e.sequence_number) for name, e in change.added.items()),
        sources=tuple(dict.fromkeys(part.source for part in swap.parts if part.source)),
        tags=change.before_tags,
        after=request.tags.get("after"),
        tag_age_ms=metadata.NEVER_EXPIRES_MS,
        summary=swap.summary(attempt),
        properties={metadata.PUBLICATION_PROPERTY: request.token},
        operation=request.operation,
        columns=build_new_schema(current, change.schema) if change.schema else None,
    )


def _is_data_file(entry: ManifestEntry) -> bool:
    return bool(entry.data_file.content == DataFileContent.DATA)


class RowRewriteFinalizer:
    """Finalises row rewrites on the tables of one catalog."""

    def __init__(self, catalog: Catalog, writers: TableWriters) -> None:
        self._catalog = catalog
        self._writers = writers

    def finalise(self, target: str, snapshot: Snapshot) -> None:
        """Prove the snapshot and tag it, unless that is done; other snapshots need nothing.

        The state before is tagged first, so that it cannot expire while rows are compared. A state
        that has already expired gets no tag; a rollback to it is refused. Raises
        OutcomeUnknown when the snapshot differs from the candidate: it is then visible, and neither
        accepted nor rolled back.
        """
        text = metadata.snapshot_summary(snapshot).get(REWRITE_PROPERTY)
        if text is None:
            return
        pending = PendingRewrite.model_validate_json(text)
        table = load_table(self._catalog, target)
        if pending.after is not None and pending.after in table.metadata.refs:
            return
        pins = IcebergPins(self._catalog, self._writers)
        before = snapshot.parent_snapshot_id
        has_before = any(ancestor.snapshot_id == before for ancestor in table.metadata.snapshots)
        if pending.before is not None and before is not None and has_before:
            pins.pin(target, before, pending.before)
        with translate_errors():
            _require_in_partitions(target, table, snapshot, pending)
        self._writers.rows().require_equal(target, snapshot.snapshot_id, pending.contents)
        if pending.after is not None:
            pins.pin(target, snapshot.snapshot_id, pending.after)


def _require_in_partitions(
    target: str, table: Table, snapshot: Snapshot, done: PendingRewrite
) -> None:
    """Check that every file that the snapshot added or removed is in its partitions.

    Removed delete files that hide no rows are exempt: Iceberg leaves them out of manifests that it
    rewrites, whatever their partition.
    """
    labels = tuple(label for content in done.contents for label in content.scope.partitions)
    scope = Scope(field=done.contents[0].scope.field, partitions=labels)
    reader = ScopedReader(table, scope, ManifestCache())
    manifests = snapshot.manifests(table.io)
    oldest = _oldest_data_sequence(manifests)
    for manifest in manifests:
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            is_own = entry.status != ManifestEntryStatus.EXISTING
            if is_own and not _removes_stale_delete(entry, oldest) and not reader.holds(entry):
                raise OutcomeUnknown(
                    f"{target}@{snapshot.snapshot_id} changed {entry.data_file.file_path}, which "
                    f"lies outside the partitions {', '.join(labels)}",
                    state="the snapshot is visible, and not accepted",
                    fix="look at who wrote to the table, and set it back by hand",
                )


def _oldest_data_sequence(manifests: list[ManifestFile]) -> int | None:
    """Return the smallest sequence number of a live data file; None without data files."""
    live = (
        m for m in manifests if m.content == ManifestContent.DATA and metadata.has_live_files(m)
    )
    return min((manifest.min_sequence_number or 0 for manifest in live), default=None)


def _removes_stale_delete(entry: ManifestEntry, oldest: int | None) -> bool:
    """Return whether the entry removes a delete file that is older than all data."""
    is_delete_file = entry.data_file.content != DataFileContent.DATA
    if entry.status != ManifestEntryStatus.DELETED or not is_delete_file:
        return False
    return oldest is None or (entry.sequence_number or 0) < oldest
