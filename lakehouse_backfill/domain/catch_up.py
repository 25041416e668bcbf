"""Revisions that follow live commits: drift, carried chunks, tombstones, erasures, restores."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.serialization import Value


class CarryRequest(Value):
    """A request to add `scope` of `source` at a snapshot to `shadow` by metadata.

    `properties` go into the snapshot's summary. `epoch` is the lease of the requesting process.
    """

    shadow: str
    source: str
    source_snapshot_id: int
    scope: Scope
    chunk_id: str
    epoch: int
    properties: dict[str, str]


class TableState(Value):
    """A table at a snapshot; None: without rows."""

    table: str
    snapshot_id: int | None


class Drift(Value):
    """One commit that changed rows of a scope; `partitions` are those of the scope that it changed.

    `only_deletes`: rows were only removed, as far as metadata shows: whole files were removed or
    delete files added, and no data file was added. A copy-on-write delete adds files, so it counts
    as an update.
    """

    snapshot_id: int
    operation: str
    writer: str
    at: datetime
    partitions: tuple[str, ...]
    only_deletes: bool

    def __str__(self) -> str:
        at = self.at.isoformat(timespec="seconds")
        return f"snapshot {self.snapshot_id} ({self.operation} by {self.writer} at {at})"


class TombstonePin(Value):
    """A pinned table that names rows to leave out; `columns`: product column -> its column."""

    table: str
    snapshot_id: int | None
    columns: dict[str, str]


class Erasure(Value):
    """Rows that were deleted from `table` between two snapshots: keys that only the first has."""

    table: str
    before_snapshot_id: int
    after_snapshot_id: int
    partitions: tuple[str, ...]
    key: tuple[str, ...]


class ExcludedRows(Value):
    """The tombstones and erasures that name rows excluded from a product's partitions."""

    field: ScopeField
    tombstones: tuple[TombstonePin, ...] = ()
    erasures: tuple[Erasure, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no rows are named."""
        return not self.tombstones and not self.erasures


class CarriedChunk(Value):
    """A chunk whose files are taken over from the shadow of an earlier revision.

    `run_id` computed it from `inputs` (name -> snapshot id); `rows` and `checksum` are the accepted
    ones.
    """

    chunk_id: str
    run_id: str
    shadow_table: str
    shadow_snapshot_id: int
    rows: int
    checksum: str
    inputs: dict[str, int]


class CatchUp(Value):
    """Why and how a revision follows live data: only `drifted` partitions are computed again.

    `of` is the run whose approval it carries; `attempt` counts 1, 2, 3 … over the revisions. Chunks
    in `carried` are the accepted ones. Chunks in `erased` are accepted ones without the rows that
    `erasures` or newer tombstones name. All other chunks are computed again.
    """

    of: str
    attempt: int
    drifts: tuple[Drift, ...]
    drifted: tuple[str, ...]
    accepted_digest: str
    carried: tuple[CarriedChunk, ...] = ()
    erased: tuple[CarriedChunk, ...] = ()
    erasures: tuple[Erasure, ...] = ()

    def carried_chunk(self, chunk_id: str) -> CarriedChunk | None:
        """Return the source of a chunk that is taken over unchanged, or None."""
        return next((chunk for chunk in self.carried if chunk.chunk_id == chunk_id), None)

    def erased_chunk(self, chunk_id: str) -> CarriedChunk | None:
        """Return the source of a chunk that is taken over without some rows, or None."""
        return next((chunk for chunk in self.erased if chunk.chunk_id == chunk_id), None)

    def origin(self, chunk_id: str) -> CarriedChunk | None:
        """Return the run that computed a chunk, and its inputs; None: this run."""
        return self.carried_chunk(chunk_id) or self.erased_chunk(chunk_id)


class DeletedRows(Value):
    """Rows of an old state whose key is missing from a new state.

    `is_only_deletion`: every row of the new state is in the old one. `samples` are some keys.
    """

    rows: int
    partitions: tuple[str, ...]
    samples: tuple[dict[str, Any], ...]
    is_only_deletion: bool


class TombstonedRows(Value):
    """Rows of a state that tombstones or erasures name, and the partitions that hold them."""

    rows: int
    partitions: tuple[str, ...]


class RestoreChunk(Value):
    """Partitions of a shadow that get their rows of an earlier snapshot; None: no rows.

    `columns` holds, for each of the shadow's columns, the name that it had then. A column that is
    not listed was added later and is null.
    """

    chunk_id: str
    table: str
    snapshot_id: int | None
    shadow: str
    scope: Scope
    columns: tuple[tuple[str, str], ...]
    properties: dict[str, str]
    #: Rows that are not restored.
    left_out: ExcludedRows | None = None
