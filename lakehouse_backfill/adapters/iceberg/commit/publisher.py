"""Metadata-only commits of shadows and targets: adopt, revert, find, and carry-over of chunks.

Carry-over lets one shadow list the files that another shadow has for the same partitions.
"""

from __future__ import annotations

import time

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_backfill.adapters.iceberg.catalog import (
    COMMIT_BUDGET_S,
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.commit.candidate import ShadowCandidate
from lakehouse_backfill.adapters.iceberg.commit.conflicts import (
    CommitWindow,
    ErrorWording,
    find_drifts,
    refuse_row_changes,
)
from lakehouse_backfill.adapters.iceberg.commit.revert import RevertPlanner, rewritten_adopt_request
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import without_sequence_numbers
from lakehouse_backfill.adapters.iceberg.commit.swap import (
    SwapPart,
    Swapper,
    SwapRequest,
    read_commit_result,
)
from lakehouse_backfill.adapters.iceberg.commit.writers import RowRewriteFinalizer
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader, ScopeFiles
from lakehouse_backfill.adapters.iceberg.metadata import (
    CHUNK_ID_PROPERTY,
    RUN_ID_PROPERTY,
    chunk_commits,
    column_ids,
    fenced_epoch,
    find_publication_snapshot,
    find_snapshot,
)
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.domain.catch_up import CarryRequest, Drift
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import (
    AdoptRequest,
    ChunkCommit,
    CommitResult,
    PartitionRestore,
    RequiredRewrite,
    RevertRequest,
)
from lakehouse_backfill.errors import OutcomeUnknown, TargetChanged, Unsupported
from lakehouse_backfill.ports.table_writer import Carrying, SwapCommitter
from lakehouse_backfill.ports.tables import Publisher

_CARRY_WORDING = ErrorWording(
    "carried over", "readers see what they saw before; both shadows are kept", "stage it again"
)


class IcebergChunkCarrier(Carrying):
    """Carries partitions over from one shadow to another in one catalog."""

    def __init__(
        self,
        catalog: Catalog,
        budget_s: float = COMMIT_BUDGET_S,
        writers: TableWriters | None = None,
    ) -> None:
        """Use `writers` for shadows that PyIceberg cannot write."""
        self._catalog = catalog
        self._writers = writers
        self._swapper = Swapper(catalog, budget_s)

    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Make the shadow hold the partitions as the source shadow has them, in one commit.

        A repeated call first looks for the commit of this chunk id, so that a commit of unknown
        outcome is found. Raises RunMoved, TargetChanged, Unsupported (no shadow of ours),
        OutcomeUnknown.
        """
        table = load_table(self._catalog, request.shadow)
        _require_shadow_epoch(table, request)
        previous = _find_chunk_commit(table, request.chunk_id)
        if previous is not None:
            return previous
        cache = ManifestCache()
        commits = self._writers.swap_committer(request.shadow) if self._writers else None
        swap = self._swap_request(table, request, cache)
        try:
            self._swapper.run(swap, cache, commits)
        except TargetChanged:
            # If the shadow was fenced since it was loaded, another process drives the run.
            _require_shadow_epoch(load_table(self._catalog, request.shadow), request)
            raise
        committed = _find_chunk_commit(load_table(self._catalog, request.shadow), request.chunk_id)
        if committed is None:
            raise OutcomeUnknown(
                f"{request.chunk_id} was committed to {request.shadow}, but is not in its log",
                state=_CARRY_WORDING.state,
                fix="run the step again: it looks before it writes",
            )
        return committed

    def _swap_request(
        self, table: Table, request: CarryRequest, cache: ManifestCache
    ) -> SwapRequest:
        """Request the source's files of the partitions; they get new sequence numbers."""
        source = load_table(self._catalog, request.source)
        with translate_errors():
            state = find_snapshot(source.metadata, request.source_snapshot_id, request.source)
            content = ScopedReader(source, request.scope, cache).scope_files(state)
        files = {path: without_sequence_numbers(entry) for path, entry in content.data.items()}
        return SwapRequest(
            target=request.shadow,
            uuid=str(table.metadata.table_uuid),
            parts=(
                SwapPart(
                    request.scope,
                    table.metadata.current_snapshot_id,
                    files,
                    (request.source, request.source_snapshot_id),
                ),
            ),
            token=f"{request.properties.get(RUN_ID_PROPERTY, '')} {request.chunk_id}",
            tags={},
            properties={**request.properties, CHUNK_ID_PROPERTY: request.chunk_id},
            wording=_CARRY_WORDING,
            columns=column_ids(source.schema()),
            sources=((request.source, request.source_snapshot_id),),
        )


def _require_shadow_epoch(table: Table, request: CarryRequest) -> None:
    fenced_epoch(request.shadow, table.metadata, request.epoch, "stage the run again")


def _find_chunk_commit(table: Table, chunk_id: str) -> ChunkCommit | None:
    commits = chunk_commits(table.metadata)
    return next((commit for commit in commits if commit.chunk_id == chunk_id), None)


_ROLLBACK_WORDING = ErrorWording(
    "rolled back",
    "nothing was rolled back; readers see what they saw before",
    "restate the partitions on top of what came: "
    "lakehouse-backfill new PRODUCT --from P --to P --reason TEXT",
)
_READ_WORDING = ErrorWording(
    "read as accepted", "the table holds later live writes", "restate it again"
)


class IcebergPublisher(Publisher):
    """Publishes on the tables of one catalog; raises TooBusy after `budget_s` on a busy table."""

    def __init__(
        self,
        catalog: Catalog,
        budget_s: float = COMMIT_BUDGET_S,
        writers: TableWriters | None = None,
    ) -> None:
        """Use `writers` for tables that PyIceberg cannot write; inspection is the same.

        They also finalise row rewrites of any process.
        """
        self._catalog = catalog
        self._writers = writers
        self._swapper = Swapper(catalog, budget_s)

    def adopt(self, request: AdoptRequest) -> CommitResult:
        """Replace the partitions' files by the shadow's; only commits to the scope conflict.

        If a commit with this token exists, its result is returned and nothing is written. Before a
        write the shadow must hold the base and every chunk, and share all files outside the scope
        with its base; the adopted files must exist. Raises TargetChanged, TooBusy, OutcomeUnknown,
        Unsupported, WriteForbidden, ChecksFailed, NotFound.
        """
        started = time.monotonic()
        target = load_table(self._catalog, request.target)
        published = self._find_and_finalise(request.target, target, request.token)
        if published is not None:
            return read_commit_result(request.target, published, time.monotonic() - started)
        cache = ManifestCache()
        commits = self._committer(request.target, request.scope)
        candidate = ShadowCandidate(load_table(self._catalog, request.shadow), request, cache)
        with translate_errors():
            files, evolution = candidate.files_to_adopt(target), candidate.schema_evolution
        swap = SwapRequest(
            target=request.target,
            uuid=candidate.target_uuid,
            parts=(
                SwapPart(request.scope, request.base_snapshot_id, files, _shadow_source(request)),
            ),
            token=request.token,
            tags={str(name): tag for name, tag in request.tags.items()},
            properties=request.properties,
            wording=candidate.wording,
            columns=evolution.before if evolution else column_ids(candidate.schema),
            schema_evolution=evolution,
            sources=_existing_sources((request.shadow, request.shadow_snapshot_id)),
            operation=Operation(request.operation),
            spec_id=candidate.spec_id,
            is_frozen=request.is_frozen,
        )
        return self._run_swap(swap, cache, commits)

    def prove(self, request: AdoptRequest) -> None:
        """Check the shadow as `adopt` does, without a reservation; raises the same errors."""
        target, shadow = (
            load_table(self._catalog, request.target),
            load_table(self._catalog, request.shadow),
        )
        with translate_errors():
            ShadowCandidate(shadow, request, ManifestCache()).files_to_adopt(target)

    def revert(self, request: RevertRequest) -> CommitResult:
        """Restore partitions to earlier contents, with their original sequence numbers.

        Live commits to other partitions survive. Rewritten partitions get the files of their
        shadow. Raises TargetChanged when a commit changed the partitions since, Unsupported when a
        partition needs a rewrite and has none, NotFound when a file to restore is missing.
        """
        started = time.monotonic()
        target = load_table(self._catalog, request.target)
        published = self._find_and_finalise(request.target, target, request.token)
        if published is not None:
            return read_commit_result(request.target, published, time.monotonic() - started)
        cache = ManifestCache()
        columns = None
        commits = self._committer(request.target, request.scope)
        with translate_errors():
            planner = _revert_planner(target, request.target, request.scope.field, cache, commits)
            parts = planner.restored_parts(request)
            if request.rewritten is not None:
                shadow = load_table(self._catalog, request.rewritten.shadow)
                candidate = ShadowCandidate(
                    shadow, rewritten_adopt_request(request, request.rewritten), cache
                )
                parts += planner.rewritten_parts(request, candidate.files_to_adopt(target))
                columns = column_ids(candidate.schema)
        swap = SwapRequest(
            target=request.target,
            uuid=str(target.metadata.table_uuid),
            parts=parts,
            token=request.token,
            tags={str(name): tag for name, tag in request.tags.items()},
            properties={key: str(value) for key, value in request.properties.items()},
            wording=_ROLLBACK_WORDING,
            sources=_revert_sources(request),
            columns=columns,
        )
        return self._run_swap(swap, cache, commits)

    def rewrites(
        self, target: str, field: ScopeField, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Return the partitions that cannot be restored by re-adding their files, with the reason.

        These are partitions whose rows delete files hid then or may hide now, and all partitions of
        a state that none of our tags holds: an expiry deletes files that were removed and re-added
        (pitfall 42).
        """
        table = load_table(self._catalog, target)
        labels = tuple(label for restore in restores for label in restore.partitions)
        commits = self._committer(target, Scope(field=field, partitions=labels) if labels else None)
        with translate_errors():
            planner = _revert_planner(table, target, field, ManifestCache(), commits)
            return planner.required_rewrites(restores)

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Return which commit changed rows of the scope since then; compaction does not count."""
        window = self._read_window(target, scope, since_snapshot_id)
        with translate_errors():
            try:
                refuse_row_changes(*window, _READ_WORDING)
            except TargetChanged as change:
                return change.problem
        return None

    def drifts(self, target: str, scope: Scope, since_snapshot_id: int | None) -> tuple[Drift, ...]:
        """List the commits since the snapshot that changed rows of the scope, oldest first.

        Compactions do not count. The result is empty when the partitions hold the same files under
        the same delete files. Raises TargetChanged when the change cannot be attributed to a
        commit, NotFound.
        """
        window = self._read_window(target, scope, since_snapshot_id)
        with translate_errors():
            return find_drifts(*window, _READ_WORDING)

    def _read_window(
        self, target: str, scope: Scope, since_id: int | None
    ) -> tuple[CommitWindow, ScopedReader, ScopeFiles, ScopeFiles]:
        """Read the scope at the snapshot and at the head."""
        table = load_table(self._catalog, target)
        reader = ScopedReader(table, scope, ManifestCache())
        head = table.metadata.snapshot_by_name(MAIN_BRANCH)
        with translate_errors():
            since = None if since_id is None else find_snapshot(table.metadata, since_id, target)
            then, now = reader.scope_files(since), reader.scope_files(head)
        return CommitWindow(target, table.metadata, since_id, head), reader, then, now

    def find(self, target: str, token: str, *, settle: bool = True) -> CommitResult | None:
        """Look in the target for the commit of publication `token`; its result has 0 seconds.

        With `settle=False` an unfinished row rewrite is left as it is: nothing is written.
        """
        table = load_table_or_none(self._catalog, target)
        published = (
            None if table is None else self._find_and_finalise(target, table, token, settle=settle)
        )
        return None if published is None else read_commit_result(target, published, 0.0)

    def _committer(self, table: str, scope: Scope | None) -> SwapCommitter | None:
        return self._writers.swap_committer(table, scope) if self._writers else None

    def _run_swap(
        self, intent: SwapRequest, cache: ManifestCache, commits: SwapCommitter | None
    ) -> CommitResult:
        if intent.is_frozen and _writes_rows(commits):
            raise Unsupported(
                f"{intent.target} is written by Spark row by row, whose commit cannot be refused "
                "for commits of others to other partitions",
                state=intent.wording.state,
                fix="remove safety.freeze, or run the command with a Spark of its own: remove "
                "spark.remote from the profile",
            )
        started = time.monotonic()
        published = self._swapper.run(intent, cache, commits)
        result = read_commit_result(intent.target, published, time.monotonic() - started)
        self._finalise_row_rewrite(intent.target, published)
        return result

    def _find_and_finalise(
        self, target: str, table: Table, token: str, *, settle: bool = True
    ) -> Snapshot | None:
        """Find the snapshot that the token committed, and finalise it."""
        published = find_publication_snapshot(table.metadata, token)
        if settle and published is not None:
            self._finalise_row_rewrite(target, published)
        return published

    def _finalise_row_rewrite(self, target: str, done: Snapshot) -> None:
        if self._writers is not None:
            RowRewriteFinalizer(self._catalog, self._writers).finalise(target, done)


def _writes_rows(commits: SwapCommitter | None) -> bool:
    return commits is not None and commits.writes_rows


def _revert_planner(
    table: Table,
    name: str,
    field: ScopeField,
    cache: ManifestCache,
    commits: SwapCommitter | None,
) -> RevertPlanner:
    return RevertPlanner(table, name, field, cache, by_rows=_writes_rows(commits))


def _shadow_source(request: AdoptRequest) -> tuple[str, int] | None:
    number = request.shadow_snapshot_id
    return None if number is None else (request.shadow, number)


def _existing_sources(*sources: tuple[str, int | None]) -> tuple[tuple[str, int], ...]:
    return tuple((table, number) for table, number in sources if number is not None)


def _revert_sources(request: RevertRequest) -> tuple[tuple[str, int], ...]:
    """Return the snapshots that list the restored files, including the shadow of the rewrite."""
    sources = [(request.target, part.restore_snapshot_id) for part in request.restores]
    if request.rewritten is not None:
        sources.append((request.rewritten.shadow, request.rewritten.shadow_snapshot_id))
    return _existing_sources(*sources)
