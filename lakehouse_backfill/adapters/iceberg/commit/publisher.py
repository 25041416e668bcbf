"""The Publisher port: adopt, revert, find; partitions carried over from an earlier shadow.

Taking over partitions of another shadow: its files, by metadata alone.

Metadata-only commits on a target: adopting a shadow's files, and putting partitions back.
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
    BASE_SNAPSHOT_PROPERTY,
    CHUNK_ID_PROPERTY,
    EPOCH_PROPERTY,
    PROPERTY_PREFIX,
    RUN_ID_PROPERTY,
    column_ids,
    find_publication_snapshot,
    find_snapshot,
    snapshot_ancestors,
    snapshot_summary,
)
from lakehouse_backfill.core.runs import event_log
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
    """Moves partitions between the shadows of one catalog."""

    def __init__(
        self,
        catalog: Catalog,
        budget_s: float = COMMIT_BUDGET_S,
        commits: SwapCommitter | None = None,
    ) -> None:
        """`commits` writes them where PyIceberg cannot."""
        self._catalog = catalog
        self._swapper = Swapper(catalog, budget_s, commits)

    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Let a shadow hold the partitions as another one has them, in one commit.

        A commit of unknown outcome is looked for by the chunk's id when it is asked for again.
        Raises RunMoved, TargetChanged, Unsupported (no shadow of ours), OutcomeUnknown.
        """
        table = load_table(self._catalog, request.shadow)
        _require_shadow_epoch(table, request)
        landed = _find_chunk_commit(table, request.chunk_id)
        if landed is not None:
            return landed
        cache = ManifestCache()
        intent = self._swap_request(table, request, cache)
        try:
            self._swapper.run(intent, cache)
        except TargetChanged:
            # Fenced since it was loaded: then another process drives the run.
            _require_shadow_epoch(load_table(self._catalog, request.shadow), request)
            raise
        found = _find_chunk_commit(load_table(self._catalog, request.shadow), request.chunk_id)
        if found is None:
            raise OutcomeUnknown(
                f"{request.chunk_id} was committed to {request.shadow}, but is not in its log",
                state=_CARRY_WORDING.state,
                fix="run the step again: it looks before it writes",
            )
        return found

    def _swap_request(
        self, table: Table, request: CarryRequest, cache: ManifestCache
    ) -> SwapRequest:
        """Ask for the source's files of the partitions; they get new sequence numbers."""
        source = load_table(self._catalog, request.source)
        with translate_errors():
            state = find_snapshot(source.metadata, request.source_snapshot_id, request.source)
            content = ScopedReader(source, request.scope, cache).scope_files(state)
        wanted = {path: without_sequence_numbers(entry) for path, entry in content.data.items()}
        return SwapRequest(
            target=request.shadow,
            uuid=str(table.metadata.table_uuid),
            parts=(
                SwapPart(
                    request.scope,
                    table.metadata.current_snapshot_id,
                    wanted,
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
    properties = table.metadata.properties
    if BASE_SNAPSHOT_PROPERTY not in properties:
        raise Unsupported(f"{request.shadow} is not a shadow of ours", fix="stage the run again")
    held = int(properties.get(EPOCH_PROPERTY, "0"))
    if held > request.epoch:
        raise event_log.overtaken_error(
            properties.get(RUN_ID_PROPERTY, request.shadow), request.epoch, held
        )


def _find_chunk_commit(table: Table, chunk_id: str) -> ChunkCommit | None:
    metadata = table.metadata
    base = metadata.properties.get(BASE_SNAPSHOT_PROPERTY)
    for snapshot in snapshot_ancestors(metadata, metadata.current_snapshot_id):
        summary = snapshot_summary(snapshot)
        if str(snapshot.snapshot_id) == base:
            break
        if summary.get(CHUNK_ID_PROPERTY) == chunk_id:
            return ChunkCommit(
                chunk_id=chunk_id,
                snapshot_id=snapshot.snapshot_id,
                added_rows=int(summary.get("added-records", "0")),
                properties={k: v for k, v in summary.items() if k.startswith(PROPERTY_PREFIX)},
            )
    return None


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
    """Publishes on the tables of one catalog; gives up on a busy table after `budget_s`."""

    def __init__(
        self,
        catalog: Catalog,
        budget_s: float = COMMIT_BUDGET_S,
        commits: SwapCommitter | None = None,
        settling: RowRewriteFinalizer | None = None,
    ) -> None:
        """`commits` writes them where PyIceberg cannot; what is inspected stays the same.

        `settling` finishes swaps by rows, whoever made them.
        """
        self._catalog = catalog
        self._finalizer = settling
        self._writes_rows = commits is not None and commits.writes_rows
        self._swapper = Swapper(catalog, budget_s, commits)

    def adopt(self, request: AdoptRequest) -> CommitResult:
        """Swap the shadow's files in. Only commits that touch the scope conflict.

        A token that has landed is given back as it is. Before anything is written the shadow must
        hold the base and every chunk, and share all files outside the scope with its base; what is
        adopted must exist. Raises TargetChanged, TooBusy, OutcomeUnknown, Unsupported,
        WriteForbidden, ChecksFailed, NotFound.
        """
        started = time.monotonic()
        target = load_table(self._catalog, request.target)
        done = self._find_and_finalise(request.target, target, request.token)
        if done is not None:
            return read_commit_result(request.target, done, time.monotonic() - started)
        cache = ManifestCache()
        candidate = ShadowCandidate(load_table(self._catalog, request.shadow), request, cache)
        with translate_errors():
            wanted, change = candidate.files_to_adopt(target), candidate.schema_evolution
        intent = SwapRequest(
            target=request.target,
            uuid=candidate.target_uuid,
            parts=(
                SwapPart(request.scope, request.base_snapshot_id, wanted, _shadow_source(request)),
            ),
            token=request.token,
            tags={str(name): tag for name, tag in request.tags.items()},
            properties=request.properties,
            wording=candidate.wording,
            columns=change.before if change else column_ids(candidate.schema),
            schema_evolution=change,
            sources=_existing_sources((request.shadow, request.shadow_snapshot_id)),
            operation=Operation(request.operation),
            spec_id=candidate.spec_id,
            is_frozen=request.is_frozen,
        )
        return self._run_swap(intent, cache)

    def prove(self, request: AdoptRequest) -> None:
        """Check the shadow as `adopt` does, before anything is reserved; raises what that would."""
        target, shadow = (
            load_table(self._catalog, request.target),
            load_table(self._catalog, request.shadow),
        )
        with translate_errors():
            ShadowCandidate(shadow, request, ManifestCache()).files_to_adopt(target)

    def revert(self, request: RevertRequest) -> CommitResult:
        """Put partitions back to earlier contents, with their original sequence numbers.

        Live commits to other partitions survive. Rewritten partitions get the files of their
        shadow. Raises TargetChanged when a commit changed the partitions since, Unsupported when a
        partition has to be rewritten and is not, NotFound when a file to bring back is gone.
        """
        started = time.monotonic()
        target = load_table(self._catalog, request.target)
        done = self._find_and_finalise(request.target, target, request.token)
        if done is not None:
            return read_commit_result(request.target, done, time.monotonic() - started)
        cache = ManifestCache()
        columns = None
        with translate_errors():
            returning = self._revert_planner(target, request.target, request.scope.field, cache)
            parts = returning.restored_parts(request)
            if request.rewritten is not None:
                shadow = load_table(self._catalog, request.rewritten.shadow)
                candidate = ShadowCandidate(
                    shadow, rewritten_adopt_request(request, request.rewritten), cache
                )
                parts += returning.rewritten_parts(request, candidate.files_to_adopt(target))
                columns = column_ids(candidate.schema)
        intent = SwapRequest(
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
        return self._run_swap(intent, cache)

    def rewrites(
        self, target: str, field: ScopeField, restores: tuple[PartitionRestore, ...]
    ) -> tuple[RequiredRewrite, ...]:
        """Say which partitions cannot go back by adding their files again, and why.

        Those whose rows delete files hid then, or may hide now; and all of a state that no tag of
        ours holds: an expiry deletes files that were removed and came again (pitfall 42).
        """
        table = load_table(self._catalog, target)
        with translate_errors():
            return self._revert_planner(table, target, field, ManifestCache()).required_rewrites(
                restores
            )

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Say which commit changed rows of the scope since the snapshot; compaction is none."""
        seen = self._read_window(target, scope, since_snapshot_id)
        with translate_errors():
            try:
                refuse_row_changes(*seen, _READ_WORDING)
            except TargetChanged as change:
                return change.problem
        return None

    def drifts(self, target: str, scope: Scope, since_snapshot_id: int | None) -> tuple[Drift, ...]:
        """Name the commits since the snapshot that changed rows of the scope, oldest first.

        Compactions are none. Empty when the partitions hold the same files under the same delete
        files. Raises TargetChanged when no commit can be named for what changed, NotFound.
        """
        seen = self._read_window(target, scope, since_snapshot_id)
        with translate_errors():
            return find_drifts(*seen, _READ_WORDING)

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
        """Look in the target for the commit of publication `token`; a found one took 0 seconds.

        With `settle=False` one by rows that was cut off is left as it is: nothing is written.
        """
        table = load_table_or_none(self._catalog, target)
        done = (
            None if table is None else self._find_and_finalise(target, table, token, settle=settle)
        )
        return None if done is None else read_commit_result(target, done, 0.0)

    def _run_swap(self, intent: SwapRequest, cache: ManifestCache) -> CommitResult:
        if intent.is_frozen and self._writes_rows:
            raise Unsupported(
                f"{intent.target} is written by Spark row by row, whose commit cannot be refused "
                "for commits of others to other partitions",
                state=intent.wording.state,
                fix="remove safety.freeze, or run the command with a Spark of its own: remove "
                "spark.remote from the profile",
            )
        started = time.monotonic()
        done = self._swapper.run(intent, cache)
        swap = read_commit_result(intent.target, done, time.monotonic() - started)
        self._finalise_row_rewrite(intent.target, done)
        return swap

    def _find_and_finalise(
        self, target: str, table: Table, token: str, *, settle: bool = True
    ) -> Snapshot | None:
        """Find what the token committed, and finish it."""
        done = find_publication_snapshot(table.metadata, token)
        if settle and done is not None:
            self._finalise_row_rewrite(target, done)
        return done

    def _finalise_row_rewrite(self, target: str, done: Snapshot) -> None:
        if self._finalizer is not None:
            self._finalizer.finalise(target, done)

    def _revert_planner(
        self, table: Table, name: str, field: ScopeField, cache: ManifestCache
    ) -> RevertPlanner:
        return RevertPlanner(table, name, field, cache, by_rows=self._writes_rows)


def _shadow_source(request: AdoptRequest) -> tuple[str, int] | None:
    number = request.shadow_snapshot_id
    return None if number is None else (request.shadow, number)


def _existing_sources(*sources: tuple[str, int | None]) -> tuple[tuple[str, int], ...]:
    return tuple((table, number) for table, number in sources if number is not None)


def _revert_sources(request: RevertRequest) -> tuple[tuple[str, int], ...]:
    """Give the snapshots that list what comes back, the rewritten partitions' shadow among them."""
    found = [(request.target, part.restore_snapshot_id) for part in request.restores]
    if request.rewritten is not None:
        found.append((request.rewritten.shadow, request.rewritten.shadow_snapshot_id))
    return _existing_sources(*found)
