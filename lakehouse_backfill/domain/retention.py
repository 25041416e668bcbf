"""What is kept, for whom, why and until when; and what was let go."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from lakehouse_backfill.domain.value import Value

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
