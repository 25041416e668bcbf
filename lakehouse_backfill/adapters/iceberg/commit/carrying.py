"""Taking over partitions of another shadow: its files, by metadata alone."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.catalog import load, translated
from lakehouse_backfill.adapters.iceberg.commit.conflicts import Verb
from lakehouse_backfill.adapters.iceberg.commit.intents import Intent, Part
from lakehouse_backfill.adapters.iceberg.commit.producer import fresh
from lakehouse_backfill.adapters.iceberg.commit.swapping import Swapper
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import (
    ancestors,
    column_ids,
    snapshot_in,
    summary_of,
)
from lakehouse_backfill.adapters.iceberg.names import (
    BASE_SNAPSHOT_ID,
    CHUNK_ID,
    EPOCH,
    PREFIX,
    RUN_ID,
)
from lakehouse_backfill.adapters.iceberg.patience import BUDGET_S
from lakehouse_backfill.core.runs import run_log
from lakehouse_backfill.domain.carrying import CarryRequest
from lakehouse_backfill.domain.publication import ChunkCommit
from lakehouse_backfill.errors import OutcomeUnknown, TargetChanged, Unsupported
from lakehouse_backfill.ports.carrying import Carrying
from lakehouse_backfill.ports.table_commits import SwapCommits

_VERB = Verb(
    "carried over", "readers see what they saw before; both shadows are kept", "stage it again"
)


class IcebergCarrying(Carrying):
    """Moves partitions between the shadows of one catalog."""

    def __init__(
        self, catalog: Catalog, budget_s: float = BUDGET_S, commits: SwapCommits | None = None
    ) -> None:
        """`commits` writes them where PyIceberg cannot."""
        self._catalog = catalog
        self._swapper = Swapper(catalog, budget_s, commits)

    def carry(self, request: CarryRequest) -> ChunkCommit:
        """Let a shadow hold the partitions as another one has them, in one commit.

        A commit of unknown outcome is looked for by the chunk's id when it is asked for again.
        Raises RunMoved, TargetChanged, Unsupported (no shadow of ours), OutcomeUnknown.
        """
        table = load(self._catalog, request.shadow)
        _require_epoch(table, request)
        landed = _landed(table, request.chunk_id)
        if landed is not None:
            return landed
        cache = ManifestCache()
        intent = self._intent(table, request, cache)
        try:
            self._swapper.run(intent, cache)
        except TargetChanged:
            # Fenced since it was loaded: then another process drives the run.
            _require_epoch(load(self._catalog, request.shadow), request)
            raise
        found = _landed(load(self._catalog, request.shadow), request.chunk_id)
        if found is None:
            raise OutcomeUnknown(
                f"{request.chunk_id} was committed to {request.shadow}, but is not in its log",
                state=_VERB.state,
                fix="run the step again: it looks before it writes",
            )
        return found

    def _intent(self, table: Table, request: CarryRequest, cache: ManifestCache) -> Intent:
        """Ask for the source's files of the partitions; they get new sequence numbers."""
        source = load(self._catalog, request.source)
        with translated():
            state = snapshot_in(source.metadata, request.source_snapshot_id, request.source)
            content = ScopedReader(source, request.scope, cache).in_scope(state)
        wanted = {path: fresh(entry) for path, entry in content.data.items()}
        return Intent(
            target=request.shadow,
            uuid=str(table.metadata.table_uuid),
            parts=(
                Part(
                    request.scope,
                    table.metadata.current_snapshot_id,
                    wanted,
                    (request.source, request.source_snapshot_id),
                ),
            ),
            token=f"{request.properties.get(RUN_ID, '')} {request.chunk_id}",
            tags={},
            properties={**request.properties, CHUNK_ID: request.chunk_id},
            verb=_VERB,
            columns=column_ids(source.schema()),
            sources=((request.source, request.source_snapshot_id),),
        )


def _require_epoch(table: Table, request: CarryRequest) -> None:
    properties = table.metadata.properties
    if BASE_SNAPSHOT_ID not in properties:
        raise Unsupported(f"{request.shadow} is not a shadow of ours", fix="stage the run again")
    held = int(properties.get(EPOCH, "0"))
    if held > request.epoch:
        raise run_log.overtaken(properties.get(RUN_ID, request.shadow), request.epoch, held)


def _landed(table: Table, chunk_id: str) -> ChunkCommit | None:
    metadata = table.metadata
    base = metadata.properties.get(BASE_SNAPSHOT_ID)
    for snapshot in ancestors(metadata, metadata.current_snapshot_id):
        summary = summary_of(snapshot)
        if str(snapshot.snapshot_id) == base:
            break
        if summary.get(CHUNK_ID) == chunk_id:
            return ChunkCommit(
                chunk_id=chunk_id,
                snapshot_id=snapshot.snapshot_id,
                added_rows=int(summary.get("added-records", "0")),
                properties={k: v for k, v in summary.items() if k.startswith(PREFIX)},
            )
    return None
