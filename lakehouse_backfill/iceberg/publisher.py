"""Metadata-only commits on a target: adopting a shadow's files, and putting partitions back."""

from __future__ import annotations

import time

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lakehouse_backfill.errors import NotFound, TargetChanged
from lakehouse_backfill.iceberg.candidate import Candidate
from lakehouse_backfill.iceberg.catalog import load, translated
from lakehouse_backfill.iceberg.conflicts import Verb, Window, refuse_changes
from lakehouse_backfill.iceberg.manifests import Live, ManifestCache, ScopedReader
from lakehouse_backfill.iceberg.metadata import column_ids, landed, snapshot_in
from lakehouse_backfill.iceberg.patience import BUDGET_S
from lakehouse_backfill.iceberg.swapping import Intent, Part, Swapper, swap_of
from lakehouse_backfill.model.publication import AdoptRequest, Restore, RevertRequest, Swap
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.ports.lake import Publisher

_ROLLBACK = Verb(
    "rolled back",
    "nothing was rolled back; readers see what they saw before",
    "restate the partitions on top of what came: "
    "lakehouse-backfill new PRODUCT --from P --to P --reason TEXT",
)
_READING = Verb("read as accepted", "the table holds later live writes", "restate it again")


class IcebergPublisher(Publisher):
    """Publishes on the tables of one catalog; gives up on a busy table after `budget_s`."""

    def __init__(self, catalog: Catalog, budget_s: float = BUDGET_S) -> None:
        self._catalog = catalog
        self._swapper = Swapper(catalog, budget_s)

    def adopt(self, request: AdoptRequest) -> Swap:
        """Swap the shadow's files in. Only commits that touch the scope conflict.

        A token that has landed is given back as it is. Before anything is written the shadow must
        hold the base and every chunk, and share all files outside the scope with its base; what is
        adopted must exist. Raises TargetChanged, TooBusy, OutcomeUnknown, Unsupported,
        WriteForbidden, ChecksFailed, NotFound.
        """
        started = time.monotonic()
        target = load(self._catalog, request.target)
        done = landed(target.metadata, request.token)
        if done is not None:
            return swap_of(request.target, done, time.monotonic() - started)
        cache = ManifestCache()
        candidate = Candidate(load(self._catalog, request.shadow), request, cache)
        with translated():
            wanted = candidate.files(target)
        intent = Intent(
            target=request.target,
            uuid=candidate.target_uuid,
            parts=(Part(request.scope, request.base_snapshot_id, wanted),),
            token=request.token,
            tags={str(name): tag for name, tag in request.tags.items()},
            properties=request.properties,
            verb=candidate.verb,
            columns=column_ids(candidate.schema),
        )
        return self._swapper.run(intent, cache)

    def revert(self, request: RevertRequest) -> Swap:
        """Put partitions back to earlier contents, with their original sequence numbers.

        Live commits to other partitions survive. Raises TargetChanged when a commit changed the
        partitions since, Unsupported when delete files hid rows of the content to restore.
        """
        started = time.monotonic()
        target = load(self._catalog, request.target)
        done = landed(target.metadata, request.token)
        if done is not None:
            return swap_of(request.target, done, time.monotonic() - started)
        cache = ManifestCache()
        properties = {key: str(value) for key, value in request.properties.items()}
        with translated():
            parts = tuple(self._restore(target, request, part, cache) for part in request.restores)
        intent = Intent(
            target=request.target,
            uuid=str(target.metadata.table_uuid),
            parts=parts,
            token=request.token,
            tags={str(name): tag for name, tag in request.tags.items()},
            properties=properties,
            verb=_ROLLBACK,
        )
        return self._swapper.run(intent, cache)

    def changes(self, target: str, scope: Scope, since_snapshot_id: int) -> str | None:
        """Say which commit changed rows of the scope since the snapshot; compaction is none."""
        table = load(self._catalog, target)
        reader = ScopedReader(table, scope, ManifestCache())
        head = table.metadata.current_snapshot()
        window = Window(target, table.metadata, since_snapshot_id, head)
        with translated():
            then = reader.in_scope(snapshot_in(table.metadata, since_snapshot_id, target))
            now = reader.in_scope(head) if head else {}
            try:
                refuse_changes(window, reader, then, now, _READING)
            except TargetChanged as change:
                return change.problem
        return None

    def find(self, target: str, token: str) -> Swap | None:
        """Look in the target for the commit of publication `token`; a found one took 0 seconds."""
        try:
            metadata = load(self._catalog, target).metadata
        except NotFound as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            return None
        done = landed(metadata, token)
        return None if done is None else swap_of(target, done, 0.0)

    def _restore(
        self, target: Table, request: RevertRequest, restore: Restore, cache: ManifestCache
    ) -> Part:
        """Find the files to bring back; their entries keep their sequence numbers."""
        scope = Scope(field=request.scope.field, partitions=restore.partitions)
        wanted: Live = {}
        if restore.restore_snapshot_id is not None:
            state = snapshot_in(target.metadata, restore.restore_snapshot_id, request.target)
            wanted = ScopedReader(target, scope, cache).in_scope(state)
        return Part(scope, restore.since_snapshot_id, wanted)
