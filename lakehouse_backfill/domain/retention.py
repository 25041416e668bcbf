"""What is kept and what expires: leases of pins, facts of runs, files that may be deleted."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from pydantic import Field

from lakehouse_backfill.domain.serialization import (
    Value,
)

RetentionKind = Literal["shadow", "pin", "version", "tag", "fence", "control files"]

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
