"""Revisions that follow live data, and the rows that no run may bring back."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain.drift import Drift
from lakehouse_backfill.domain.scope import ScopeField
from lakehouse_backfill.domain.value import Value


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
