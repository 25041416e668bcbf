"""Run states and events, leases, the chunk ledger with its row counts, and lineage columns (D3)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal

from pydantic import Field

from lakehouse_backfill.domain.serialization import Value, added_later

Period = Literal["hour", "day", "month"]


class ChunkFacts(Value):
    """Counts over a chunk's stored rows.

    `rows` is by partition, without empty ones; `null_keys` is by key column, only those above zero;
    `duplicate_keys` counts the keys that occur more than once; `broken` the rows that break each of
    the rules that were given.
    """

    rows: dict[str, int]
    null_keys: dict[str, int]
    duplicate_keys: int
    broken: tuple[int, ...] = ()


#: Name and Iceberg type. Left out of content hashes and diffs, checked on their own.
LINEAGE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("produced_by_run_id", "string"),
    ("produced_by_transform", "string"),
    ("transform_version", "string"),
    ("input_snapshot_id", "long"),
    ("input_range_start", "timestamptz"),
    ("input_range_end", "timestamptz"),
    ("processing_mode", "string"),
    ("reference_data_version", "string"),
    ("restatement_reason", "string"),
    ("produced_at", "timestamptz"),
)

LINEAGE_NAMES: tuple[str, ...] = tuple(name for name, _ in LINEAGE_COLUMNS)

#: A row of a transform's output in which this column is not null is rejected for this reason.
REJECT_REASON: Final = "_reject_reason"


class RejectedRow(Value):
    """A row that a transform rejected: its key, and all of its columns."""

    reason: str
    key: dict[str, Any]
    record: dict[str, Any]


class Rejects(Value):
    """The rows of one chunk that its transform rejected.

    `rows` counts all of them, `reasons` by reason, the most frequent first; `records` are the
    first in the order of keys.
    """

    rows: int
    reasons: dict[str, int] = Field(default_factory=dict)
    records: tuple[RejectedRow, ...] = ()


class RunState(str, Enum):
    """The state of a run; `core.runs.lifecycle` holds the legal moves."""

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
    #: Published in steps: some are visible, and one failed its check or was refused.
    PUBLISH_HALTED = "publish_halted"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"


#: The detail of the end of a staging that names what it computed beyond the edges, by label.
EDGES_DETAIL = "edge_checksums"


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

    `driver` is the process that works on the run. Its lease carries the `epoch`, the number of the
    event that made it the driver. Its writes are refused once a later epoch exists (X9). After
    `lease_until` any process may take the run over.
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
    """The driver of a run, and until when no other process may take the run over unasked."""

    holder: str
    until: datetime


class ChunkRecord(Value):
    """One row of the chunk ledger: what one chunk read and wrote; times in seconds.

    A staged chunk that failed one of its checks is `failed`, with the reason in `problem`.
    `carried_from` is the run that computed it, if this run took its files over. `left_out_rows`
    counts computed rows that were left out because tombstones or deletions name them.
    `rejected_rows` counts those that the transform rejected, `reject_reasons` says how many for
    which reason; None: the transform rejects no rows by its declaration.
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
    rejected_rows: int | None = added_later(None, "Rows that the transform rejected.")
    reject_reasons: tuple[str, ...] = added_later((), "How many for which reason.")
    rejects_seal: str | None = added_later(
        None, "Seal over the chunk's rows in `reject_record`; null: none were stored with it."
    )
    pace: tuple[str, ...] = added_later(
        (), "What changed how many chunks are side by side since the row before, and why."
    )
    state: str | None = added_later(None, "The state that a stateful chunk left, as its text.")
    late_rows: int | None = added_later(None, "Rows of a stateful chunk's input that were late.")
    #: How the publish mode applied the job's rows; None: it does not count this.
    carried_rows: int | None = None
    stray_rows: int | None = None
    inserted_rows: int | None = None
    updated_rows: int | None = None
    deleted_rows: int | None = None
    ignored_rows: int | None = None


class RejectedCount(Value):
    """What the ledger says of a chunk's rejected rows: all of them, and the seal of those stored.

    `seal` is None where an older release wrote the row, or the chunk was carried over.
    """

    run_id: str
    chunk_id: str
    rows: int
    seal: str | None


class RejectedGroup(Value):
    """Stored rejected rows of one attempt at a chunk, with the seal over them as worked out now.

    `edited_key` is the key of the first row whose own seal is of another content.
    """

    run_id: str
    chunk_id: str
    rejected_at: datetime
    rows: int
    seal: str
    edited_key: str | None = None


#: In the summary of a chunk's commit, so that the counts survive a crash right after it.
_PREFIX = "lakehouse-backfill.counted."


class ChunkCounts(Value):
    """Row counts of one chunk, or of all; None: the publish mode does not count this.

    `carried_rows` come unchanged from the base. `stray_rows` are rows of the job inside the
    partitions that the row predicate does not name. The others count keys of a merge,
    `ignored_rows` the change rows without effect. `left_out_rows` are named by tombstones, or were
    deleted on the target since the run was pinned.
    """

    carried_rows: int | None = None
    stray_rows: int | None = None
    inserted_rows: int | None = None
    updated_rows: int | None = None
    deleted_rows: int | None = None
    ignored_rows: int | None = None
    left_out_rows: int | None = None

    @property
    def known(self) -> dict[str, int]:
        """The counts that are not None, by name."""
        return {name: count for name, count in self.model_dump().items() if count is not None}

    @property
    def properties(self) -> dict[str, str]:
        """The counts as properties of a snapshot."""
        return {f"{_PREFIX}{name}": str(count) for name, count in self.known.items()}

    @classmethod
    def from_properties(cls, summary: Mapping[str, str]) -> ChunkCounts:
        """Read the counts from the summary of a snapshot."""
        texts = {name: summary.get(f"{_PREFIX}{name}") for name in cls.model_fields}
        return cls(**{name: int(text) for name, text in texts.items() if text is not None})

    @classmethod
    def from_record(cls, record: ChunkRecord) -> ChunkCounts:
        """Read the counts of a row of the ledger."""
        return cls(**{name: getattr(record, name) for name in cls.model_fields})

    def __add__(self, other: ChunkCounts) -> ChunkCounts:
        own, added = self.known, other.known
        return ChunkCounts(**{name: own.get(name, 0) + added.get(name, 0) for name in own | added})


def format_duration(seconds: float | None) -> str:
    """Describe a duration: `0.4 s`, `12 s`, `5 min`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return "unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
