"""Steps, dual reads, correction events; leases and retention items.

What is kept, for whom, why and until when; and what was let go.

How a result reaches readers other than all at once: in steps, after a comparison, as events.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import Field

from lakehouse_backfill.domain.contract import (
    CorrectionSink,
    Name,
    PartitionValue,
    SuiteRef,
    Text,
    Threshold,
)
from lakehouse_backfill.domain.serialization import Value, added_later

RetentionKind = Literal["shadow", "pin", "version", "tag", "fence", "control files"]


class PinLease(Value):
    """Beside each pin of a run: who holds it, why, and until when at least.

    The row is written before the tag, so that no tag of ours is without one, also when its run was
    cut off before it was stored.
    """

    table: str
    tag: str
    snapshot_id: int
    run_id: str
    product: str
    owner: str
    reason: str
    until: datetime
    action: Literal["grant", "end"] = "grant"
    at: datetime
    by: str


class RunFacts(Value):
    """What retention must know of a run. `ends`: when its lease does; None while it is open.

    `needs`: the shadows of others that an open run still takes chunks over from.
    """

    run_id: str
    product: str
    state: str
    target: str
    shadow: str
    owner: str
    reason: str
    ends: datetime | None
    needs: tuple[str, ...] = ()


class RetentionItem(Value):
    """One thing that is kept or let go, and why; `until` None: no end is known yet."""

    name: str
    kind: RetentionKind
    because: str
    product: str = ""
    owner: str = ""
    until: datetime | None = None
    table: str = ""
    snapshot_id: int | None = None
    run_id: str = ""
    version: int | None = None


class LeftoverFiles(Value):
    """Files of a shadow that was let go and that no table lists; `command`: what takes them away.

    No command while other shadows of the product may still use them.
    """

    shadow: str
    size_bytes: int
    location: str
    command: str | None


class ExpirationResult(Value):
    """What one commit did to a table: tags and snapshots out; tags that must stay, and why."""

    tags: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    kept: dict[str, str] = Field(default_factory=dict)


class OrphanFiles(Value):
    """Files of control tables that nothing reaches any more."""

    files: int = 0
    size_bytes: int = 0


class Progressive(Value):
    """Publish partition by partition; each step is checked before the next (U6)."""

    partitions_per_step: int = Field(1, ge=1, le=10_000, description="Partitions in one step.")
    by: Name | None = Field(
        None,
        description="Column whose partitions are the steps, e.g. the tenant; it must be the one "
        "that target.partitions names.",
    )
    order: Literal["ascending"] | tuple[PartitionValue, ...] = Field(
        "ascending",
        description="`ascending`, or the partitions that come first, in this order; the others "
        "follow in ascending order.",
    )
    pause_seconds: float = Field(
        0, ge=0, le=86_400, description="Seconds between the check of a step and the next step."
    )
    suites: tuple[SuiteRef, ...] = Field(
        (), description="Suites that each step must pass, on its rows as readers see them."
    )
    thresholds: tuple[Threshold, ...] = Field(
        (), description="Changes of a measure in the partitions of one step that halt the rollout."
    )


class DualRead(Value):
    """Readers compare old and new by their own query before the switch (U8)."""

    readers: tuple[Name, ...] = Field(
        min_length=1, description="Readers that must have compared exactly this candidate."
    )
    require: Literal["equal", "recorded"] = Field(
        "equal",
        description="`equal`: their results are equal, or a difference was accepted by name; "
        "`recorded`: that they compared is enough.",
    )


class ReaderQuery(Value):
    """A reader's question to the product: SQL over the relation `product`."""

    reader: Name
    sql: Text
    tolerance: float = 0.0


class TableState(Value):
    """A table at a snapshot; None: without rows."""

    table: str
    snapshot_id: int | None


class QueryAnswer(Value):
    """What a query gave: its number of rows, and a digest that does not depend on their order."""

    rows: int
    digest: str


class QueryComparison(Value):
    """A reader's query on the accepted version and on a candidate."""

    reader: str
    sql: str
    tolerance: float
    old: TableState
    new: TableState
    columns: tuple[str, ...]
    old_answer: QueryAnswer
    new_answer: QueryAnswer
    equal: bool
    #: Rows that only one side gave, the first few; as JSON holds them.
    only_old: tuple[dict[str, Any], ...] = ()
    only_new: tuple[dict[str, Any], ...] = ()
    by: str = ""
    at: datetime | None = None
    seconds: tuple[float, float] | None = added_later(
        None, "How long the query took on the accepted version and on the candidate."
    )


class DifferingRow(NamedTuple):
    """One row that differs, as plain JSON values; None on the side that lacks it."""

    partition: str | None
    key: Mapping[str, Any]
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None


class CorrectionEventsRequest(Value):
    """Write the events of one publication."""

    sink: CorrectionSink
    product: str
    run_id: str
    version: int
    reason_code: str
    token: str
    tag: str
    produced_at: datetime
    evidence_digest: str = added_later("", "Digest of the archive of what was accepted.")


class CompensationRequest(Value):
    """Take back, by reverse events, what publications wrote; `partitions` None: all of it."""

    table: str
    product: str
    tokens: tuple[str, ...]
    partitions: tuple[str, ...] | None
    by_run: str
    token: str
    tag: str
    produced_at: datetime
