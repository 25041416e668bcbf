"""Rollout and retention values: steps, dual reads, correction events, leases, kept items."""

from __future__ import annotations

import re
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

#: What `try` makes a scratch table for, and the name of such a table.
TRIAL = "try"
TRIAL_TABLE = re.compile(rf".+__{TRIAL}_[0-9a-f]{{8}}")
#: How the table of a kept intermediate result is called; no run has such a shadow.
INTERMEDIATE_PREFIX = "lhb_intermediate_"
INTERMEDIATE_TABLE = re.compile(rf".+\.{INTERMEDIATE_PREFIX}[0-9a-f]{{32}}")
#: How the table of a state is called that a stateful job kept.
STATE_PREFIX = "lhb_state_"
STATE_TABLE = re.compile(rf".+\.{STATE_PREFIX}[0-9a-f]{{32}}")


def is_kept_result(table: str) -> bool:
    """Return whether a table is a kept intermediate result or state, by its name."""
    return bool(INTERMEDIATE_TABLE.fullmatch(table) or STATE_TABLE.fullmatch(table))


RetentionKind = Literal["shadow", "pin", "version", "tag", "fence", "control files"]


class PinLease(Value):
    """The lease of a run's pin: owner, reason, and the earliest end.

    The row is written before the tag, so every tag of ours has a row, even when its run was
    interrupted before it was stored.
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
    """The facts that retention needs of a run.

    `ends`: when its lease ends; None while the run is open. `needs`: shadows of other runs from
    which an open run still takes chunks over; `reads`: those that it reads, in a cascade.
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
    reads: tuple[str, ...] = ()


class RetentionItem(Value):
    """One item that is kept or removed, and why; `until` None: its end is not known yet."""

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


class StagedShadow(Value):
    """The dropped shadow of a run that was never published, as the run's log describes it.

    `size_bytes`: what its chunks wrote. `metadata_file` leads to all files of the shadow.
    """

    run_id: str
    product: str
    shadow: str
    target: str
    location: str
    metadata_file: str
    size_bytes: int


class StagedFiles(Value):
    """The files of a dropped shadow that no table reaches, in groups: the order of deletion.

    `held`: by table, how many of the shadow's files it lists.
    """

    groups: tuple[tuple[str, ...], ...]
    files: int
    size_bytes: int
    held: dict[str, int]


class DeletedFiles(Value):
    """What was deleted of a run that was never published; `kept_files` are listed by a table."""

    run_id: str
    product: str
    shadow: str
    files: int
    size_bytes: int
    kept_files: int


class LeftoverFiles(Value):
    """Files of a removed shadow that are not deleted, and why; `command` deletes orphans by hand.

    There is no command while other shadows of the product may still use the files.
    """

    shadow: str
    size_bytes: int
    location: str
    command: str | None
    run_id: str
    because: str
    fix: str


class ExpirationResult(Value):
    """The result of one expiry commit: removed tags and snapshots; kept tags, and why."""

    tags: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    kept: dict[str, str] = Field(default_factory=dict)


class OrphanFiles(Value):
    """Files of control tables that no snapshot references."""

    files: int = 0
    size_bytes: int = 0


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
