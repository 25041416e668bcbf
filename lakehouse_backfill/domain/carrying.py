"""What is asked for when a shadow takes over partitions of another one."""

from __future__ import annotations

from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.value import Value


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
