"""Swaps of a table's files: checked against its head, written, and committed once by their token.

Added files are checked in the store before the commit: each must exist with its listed size.

PyIceberg writes the snapshot, or a delegated committer does what PyIceberg cannot: it commits
through Iceberg's Java API, or rewrites rows. Which files to swap is decided before, in the same
way. A rewrite of rows is finalised afterwards, by `row_rewrites`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFileContent,
    ManifestEntry,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.commit import conflicts, snapshot_producer
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    SnapshotChange,
    Swap,
    SwapPart,
    TableChange,
    plan_swap,
)
from lakehouse_backfill.adapters.iceberg.commit.token_commit import TokenCommit
from lakehouse_backfill.adapters.iceberg.manifests import scope_files
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.schema import build_new_schema
from lakehouse_backfill.domain.tables.commits import (
    AddedFile,
    InspectedState,
    SwapCommit,
)
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.tables import SwapCommitter

_CHECK_THREADS = 16


def run_swap(
    catalog: Catalog,
    budget_s: float,
    swap: Swap,
    cache: ManifestCache,
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
    return commit.run(SwapAttempts(swap, cache, commits).prepare, budget_s)


def check_swap(table: Table, swap: Swap, cache: ManifestCache) -> None:
    """Raise what `run_swap` would raise of the table and the files now; nothing is written."""
    SwapAttempts(swap, cache).plan_change(table)


class SwapAttempts:
    """The attempts of one swap; what one has read, written and checked, the next one uses."""

    def __init__(
        self, swap: Swap, cache: ManifestCache, commits: SwapCommitter | None = None
    ) -> None:
        self.request = swap.request
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

    def write(self, table: Table, number: int) -> TableChange:
        """Check and write one attempt; return its commit, which others may be made with.

        Raises Unsupported where the commit is delegated: it would be one of its own.
        """
        if not isinstance(self._writer, PyIcebergSnapshotWriter):
            raise delegated_commit_error(self._swap.request.target)
        with catalogs.translate_errors():
            return self._writer.write(table, self.plan_change(table), self._swap, number)[1]

    def plan_change(self, table: Table) -> SnapshotChange:
        """Check the table; decide which files are removed and added, against the current head."""
        _refuse_changed_table(self._swap, table)
        swap, head = self._swap, table.metadata.snapshot_by_name(MAIN_BRANCH)
        listed = self._cache.manifests(table.io, head)
        removed: scope_files.LiveEntries = {}
        added: scope_files.LiveEntries = {}
        for part in swap.parts:
            reader = ScopedReader(table, part.scope, self._cache)
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
        reader: ScopedReader,
        now: scope_files.ScopeFiles,
    ) -> None:
        target = self._swap.request.target
        window = conflicts.CommitWindow(
            target, table.metadata, part.since_id, head, self._swap.wording
        )
        if self._swap.request.is_frozen:
            conflicts.refuse_foreign_commits(window)
        if part.since_id is None:
            then = scope_files.ScopeFiles()
        elif head is not None and head.snapshot_id == part.since_id:
            return
        else:
            then = reader.scope_files(metadata.find_snapshot(table.metadata, part.since_id, target))
        conflicts.refuse_row_changes(window, reader, then, now)

    def _check_files(self, io: FileIO, added: scope_files.LiveEntries) -> None:
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


def delegated_commit_error(table: str) -> Unsupported:
    """Build the error for a table whose commits cannot be part of one commit of several tables."""
    return Unsupported(
        f"{table} is written by Spark, as its format or its delete files ask for, by a commit of "
        "its own: it cannot become visible together with others",
        state="nothing was published; readers see what they saw before",
        fix="publish the runs one after the other",
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


def _refuse_removal_on_append(swap: Swap, removed: scope_files.LiveEntries) -> None:
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
        self, table: Table, change: SnapshotChange, swap: Swap, attempt: int
    ) -> Callable[[], Snapshot]:
        """Write the snapshot for the table as it was loaded last; return its commit."""
        snapshot, written = self.write(table, change, swap, attempt)

        def land() -> Snapshot:
            written.land()
            return snapshot

        return land

    def write(
        self, table: Table, change: SnapshotChange, swap: Swap, attempt: int
    ) -> tuple[Snapshot, TableChange]:
        """Write the snapshot for the table as it was loaded last; return it, and its commit.

        Manifests of earlier attempts are reused. Readers see nothing before the commit.
        """
        metadata.refuse_unwritable_format(swap.request.target, table.metadata)
        snapshot = self._producer.write_snapshot(table, change, swap.summary(attempt), attempt)
        after = swap.request.tags.get("after")
        tags = {**change.before_tags, **({after: snapshot.snapshot_id} if after else {})}
        token = swap.request.token
        written = snapshot_producer.snapshot_change(table, snapshot, tags, token, change.schema)
        return snapshot, written


class DelegatedSnapshotWriter:
    """Writes snapshots of any format, through the given committer."""

    def __init__(self, commits: SwapCommitter) -> None:
        self._commits = commits

    def prepare(
        self, table: Table, change: SnapshotChange, swap: Swap, attempt: int
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


def _swap_commit(table: Table, change: SnapshotChange, swap: Swap, attempt: int) -> SwapCommit:
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
