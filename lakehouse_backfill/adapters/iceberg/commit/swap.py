"""Swaps of a table's files: the request, and the loop of load, check, write and commit.

The loop repeats on a busy table until the commit succeeds, a check fails, or the time budget is
spent. Added files are checked in the store before the commit: each must exist with its listed size.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill.adapters.iceberg.catalog import (
    is_lost_race,
    load_table,
    retry_attempts,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.commit.conflicts import (
    CommitWindow,
    ErrorWording,
    partitioning_change,
    refuse_foreign_commits,
    refuse_row_changes,
)
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import SnapshotChange
from lakehouse_backfill.adapters.iceberg.commit.writers import (
    CommitMarkers,
    SnapshotWriter,
    choose_snapshot_writer,
)
from lakehouse_backfill.adapters.iceberg.manifests import (
    FileSwap,
    LiveEntries,
    ManifestCache,
    ScopedReader,
    ScopeFiles,
    plan_swap,
)
from lakehouse_backfill.adapters.iceberg.metadata import (
    ATTEMPTS_PROPERTY,
    PUBLICATION_PROPERTY,
    ColumnIds,
    column_ids,
    find_publication_snapshot,
    find_snapshot,
    snapshot_summary,
)
from lakehouse_backfill.adapters.iceberg.schema import SchemaEvolution
from lakehouse_backfill.domain.partitions import Scope, scope_row_ranges
from lakehouse_backfill.domain.publication import CommitResult, PartitionContent
from lakehouse_backfill.errors import (
    BackfillError,
    Conflict,
    NotFound,
    OutcomeUnknown,
    TargetChanged,
    TooBusy,
    Unsupported,
)
from lakehouse_backfill.ports.table_writer import SwapCommitter

_CHECK_THREADS = 16


class FileExistenceCheck:
    """Checks that files exist in the store; each file once."""

    def __init__(self, verb: ErrorWording) -> None:
        self._wording = verb
        self._seen: set[str] = set()

    def check(self, io: FileIO, entries: dict[str, ManifestEntry]) -> None:
        """Raise NotFound when a file is missing or has another size than its entry says."""
        files = [e.data_file for path, e in entries.items() if path not in self._seen]
        if not files:
            return
        with ThreadPoolExecutor(min(_CHECK_THREADS, len(files))) as pool:
            faults = [
                fault for fault in pool.map(lambda file: _file_fault(io, file), files) if fault
            ]
        if faults:
            raise NotFound(
                f"{len(faults)} of {len(files)} files are not as the table lists them: {faults[0]}",
                state=self._wording.state,
                fix=self._wording.fix,
            )
        self._seen.update(entries)


def _file_fault(io: FileIO, file: DataFile) -> str:
    try:
        size = len(io.new_input(file.file_path))
    except FileNotFoundError:
        return f"{file.file_path} is missing"
    if size != file.file_size_in_bytes:
        return f"{file.file_path} has {size} bytes, not {file.file_size_in_bytes}"
    return ""


@dataclass(frozen=True)
class SwapPart:
    """Partitions that get the files `wanted`, unless changed since `since_id` (None: empty).

    `source` is the table and snapshot that hold the same content as rows; None: the part is empty.
    """

    scope: Scope
    since_id: int | None
    wanted: LiveEntries
    source: tuple[str, int] | None = None

    @property
    def row_content(self) -> PartitionContent:
        """The same content as rows of the source; no table where nothing is read."""
        if self.source is None or not self.wanted:
            return PartitionContent(scope=self.scope)
        return PartitionContent(scope=self.scope, table=self.source[0], snapshot_id=self.source[1])


@dataclass(frozen=True)
class SwapRequest:
    """What a swap changes. `columns`: the columns that the table must still have; None: any."""

    target: str
    uuid: str
    parts: tuple[SwapPart, ...]
    token: str
    tags: dict[str, str]
    properties: dict[str, str]
    wording: ErrorWording
    columns: ColumnIds | None = None
    #: The snapshots (table, id) that list the added files.
    sources: tuple[tuple[str, int], ...] = ()
    operation: Operation = Operation.OVERWRITE
    #: The default spec that the table must still have; None: any.
    spec_id: int | None = None
    #: Whether any foreign commit since the base is a conflict.
    is_frozen: bool = False
    #: The new columns that the same commit sets; None: unchanged.
    schema_evolution: SchemaEvolution | None = None


@dataclass
class _Attempts:
    """The state that is shared by all attempts of one swap."""

    request: SwapRequest
    cache: ManifestCache
    writer: SnapshotWriter
    files: FileExistenceCheck


class Swapper:
    """Commits swaps on the tables of one catalog."""

    def __init__(self, catalog: Catalog, budget_s: float) -> None:
        self._catalog = catalog
        self._budget_s = budget_s

    def run(
        self, intent: SwapRequest, cache: ManifestCache, commits: SwapCommitter | None = None
    ) -> Snapshot:
        """Commit the swap once, also while other writers commit; return its snapshot.

        `commits` writes what PyIceberg cannot write. Raises TargetChanged, TooBusy, OutcomeUnknown,
        Unsupported. Files are never deleted, because a commit that was reported as failed may still
        have succeeded.
        """
        writer = choose_snapshot_writer(self._catalog, cache, commits)
        state = _Attempts(intent, cache, writer, FileExistenceCheck(intent.wording))
        for number in retry_attempts(self._budget_s):
            committed = self._attempt(state, number)
            if committed is not None:
                return committed
        raise TooBusy(
            f"other writers kept winning on {intent.target} for {self._budget_s:.0f} s",
            state=intent.wording.state,
            fix="try again, pause the live writer, or use a quiet window",
        )

    def _attempt(self, state: _Attempts, number: int) -> Snapshot | None:
        """Try once; return None when another writer committed first."""
        intent = state.request
        table = load_table(self._catalog, intent.target)
        committed = find_publication_snapshot(table.metadata, intent.token)
        if committed is not None:
            return committed
        with translate_errors():
            _refuse_changed_table(intent, table)
            change = _plan_snapshot_change(state, table)
            marks = _commit_markers(intent, _before_tag(intent, table, change.head), number)
            try:
                land = state.writer.prepare(table, change, marks)
            except TooBusy:
                return None
        try:
            return land()
        except Exception as error:  # noqa: BLE001 (after any error the commit may have succeeded)
            if is_lost_race(error):
                return None
            return self._resolve_outcome(intent, error)

    def _resolve_outcome(self, intent: SwapRequest, cause: Exception) -> Snapshot:
        """Look for a commit of unknown outcome; everything is kept if its outcome stays unknown."""
        try:
            committed = find_publication_snapshot(
                load_table(self._catalog, intent.target).metadata, intent.token
            )
        except BackfillError:
            committed = None
        if committed is not None:
            return committed
        raise OutcomeUnknown(
            f"the commit on {intent.target} may or may not have landed: "
            f"{type(cause).__name__}: {cause}",
            state=f"{intent.target} is either as before or fully swapped, never in between; "
            "no file was deleted",
            fix="repeat the same command: it looks at the table first",
        ) from cause


def read_commit_result(target: str, snapshot: Snapshot, seconds: float) -> CommitResult:
    """Read the result of a swap from its snapshot."""
    summary = snapshot_summary(snapshot)

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
        attempts=count(ATTEMPTS_PROPERTY),
        seconds=seconds,
    )


def _refuse_changed_table(intent: SwapRequest, table: Table) -> None:
    """Refuse a table that was recreated, or whose columns or partitioning changed."""
    problem = ""
    if str(table.metadata.table_uuid) != intent.uuid:
        problem = "it was dropped and made again"
    elif (
        intent.columns is not None
        and (current_columns := column_ids(table.schema())) != intent.columns
    ):
        # Files are read by column id: a column added since would show values of another column.
        names = sorted(
            {column[0] for _, column in current_columns.items() ^ intent.columns.items()},
        )
        problem = f"its columns changed: {', '.join(names)}"
    if not problem and intent.schema_evolution is not None:
        problem = intent.schema_evolution.taken_ids_problem(table.metadata)
    problem = problem or partitioning_change(table, intent.spec_id)
    if problem:
        raise TargetChanged(
            f"{intent.target} cannot be {intent.wording.name}: {problem}",
            state=intent.wording.state,
            fix=intent.wording.fix,
        )


def _plan_snapshot_change(state: _Attempts, table: Table) -> SnapshotChange:
    """Decide which files are removed and added, against the current head."""
    head = _main_head(table)
    manifests: list[ManifestFile] = [] if head is None else head.manifests(table.io)
    removed: dict[str, ManifestEntry] = {}
    added: dict[str, ManifestEntry] = {}
    for part in state.request.parts:
        reader = ScopedReader(table, part.scope, state.cache)
        now = reader.scope_files_in(manifests)
        _refuse_conflict(state, table, part, reader, now)
        swapped = plan_swap(now, part.wanted)
        _refuse_ambiguous(state.request, swapped)
        removed.update(swapped.removed)
        added.update(swapped.added)
    _refuse_removal_on_append(state.request, removed)
    state.files.check(table.io, added)
    after = state.request.schema_evolution.after if state.request.schema_evolution else None
    return SnapshotChange(head, tuple(manifests), removed, added, state.request.operation, after)


def _refuse_conflict(
    state: _Attempts, table: Table, part: SwapPart, reader: ScopedReader, now: ScopeFiles
) -> None:
    head = _main_head(table)
    window = CommitWindow(state.request.target, table.metadata, part.since_id, head)
    if state.request.is_frozen:
        refuse_foreign_commits(window, state.request.wording)
    if part.since_id is None:
        then = ScopeFiles()
    elif head is not None and head.snapshot_id == part.since_id:
        return
    else:
        since = find_snapshot(table.metadata, part.since_id, state.request.target)
        then = reader.scope_files(since)
    refuse_row_changes(window, reader, then, now, state.request.wording)


def _refuse_removal_on_append(intent: SwapRequest, removed: LiveEntries) -> None:
    """Refuse an append that removes files: a streaming reader would not see the removal."""
    if intent.operation == Operation.APPEND and removed:
        raise TargetChanged(
            f"{intent.target} cannot be {intent.wording.name}: its partitions hold {len(removed)} "
            f"files, e.g. {min(removed)}, but the run only appends",
            state=intent.wording.state,
            fix=intent.wording.fix,
        )


def _refuse_ambiguous(intent: SwapRequest, swapped: FileSwap) -> None:
    """Refuse to re-add a file while live delete files may name it."""
    if swapped.ambiguous:
        path, deletes = next(iter(swapped.ambiguous.items()))
        raise Unsupported(
            f"{intent.target} cannot be {intent.wording.name} by adding files again: "
            f"live delete file {min(deletes)} may hide rows of {path}",
            state=intent.wording.state,
            fix="repeat the command: partitions with delete files are rewritten",
        )


def _main_head(table: Table) -> Snapshot | None:
    return table.metadata.snapshot_by_name(MAIN_BRANCH)


def _before_tag(intent: SwapRequest, table: Table, head: Snapshot | None) -> dict[str, int]:
    """Return the tag of the state before; raises Conflict when a tag name is already used."""
    refs = table.metadata.refs
    before = intent.tags.get("before")
    before_tags = {before: head.snapshot_id} if before and head else {}
    for name in intent.tags.values():
        ref = refs.get(name)
        if ref is None:
            continue
        if ref.snapshot_ref_type != SnapshotRefType.TAG or before_tags.get(name) != ref.snapshot_id:
            raise Conflict(
                f"{intent.target}: {name} already names snapshot {ref.snapshot_id}",
                state=intent.wording.state,
                fix="use a new publication token",
            )
    return before_tags


def _commit_markers(intent: SwapRequest, before: dict[str, int], attempt: int) -> CommitMarkers:
    return CommitMarkers(
        target=intent.target,
        token=intent.token,
        before_tags=before,
        after_tag=intent.tags.get("after"),
        summary={
            **intent.properties,
            PUBLICATION_PROPERTY: intent.token,
            ATTEMPTS_PROPERTY: str(attempt),
        },
        attempt=attempt,
        sources=intent.sources,
        ranges=tuple(
            row_range for part in intent.parts for row_range in scope_row_ranges(part.scope)
        ),
        contents=tuple(part.row_content for part in intent.parts),
    )
