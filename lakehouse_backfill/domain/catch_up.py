"""Revisions that follow live commits: drift, carried chunks, tombstones, erasures.

What is asked for when a shadow takes over partitions of another one.

What came to a table since a run, or an accepted version, read it.

Revisions that follow live data, and the rows that no run may bring back.

What a rollback rewrites: partitions whose files cannot simply come back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.serialization import Value


class CarryRequest(Value):
    """Let `shadow` hold `scope` as `source` does at a snapshot; `properties` go into the summary.

    `epoch` is the lease of the process that asks.
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

    `only_deletes`: rows only disappeared, as far as metadata tells: whole files went, or delete
    files came, and no data file was added. A copy-on-write delete adds files, so it is not told
    from an update.
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
    """A table that names rows to leave out, at a snapshot; product column -> its column."""

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
    """Everything that names rows which must not be in a product's partitions any more."""

    field: ScopeField
    tombstones: tuple[TombstonePin, ...] = ()
    erasures: tuple[Erasure, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is named."""
        return not self.tombstones and not self.erasures


class CarriedChunk(Value):
    """A chunk whose files are taken over from the shadow of an earlier revision.

    `run_id` computed it, from `inputs` (name -> snapshot id); rows and checksum are those that
    were accepted.
    """

    chunk_id: str
    run_id: str
    shadow_table: str
    shadow_snapshot_id: int
    rows: int
    checksum: str
    inputs: dict[str, int]


class CatchUp(Value):
    """Why and how a revision follows live data: only `drifted` partitions are made again.

    `of` is the run whose approval it carries, `attempt` counts 1, 2, 3 … over the revisions.
    Chunks in `carried` are what was accepted; those in `erased` are that without the rows that
    `erasures` or newer tombstones name. All other chunks are computed anew.
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
        """Give what is known of a chunk that is taken over as it is; None: it is not."""
        return next((item for item in self.carried if item.chunk_id == chunk_id), None)

    def erased_chunk(self, chunk_id: str) -> CarriedChunk | None:
        """Give what is known of a chunk that is taken over without some rows; None: it is not."""
        return next((item for item in self.erased if item.chunk_id == chunk_id), None)

    def origin(self, chunk_id: str) -> CarriedChunk | None:
        """Give who computed a chunk, and from what; None: this run did."""
        return self.carried_chunk(chunk_id) or self.erased_chunk(chunk_id)


class DeletedRows(Value):
    """Rows of an old state whose key a new state does not hold any more.

    `is_only_deletion`: every row of the new state stood in the old one. `samples` are some keys.
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

    `columns` gives for each of the shadow's columns the name that it had then; one that is not
    named came later, and is null.
    """

    chunk_id: str
    table: str
    snapshot_id: int | None
    shadow: str
    scope: Scope
    columns: tuple[tuple[str, str], ...]
    properties: dict[str, str]
    #: What names rows that do not come back.
    left_out: ExcludedRows | None = None
