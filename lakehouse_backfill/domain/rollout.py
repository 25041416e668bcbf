"""Rollouts: publication in steps, dual reads of readers, and events of corrections."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import Field

from lakehouse_backfill.domain.catch_up import TableState
from lakehouse_backfill.domain.contract import SuiteRef, Threshold
from lakehouse_backfill.domain.guards.outside import CorrectionSink
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.serialization import (
    ColumnName,
    Name,
    PartitionValue,
    Text,
    Value,
    added_later,
)


class Progressive(Value):
    """Publish partition by partition; each step is checked before the next (U6)."""

    partitions_per_step: int = Field(1, ge=1, le=10_000, description="Partitions in one step.")
    by: ColumnName | None = Field(
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
    """A reader's query on the product: SQL over the relation `product`."""

    reader: Name
    sql: Text
    tolerance: float = 0.0


class QueryAnswer(Value):
    """The result of a query: its number of rows, and a digest that ignores their order."""

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
    #: The first rows that only one side has, as JSON values.
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


def redact_row(row: DifferingRow, redaction: Redaction) -> DifferingRow:
    """Return a differing row without the values of redacted columns."""
    if not redaction:
        return row
    old, new = (None if side is None else redaction.row(side) for side in (row.old, row.new))
    return DifferingRow(row.partition, redaction.row(row.key), old, new)


class CorrectionEventsRequest(Value):
    """Write the events of one publication."""

    sink: CorrectionSink
    reason_code: str
    mode: str
    publication: Publication


class CompensationRequest(Value):
    """Reverse by events what publications wrote; `partitions` None: all of it.

    `publication` is the rollback.
    """

    table: str
    tokens: tuple[str, ...]
    partitions: tuple[str, ...] | None
    by_run: str
    #: Of the run that is taken back.
    mode: str
    publication: Publication
