"""How a result reaches readers other than all at once: in steps, after a comparison, as events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import Field

from lakehouse_backfill.domain.declared import (
    Name,
    PartitionValue,
    SuiteRef,
    TableName,
    Text,
    Threshold,
)
from lakehouse_backfill.domain.value import Value, added_later


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


class CorrectionSink(Value):
    """Where correction events go, and how a changed row is told (U9)."""

    table: TableName = Field(description="Table of events; created when it does not exist.")
    as_: Literal["correction", "retraction"] = Field(
        "correction",
        alias="as",
        description="`correction`: one event for each differing key; `retraction`: a retraction "
        "of the old row and an addition of the new one.",
    )
    topic: Text | None = Field(
        None, description="A topic as sink: refused, as a live topic is not guarded yet."
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
