"""Judge the analysed plan of each chunk before it is written (D1, E3).

What the engine makes of the code shows what no reading of the code can: types, orders, which
columns of inputs each column is made of, and which tables are read. Tables are compared with the
inputs that the run declares. Reads without a version are judged as `unpinned_read`; a read at a
fixed version gives the same rows each time, and is refused all the same: what it reads is in no
lineage, and makes nothing stale.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lakehouse_backfill.core.guards.analysed_plan import find_in_plan, locate_facts
from lakehouse_backfill.core.guards.determinism import require_none_blocking, with_allowances
from lakehouse_backfill.core.guards.privacy.column_flow import (
    COPIED_COLUMNS,
    copied_columns,
    copies_of_run,
    require_declared_flow,
    restricted_flow,
)
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.errors import Blocked
from lakehouse_backfill.ports.compute import ComputePorts, PlanReads, TableRead

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


#: Evidence of a run whose output is made of restricted columns: which, by column of the output.
RESTRICTED_FLOW = "flow of restricted columns"
_NOTHING_WRITTEN = "no row was written; readers see what they saw before"
#: Evidence of a run in whose plans something was found, or couldn't be looked for.
DETERMINISM = "determinism"
NOT_LOOKED_AT = (
    "the analysed plan was not looked at: the engine doesn't give it (Spark Connect, or a plan too "
    "deep to write out); types, orders and reads that are put together at run time are not judged"
)


def find_in_chunk(
    text: str | None, plan: Plan, texts: Mapping[str, str]
) -> tuple[Finding, ...] | None:
    """Return what the analysed plan of a chunk shows, with the reasons that the manifest gives.

    `texts` are the files of the job, in which facts of the plan are located. None when the engine
    doesn't give the plan, whose text is None then.
    """
    manifest = plan.resolved.manifest
    if text is None:
        return None
    facts = find_in_plan(text)
    return with_allowances(locate_facts(facts, texts, manifest.transform), manifest)


@dataclass
class PlanJudge:
    """Judges the chunks of one staging; what is found is evidence."""

    context: Context
    compute: ComputePorts
    plan: Plan
    epoch: int
    #: Chunks may be computed side by side.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _judged: set[str] = field(default_factory=set)
    _recorded: set[Finding] = field(default_factory=set)
    _is_noted: bool = False
    _flow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _copied: dict[str, str] | None = None
    _unread: UnreadInputs = field(init=False)

    def __post_init__(self) -> None:
        self._unread = UnreadInputs(self.context, self.plan, self.epoch)

    def judge(self, chunk: Chunk) -> None:
        """Record what is found; raise for what neither contract nor manifest allows.

        Raises NonDeterministic, and Blocked where restricted columns travel to a lower class, or
        tables are read that the run does not declare.
        """
        with self._lock:
            if chunk.chunk_id in self._judged:
                return
            self._judged.add(chunk.chunk_id)
        # Without the lock: chunks are analysed side by side.
        text = self.compute.staging.analysed_plan(self.plan, chunk)
        reads = self.compute.staging.tables_read(self.plan, chunk)
        with self._lock:
            self._judge(chunk, text, reads)

    def _judge(self, chunk: Chunk, text: str | None, reads: PlanReads | None) -> None:
        self._judge_flow(text)
        self._record_copies(text)
        require_declared_reads(self.plan, reads, state=_NOTHING_WRITTEN)
        self._unread.add(reads)
        found = find_in_chunk(text, self.plan, self._texts)
        if found is None:
            self._note_not_looked_at()
            return
        if new := [one for one in found if one not in self._recorded]:
            self._recorded.update(new)
            findings = [one.model_dump(mode="json") for one in new]
            self._record({"chunk_id": chunk.chunk_id, "findings": findings})
        require_none_blocking(found, state=_NOTHING_WRITTEN)

    def finish(self) -> None:
        """Record what the judged chunks leave to say: inputs that none of them read."""
        self._unread.record()

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The files of the job; read once, however many chunks there are."""
        kept = job_code.archived_code(self.context, self.plan.code_of or self.plan.run_id)
        return {one["file"]: one["text"] for one in kept if one["text"] is not None}

    def _judge_flow(self, text: str | None) -> None:
        flow = dict(restricted_flow(self.plan.resolved, text))
        if flow and flow != self._flow:
            self._flow = flow
            document = {"columns": {name: list(origins) for name, origins in flow.items()}}
            self.context.evidence.record(self.plan.run_id, RESTRICTED_FLOW, document, self.epoch)
        require_declared_flow(self.plan.resolved, flow, state=_NOTHING_WRITTEN)

    def _record_copies(self, text: str | None) -> None:
        """Record what is a copy in this chunk and in all chunks that were judged before it."""
        if not self.plan.resolved.contract.masked_columns:
            return
        found, before = copied_columns(self.plan.resolved, text), self._copied
        if before is None:
            # A process that went on before this one has judged other chunks.
            before = copies_of_run(self.context, self.plan)
        if before is not None:
            found = {name: one for name, one in found.items() if before.get(name) == one}
        self._copied = found
        if found != before:
            document = {"columns": found}
            self.context.evidence.record(self.plan.run_id, COPIED_COLUMNS, document, self.epoch)

    def _note_not_looked_at(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._record({"findings": [], "note": NOT_LOOKED_AT})

    def _record(self, document: dict[str, object]) -> None:
        self.context.evidence.record(self.plan.run_id, DETERMINISM, document, self.epoch)
