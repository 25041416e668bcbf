"""The tables that the plan of a chunk reads, compared with the inputs that the run declares.

Reads without a version are judged as `unpinned_read`. A read at a fixed version gives the same rows
each time, and is refused all the same: what it reads is in no lineage, and makes nothing stale.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.errors import Blocked
from lakehouse_backfill.ports.compute import PlanReads, TableRead

#: Evidence of a run whose job never read an input that it declares, as far as plans show.
UNREAD_INPUTS = "unread inputs"


def undeclared_reads(pins: Iterable[SourcePin], reads: PlanReads) -> tuple[TableRead, ...]:
    """Return the reads at a version that is the snapshot of no input."""
    declared = {(pin.table.casefold(), str(pin.snapshot_id)) for pin in pins}
    return tuple(
        read
        for read in reads.tables
        if read.version and (read.table.casefold(), read.version) not in declared
    )


def unread_inputs(pins: Iterable[SourcePin], reads: PlanReads) -> frozenset[str]:
    """Return the names of inputs that a plan does not read; empty where it does not show all."""
    if not reads.is_whole:
        return frozenset()
    read = {(one.table.casefold(), one.version) for one in reads.tables}
    return frozenset(
        pin.name for pin in pins if (pin.table.casefold(), str(pin.snapshot_id)) not in read
    )


def require_declared_reads(plan: Plan, reads: PlanReads | None, *, state: str) -> None:
    """Raise Blocked, naming each, for tables that a job reads beside its declared inputs."""
    found = undeclared_reads(plan.resolved.sources, reads) if reads else ()
    if found:
        named = ", ".join(f"{read.table} at {read.version}" for read in found)
        raise Blocked(
            f"the job reads what the run does not declare: {named}",
            state=state,
            fix=f"declare it under sources or reference_data in {plan.manifest_file}, name it in "
            "`inputs` of the transform, read it from that parameter, and plan again",
        )


class UnreadInputs:
    """The inputs that no chunk of a staging has read so far; what stays is a note."""

    def __init__(self, context: Context, plan: Plan, epoch: int) -> None:
        self._context, self._plan, self._epoch = context, plan, epoch
        self._left: frozenset[str] | None = None

    def add(self, reads: PlanReads | None) -> None:
        """Take what the plan of a chunk reads; without a plan nothing can be said."""
        unread = unread_inputs(self._plan.resolved.sources, reads) if reads else frozenset[str]()
        self._left = unread if self._left is None else self._left & unread

    def record(self) -> None:
        """Record which inputs were never read, if any, and say so."""
        if not self._left:
            return
        names = sorted(self._left)
        document = {"inputs": names, "note": f"declared and never read: {', '.join(names)}"}
        self._context.evidence.record(self._plan.run_id, UNREAD_INPUTS, document, self._epoch)
        self._context.progress.say(f"the job read no row of {', '.join(names)}, which it declares")
