"""A run: its states, the events that moved it, and the chunk ledger."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any, Literal

from pydantic import Field

from lakehouse_backfill.domain.value import Value


class RunState(str, Enum):
    """Where a run stands; the legal moves are in `rules.lifecycle`."""

    DRAFT = "draft"
    PLANNED = "planned"
    APPROVED = "approved"
    STAGING = "staging"
    STAGED = "staged"
    VALIDATED = "validated"
    ACCEPTED = "accepted"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    HALTED = "halted"
    #: Published in steps: some are visible, and one did not pass its check, or was refused.
    PUBLISH_HALTED = "publish_halted"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"


class Event(Value):
    """One entry of a run's log: a move from one state to another, or a note (equal states).

    `hash` seals the event and, by `previous`, every event of the run before it (V4); both are
    empty until the event is written.
    """

    run_id: str
    seq: int
    at: datetime
    actor: str
    verb: str
    from_state: RunState
    to_state: RunState
    mode: str
    detail: dict[str, Any] = Field(default_factory=dict)
    product: str = ""
    driver: str | None = None
    epoch: int = 0
    previous: str = ""
    hash: str = ""


class RunStatus(Value):
    """The newest state of a run; `seq` is the number of its last event, `head` that event's hash.

    A process that works on the run is its `driver`. Its lease carries the `epoch`, the number of
    the event that made it the driver: what it writes is refused once a later epoch exists (X9).
    Past `lease_until` anybody may take the run over.
    """

    run_id: str
    product: str
    state: RunState
    seq: int
    at: datetime
    driver: str | None = None
    epoch: int = 0
    lease_until: datetime | None = None
    head: str = ""


class Lease(Value):
    """Who works on a run, and until when nobody else may take it over unasked."""

    holder: str
    until: datetime


class ChunkRecord(Value):
    """One row of the chunk ledger: what one chunk read and wrote; times in seconds.

    A chunk that is staged, but failed one of its checks, is `failed` and says why in `problem`.
    `carried_from` is the run that computed it, if this one took its files over. `left_out_rows`
    counts rows that were computed, and left out as tombstones or deletions name them.
    """

    run_id: str
    chunk_id: str
    partitions: tuple[str, ...]
    status: Literal["done", "failed"]
    input_rows: int
    output_rows: int
    outside_rows: int
    checksum: str
    seconds: float
    snapshot_id: int | None
    finished_at: datetime
    recovered: bool = False
    epoch: int = 0
    problem: str = ""
    carried_from: str = ""
    left_out_rows: int | None = None
    #: What the publish mode made of the job's rows; None: it does not count this.
    carried_rows: int | None = None
    stray_rows: int | None = None
    inserted_rows: int | None = None
    updated_rows: int | None = None
    deleted_rows: int | None = None
    ignored_rows: int | None = None
