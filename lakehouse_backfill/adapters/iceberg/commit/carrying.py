"""Taking over partitions of another shadow: its files, by metadata alone."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.commit.conflicts import ErrorWording
from lakehouse_backfill.adapters.iceberg.commit.intents import SwapPart, SwapRequest
from lakehouse_backfill.adapters.iceberg.commit.producer import without_sequence_numbers
from lakehouse_backfill.adapters.iceberg.commit.swapping import Swapper
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import (
    column_ids,
    find_snapshot,
    snapshot_ancestors,
    snapshot_summary,
)
from lakehouse_backfill.adapters.iceberg.names import (
    BASE_SNAPSHOT_PROPERTY,
    CHUNK_ID_PROPERTY,
    EPOCH_PROPERTY,
    PROPERTY_PREFIX,
    RUN_ID_PROPERTY,
)
from lakehouse_backfill.adapters.iceberg.patience import COMMIT_BUDGET_S
from lakehouse_backfill.core.runs import run_log
from lakehouse_backfill.domain.carrying import CarryRequest
from lakehouse_backfill.domain.publication import ChunkCommit
from lakehouse_backfill.errors import OutcomeUnknown, TargetChanged, Unsupported
from lakehouse_backfill.ports.carrying import Carrying
from lakehouse_backfill.ports.table_commits import SwapCommitter

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
        intent = self._intent(table, request, cache)
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

    def _intent(self, table: Table, request: CarryRequest, cache: ManifestCache) -> SwapRequest:
        """Ask for the source's files of the partitions; they get new sequence numbers."""
        source = load_table(self._catalog, request.source)
        with translate_errors():
            state = find_snapshot(source.metadata, request.source_snapshot_id, request.source)
            content = ScopedReader(source, request.scope, cache).in_scope(state)
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
            verb=_CARRY_WORDING,
            columns=column_ids(source.schema()),
            sources=((request.source, request.source_snapshot_id),),
        )


def _require_shadow_epoch(table: Table, request: CarryRequest) -> None:
    properties = table.metadata.properties
    if BASE_SNAPSHOT_PROPERTY not in properties:
        raise Unsupported(f"{request.shadow} is not a shadow of ours", fix="stage the run again")
    held = int(properties.get(EPOCH_PROPERTY, "0"))
    if held > request.epoch:
        raise run_log.overtaken_error(
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
