"""Metadata-only commits of shadows and targets: adopt, revert, find, and carry-over of chunks.

Carry-over lets one shadow list the files that another shadow has for the same partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.commit import conflicts, multi_table
from lakehouse_backfill.adapters.iceberg.commit.candidate import ShadowCandidate
from lakehouse_backfill.adapters.iceberg.commit.revert import RevertPlanner, rewritten_adopt_request
from lakehouse_backfill.adapters.iceberg.commit.row_rewrites import RowRewriteFinalizer
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    ErrorWording,
    Swap,
    SwapPart,
    without_sequence_numbers,
)
from lakehouse_backfill.adapters.iceberg.commit.swap import (
    SwapAttempts,
    check_swap,
    delegated_commit_error,
    run_swap,
)
from lakehouse_backfill.adapters.iceberg.commit.token_commit import read_commit_result
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import ScopeFiles
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.domain.catch_up import CarryRequest, Drift
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.tables.branch_shadow import table_of_snapshots
from lakehouse_backfill.domain.tables.commits import (
    AdoptRequest,
    ChunkCommit,
    CommitResult,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
    SwapRequest,
)
from lakehouse_backfill.errors import OutcomeUnknown, TargetChanged, Unsupported
from lakehouse_backfill.ports.tables import Publisher, SwapCommitter

_CARRY_WORDING = ErrorWording(
    "carried over", "readers see what they saw before; both shadows are kept", "stage it again"
)
_ROLLBACK_WORDING = ErrorWording(
    "rolled back",
    "nothing was rolled back; readers see what they saw before",
    "restate the partitions on top of what came: "
    "lakehouse-backfill new PRODUCT --from P --to P --reason TEXT",
)
_READ_WORDING = ErrorWording(
    "read as accepted", "the table holds later live writes", "restate it again"
)

RequestT = TypeVar("RequestT", AdoptRequest, RevertRequest)
#: Makes the swap of a request for its target as it was loaded.
_SwapPlanner = Callable[[Table, ManifestCache, SwapCommitter | None], Swap]


class IcebergPublisher(Publisher):
    """Publishes on the tables of one catalog; raises TooBusy after `budget_s` on a busy table."""

    def __init__(
        self,
        catalog: Catalog,
        budget_s: float = catalogs.COMMIT_BUDGET_S,
        writers: TableWriters | None = None,
    ) -> None:
        """Use `writers` for tables that PyIceberg cannot write; inspection is the same.

        They also finalise row rewrites of any process.
        """
        self._catalog = catalog
        self._budget_s = budget_s
        self._writers = writers

    def adopt(self, request: AdoptRequest) -> CommitResult:
        """Replace the partitions' files by the shadow's; only commits to the scope conflict.

        If a commit with this token exists, its result is returned and nothing is written. Before a
        write the shadow must hold the base and every chunk, and share all files outside the scope
        with its base; the adopted files must exist. Raises TargetChanged, TooBusy, OutcomeUnknown,
        Unsupported, WriteForbidden, ChecksFailed, NotFound.
        """

        def plan(target: Table, cache: ManifestCache, _: SwapCommitter | None) -> Swap:
            return self._candidate(request, cache).swap(target)

        return self._publish(request, plan)

    def adopt_together(self, requests: tuple[AdoptRequest, ...]) -> tuple[CommitResult, ...]:
        """Adopt in several tables by one commit; each request is judged as `adopt` does.

        What has landed by its token is left out. Raises what `adopt` raises, and Unsupported where
        the catalog, or one of the tables, takes no such commit; then nothing is written.
        """
        return self._swap_together(
            requests,
            lambda request, target, cache: self._candidate(request, cache).swap(target),
        )

    def revert_together(self, requests: tuple[RevertRequest, ...]) -> tuple[CommitResult, ...]:
        """Restore partitions of several tables by one commit; otherwise as `adopt_together`."""
        return self._swap_together(
            requests,
            lambda request, target, cache: _revert_swap(
                request, target, cache, self._candidate, None
            ),
        )

    def _swap_together(
        self,
        requests: tuple[RequestT, ...],
        plan: Callable[[RequestT, Table, ManifestCache], Swap],
    ) -> tuple[CommitResult, ...]:
        self.require_one_commit(tuple((request.target, request.scope) for request in requests))
        started, cache = time.monotonic(), ManifestCache()
        swaps = []
        for request in requests:
            target = catalogs.load_table(self._catalog, request.target)
            if metadata.find_publication_snapshot(target.metadata, request.token) is None:
                with catalogs.translate_errors():
                    swaps.append(SwapAttempts(plan(request, target, cache), cache))
        if swaps:
            multi_table.run_swaps(self._catalog, self._budget_s, swaps)
        seconds = time.monotonic() - started
        found = [self.find(request.target, request.token) for request in requests]
        return tuple(one.model_copy(update={"seconds": seconds}) for one in found if one)

    def require_one_commit(self, targets: tuple[tuple[str, Scope], ...]) -> None:
        """Raise Unsupported unless one commit can change all of the tables."""
        reason = multi_table.why_not_together(self._catalog)
        if reason:
            raise Unsupported(
                f"{', '.join(table for table, _ in targets)} cannot become visible together: "
                f"{reason}",
                state="nothing was published; readers see what they saw before",
                fix="publish the runs one after the other",
            )
        for table, scope in targets:
            if self._committer(table, scope) is not None:
                raise delegated_commit_error(table)

    def prove(self, request: AdoptRequest) -> None:
        """Check the shadow as `adopt` does, without a reservation; raises the same errors."""
        target = catalogs.load_table(self._catalog, request.target)
        with catalogs.translate_errors():
            self._candidate(request, ManifestCache()).files_to_adopt(target)

    def preview(self, request: AdoptRequest | RevertRequest) -> None:
        """Check shadow and target as `adopt` and `revert` do now; raises the same errors.

        Nothing is written. Left out is what the writer of the commit refuses: it is not started.
        """
        target, cache = catalogs.load_table(self._catalog, request.target), ManifestCache()
        with catalogs.translate_errors():
            if isinstance(request, AdoptRequest):
                swap = self._candidate(request, cache).swap(target)
            else:
                commits = self._committer(request.target, request.scope)
                swap = _revert_swap(request, target, cache, self._candidate, commits)
            check_swap(target, swap, cache)

    def revert(self, request: RevertRequest) -> CommitResult:
        """Restore partitions to earlier contents, with their original sequence numbers.

        Live commits to other partitions survive. Rewritten partitions get the files of their
        shadow. Raises TargetChanged when a commit changed the partitions since, Unsupported when a
        partition needs a rewrite and has none, NotFound when a file to restore is missing.
        """

        def plan(target: Table, cache: ManifestCache, commits: SwapCommitter | None) -> Swap:
            return _revert_swap(request, target, cache, self._candidate, commits)

        return self._publish(request, plan)

    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Make the shadow hold the partitions as the source shadow has them, in one commit.

        A repeated call first looks for the commit of this chunk id, so that a commit of unknown
        outcome is found. Raises RunMoved, TargetChanged, Unsupported (no shadow of ours),
        OutcomeUnknown.
        """
        committer = partial(self._committer, request.shadow, None)
        return _carry_chunk(self._catalog, self._budget_s, request, committer)

    def rewrites(
        self,
        target: str,
        field: ScopeField,
        restores: tuple[PartitionRestore, ...],
    ) -> tuple[RequiredRewrite, ...]:
        """Return the partitions that cannot be restored by re-adding their files, with the reason.

        These are partitions whose rows delete files hid then or may hide now, and all partitions of
        a state that none of our tags holds: an expiry deletes files that were removed and re-added
        (pitfall 42).
        """
        table = catalogs.load_table(self._catalog, target)
        labels = tuple(label for restore in restores for label in restore.partitions)
        commits = self._committer(target, Scope(field=field, partitions=labels) if labels else None)
        by_rows = _writes_rows(commits)
        planner = RevertPlanner(table, target, field, ManifestCache(), by_rows=by_rows)
        with catalogs.translate_errors():
            return planner.required_rewrites(restores)

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Return which commit changed rows of the scope since then; compaction does not count."""
        window = self._read_window(target, scope, since_snapshot_id)
        with catalogs.translate_errors():
            try:
                conflicts.refuse_row_changes(*window)
            except TargetChanged as change:
                return change.problem
        return None

    def drifts(
        self,
        target: str,
        scope: Scope | None,
        since_snapshot_id: int | None,
        until_snapshot_id: int | None = None,
    ) -> tuple[Drift, ...]:
        """List the commits since the snapshot that changed rows of the scope, oldest first.

        None: of the table, from its metadata alone; partitions are not named then. Compactions do
        not count. The result is empty when the partitions hold the same files under
        the same delete files. Raises TargetChanged when the change cannot be attributed to a
        commit, NotFound.
        """
        if scope is None:
            table = catalogs.load_table(self._catalog, target)
            if since_snapshot_id is not None:
                metadata.find_snapshot(table.metadata, since_snapshot_id, target)
            head = _end_of_window(table, until_snapshot_id, target)
            return conflicts.find_table_drifts(
                conflicts.CommitWindow(
                    target, table.metadata, since_snapshot_id, head, _READ_WORDING
                )
            )
        window = self._read_window(target, scope, since_snapshot_id, until_snapshot_id)
        with catalogs.translate_errors():
            return conflicts.find_drifts(*window)

    def _read_window(
        self, target: str, scope: Scope, since_id: int | None, until_id: int | None = None
    ) -> tuple[conflicts.CommitWindow, ScopedReader, ScopeFiles, ScopeFiles]:
        """Read the scope at the snapshot and at the head, or at the end of the window."""
        table = catalogs.load_table(self._catalog, target)
        reader = ScopedReader(table, scope, ManifestCache())
        head, since = _end_of_window(table, until_id, target), None
        with catalogs.translate_errors():
            if since_id is not None:
                since = metadata.find_snapshot(table.metadata, since_id, target)
            then, now = reader.scope_files(since), reader.scope_files(head)
        window = conflicts.CommitWindow(target, table.metadata, since_id, head, _READ_WORDING)
        return window, reader, then, now

    def find(self, target: str, token: str, *, finalise: bool = True) -> CommitResult | None:
        """Look in the target for the commit of publication `token`; its result has 0 seconds.

        With `finalise=False` an unfinished row rewrite is left as it is: nothing is written.
        """
        table = catalogs.load_table_or_none(self._catalog, target)
        if table is None:
            return None
        published = metadata.find_publication_snapshot(table.metadata, token)
        if published is None:
            return None
        if finalise:
            self._finalise_row_rewrite(target, published)
        return read_commit_result(target, published, 0.0)

    def _publish(self, request: SwapRequest, plan: _SwapPlanner) -> CommitResult:
        """Commit the planned swap, unless its token is found; then finalise a row rewrite."""
        started = time.monotonic()
        target = catalogs.load_table(self._catalog, request.target)
        published = metadata.find_publication_snapshot(target.metadata, request.token)
        if published is None:
            cache = ManifestCache()
            commits = self._committer(request.target, request.scope)
            with catalogs.translate_errors():
                swap = plan(target, cache, commits)
            if request.is_frozen and _writes_rows(commits):
                raise Unsupported(
                    f"{request.target} is written by Spark row by row, whose commit cannot be "
                    "refused for commits of others to other partitions",
                    state=swap.wording.state,
                    fix="remove safety.freeze, or run the command with a Spark of its own: remove "
                    "spark.remote from the profile",
                )
            started = time.monotonic()
            published = run_swap(self._catalog, self._budget_s, swap, cache, commits)
        result = read_commit_result(request.target, published, time.monotonic() - started)
        self._finalise_row_rewrite(request.target, published)
        return result

    def _candidate(self, request: AdoptRequest, cache: ManifestCache) -> ShadowCandidate:
        return ShadowCandidate(catalogs.load_table(self._catalog, request.shadow), request, cache)

    def _committer(self, table: str, scope: Scope | None) -> SwapCommitter | None:
        return self._writers.swap_committer(table, scope) if self._writers else None

    def _finalise_row_rewrite(self, target: str, done: Snapshot) -> None:
        if self._writers is not None:
            RowRewriteFinalizer(self._catalog, self._writers).finalise(target, done)


def _revert_swap(
    request: RevertRequest,
    target: Table,
    cache: ManifestCache,
    candidate_of: Callable[[AdoptRequest, ManifestCache], ShadowCandidate],
    commits: SwapCommitter | None,
) -> Swap:
    by_rows, field = _writes_rows(commits), request.scope.field
    planner = RevertPlanner(target, request.target, field, cache, by_rows=by_rows)
    parts, columns = planner.restored_parts(request), None
    if request.rewritten is not None:
        candidate = candidate_of(rewritten_adopt_request(request, request.rewritten), cache)
        parts += planner.rewritten_parts(request.restores, candidate)
        columns = candidate.columns
    return Swap(request, str(target.metadata.table_uuid), parts, _ROLLBACK_WORDING, columns)


def _writes_rows(commits: SwapCommitter | None) -> bool:
    return commits is not None and commits.writes_rows


def _carry_chunk(
    catalog: Catalog,
    budget_s: float,
    request: CarryRequest,
    make_committer: Callable[[], SwapCommitter | None],
) -> ChunkCommit:
    table = _load_own_shadow(catalog, request)
    previous = _find_chunk_commit(table, request.chunk_id)
    if previous is not None:
        return previous
    cache = ManifestCache()
    commits = make_committer()
    swap = _carry_swap(catalog, table, request, cache)
    try:
        run_swap(catalog, budget_s, swap, cache, commits)
    except TargetChanged:
        # If the shadow was fenced since it was loaded, another process drives the run.
        _load_own_shadow(catalog, request)
        raise
    # It may be fenced by now: then nobody reads what landed on a branch of an earlier epoch.
    committed = _find_chunk_commit(_load_own_shadow(catalog, request), request.chunk_id)
    if committed is None:
        raise OutcomeUnknown(
            f"{request.chunk_id} was committed to {request.shadow}, but is not in its log",
            state=_CARRY_WORDING.state,
            fix="run the step again: it looks before it writes",
        )
    return committed


def _load_own_shadow(catalog: Catalog, request: CarryRequest) -> Table:
    """Load the shadow to write; raises RunMoved when a later epoch has fenced it."""
    table = catalogs.load_table(catalog, request.shadow)
    metadata.fenced_epoch(request.shadow, table.metadata, request.epoch, "stage the run again")
    return table


def _carry_swap(
    catalog: Catalog, table: Table, request: CarryRequest, cache: ManifestCache
) -> Swap:
    """Swap in the source's files of the partitions; they get new sequence numbers."""
    source = catalogs.load_table(catalog, request.source)
    origin = (table_of_snapshots(request.source), request.source_snapshot_id)
    with catalogs.translate_errors():
        state = metadata.find_snapshot(source.metadata, request.source_snapshot_id, request.source)
        content = ScopedReader(source, request.scope, cache).scope_files(state)
    files = {path: without_sequence_numbers(entry) for path, entry in content.data.items()}
    run_id = request.properties.get(metadata.RUN_ID_PROPERTY, "")
    return Swap(
        request=SwapRequest(
            target=request.shadow,
            scope=request.scope,
            token=f"{run_id} {request.chunk_id}",
            tags={},
            properties={**request.properties, metadata.CHUNK_ID_PROPERTY: request.chunk_id},
        ),
        uuid=str(table.metadata.table_uuid),
        parts=(SwapPart(request.scope, table.metadata.current_snapshot_id, files, origin),),
        wording=_CARRY_WORDING,
        columns=metadata.column_ids(source.schema()),
    )


def _find_chunk_commit(table: Table, chunk_id: str) -> ChunkCommit | None:
    commits = metadata.chunk_commits(table.metadata)
    return next((commit for commit in commits if commit.chunk_id == chunk_id), None)


def _end_of_window(table: Table, until_id: int | None, name: str) -> Snapshot | None:
    """Return the snapshot that a window of commits ends at: by default the head of main."""
    if until_id is None:
        return table.metadata.snapshot_by_name(MAIN_BRANCH)
    return metadata.find_snapshot(table.metadata, until_id, name)
