"""The verb `land`: what a source holds becomes rows of its raw table, each exactly once.

Side effects, in order: 1 what an interrupted landing left over: its rows of the ledger, its
archive · 2 the raw table, if it does not exist · for each checkpoint: 3 data files that no reader
sees · 4 one commit on the raw table, with its rows and the landing's state · 5 its rows of the
ledger · 6 its archive · at the end: 7 one commit that marks the landing as complete and tags its
snapshot. A landing that was cut off between any two of them is continued by the same command.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.domain.sources.landings import (
    FileDelivery,
    LandedSnapshot,
    LandingRequest,
    LandingState,
    LandingSurvey,
    new_landing_id,
    next_state,
)
from lakehouse_backfill.errors import Blocked, Conflict, RejectedInput, Unsupported
from lakehouse_backfill.ports.sources import (
    ImportLedger,
    RawTables,
    SourceCheckpoint,
    SourceReader,
    StagedRows,
)
from lakehouse_backfill.ports.system import Clock, Journal, Progress

_NOTHING_LANDED = "nothing was landed"


@dataclass(frozen=True)
class LandingPorts:
    """What a landing works with."""

    raw_tables: RawTables
    imports: ImportLedger
    reader: SourceReader
    clock: Clock
    journal: Journal
    progress: Progress


@dataclass(frozen=True)
class LandingOutcome:
    """What a landing has done; `state` is None when there was nothing to land."""

    survey: LandingSurvey
    snapshot: LandedSnapshot
    state: LandingState | None
    deliveries: tuple[FileDelivery, ...] = ()
    is_resumed: bool = False
    #: Bad parts that the ledger names already: nothing new is recorded of them.
    still_rejected: tuple[str, ...] = ()


def preview_landing(
    ports: LandingPorts, source: SourceDeclaration, request: LandingRequest
) -> LandingSurvey:
    """Return what `land` would read; nothing is changed."""
    state = own_state(ports, source)
    request = _resumed_request(state, request)
    known = ports.imports.deliveries(source.source)
    if state is not None and not state.is_complete:
        known = (*known, *(one for one in state.deliveries if one not in known))
    return ports.reader.survey(request, known)


def land(ports: LandingPorts, source: SourceDeclaration, request: LandingRequest) -> LandingOutcome:
    """Land what is new in the source; go on with a landing that was cut off.

    Raises Blocked (the source is incomplete), Conflict (another process lands it), SourceDown.
    """
    state = own_state(ports, source)
    request = _resumed_request(state, request)
    is_resumed = state is not None and not state.is_complete
    if state is not None and is_resumed:
        _settle(ports, state)
    known = ports.imports.deliveries(source.source)
    _require_raw_table(source, state, known)
    survey = ports.reader.survey(request, known)
    began = state if state is not None and is_resumed else _new_state(ports, source, request, state)
    steps = _Steps(ports, source, began)
    parts = sum(part.action != "skip" for part in survey.parts), "parts"
    ports.progress.start(f"landing {source.source}", *(survey.progress or parts))
    try:
        for checkpoint in ports.reader.checkpoints(survey, began):
            steps.take(checkpoint)
    finally:
        ports.progress.finish()
    if not is_resumed and steps.state is began:
        pinned = ports.raw_tables.pinned(source.table, state.landing_id if state else "")
        return LandingOutcome(survey, pinned, None, still_rejected=tuple(steps.still_rejected))
    snapshot = steps.seal()
    return LandingOutcome(
        survey, snapshot, steps.state, tuple(steps.deliveries), is_resumed,
        tuple(steps.still_rejected),
    )  # fmt: skip


class _Steps:
    """The commits of one landing, each conditional on the one before it."""

    def __init__(self, ports: LandingPorts, source: SourceDeclaration, state: LandingState) -> None:
        self.state = state
        self.deliveries: list[FileDelivery] = list(state.deliveries)
        self.still_rejected: list[str] = []
        self._ports = ports
        self._source = source
        self._is_table_there = False

    def take(self, checkpoint: SourceCheckpoint) -> None:
        """Land one checkpoint; parts that are bad are rejected, each as a whole."""
        self._ensure()
        staged: list[StagedRows] = []
        deliveries = list(checkpoint.deliveries)
        for part in checkpoint.parts:
            try:
                rows = self._ports.raw_tables.stage(self._source.table, part.batches(), self.state)
            except RejectedInput as fault:
                found = part.rejected(fault.problem)
                self.still_rejected += [fault.problem] if found is None else []
            else:
                staged.append(rows)
                found = part.landed(rows.rows)
            deliveries += [found] if found is not None else []
        parts = len(checkpoint.parts) + len(checkpoint.deliveries)
        self._ports.progress.advance(
            parts if checkpoint.progress is None else checkpoint.progress,
            sum(one.rows for one in staged),
        )
        if not (staged or deliveries or checkpoint.position != self.state.position):
            return
        landed = sum(one.rows for one in staged)
        state = self._next(
            position=checkpoint.position,
            rows=self.state.rows + landed,
            rejected=self.state.rejected + sum(one.status == "rejected" for one in deliveries),
            deliveries=tuple(deliveries),
        )
        replaces = self._replaced(checkpoint, deliveries)
        self._ports.raw_tables.commit(
            self._source.table, tuple(staged), state, replaces, checkpoint.schemas
        )
        self.state = state
        self.deliveries += deliveries
        _settle(self._ports, state)
        self._ports.journal.bind(processing_mode=state.mode).log(
            "landed", source=self._source.source, landing=state.landing_id, rows=landed,
            step=state.step,
        )  # fmt: skip

    def seal(self) -> LandedSnapshot:
        """Mark the landing as complete and pin its snapshot."""
        self._ensure()
        state = self._next(is_complete=True, deliveries=())
        self.state = state
        return self._ports.raw_tables.seal(self._source.table, state, self._source.keep_days)

    def _replaced(
        self, checkpoint: SourceCheckpoint, deliveries: list[FileDelivery]
    ) -> tuple[str, ...]:
        """Return the files whose rows are replaced: not those of a file that was rejected now."""
        landed = {one.file_id for one in deliveries if one.is_landed}
        return tuple(file for file in checkpoint.replaces if file in landed)

    def _next(self, **changes: object) -> LandingState:
        return next_state(self.state, **changes)

    def _ensure(self) -> None:
        if not self._is_table_there:
            self._ports.raw_tables.ensure(self._source)
            self._is_table_there = True


def _settle(ports: LandingPorts, state: LandingState) -> None:
    """Do what follows a commit: its rows of the ledger, then its archive."""
    if state.deliveries:
        ports.imports.record(state.deliveries)
    ports.reader.finish(state)


def own_state(ports: LandingPorts, source: SourceDeclaration) -> LandingState | None:
    state = ports.raw_tables.state(source.table)
    if state is not None and state.source != source.source:
        raise Unsupported(
            f"{source.table} is the raw table of the source {state.source}",
            state=_NOTHING_LANDED,
            fix=f"name another table in catalog/sources/{source.source}.yaml",
        )
    return state


def _resumed_request(state: LandingState | None, request: LandingRequest) -> LandingRequest:
    if state is None or state.is_complete:
        return request
    if request not in (LandingRequest(), state.request):
        raise Conflict(
            f"{state.landing_id}, which was cut off, has another range",
            state="what it has committed stays",
            fix=f"lakehouse-backfill land {state.source}: it is continued without --from and --to",
        )
    return state.request


def _new_state(
    ports: LandingPorts,
    source: SourceDeclaration,
    request: LandingRequest,
    before: LandingState | None,
) -> LandingState:
    """Return the state of a landing that begins on the state of the one before it."""
    now = ports.clock.now()
    return LandingState(
        landing_id=new_landing_id(source.source, request, now),
        source=source.source,
        request=request,
        position=before.position if before else {},
        started_at=now,
        token=before.token if before else "",
    )


def _require_raw_table(
    source: SourceDeclaration, state: LandingState | None, known: tuple[FileDelivery, ...]
) -> None:
    """Raise Blocked when the ledger knows landings that the raw table has not: it was replaced."""
    landed = sum(one.is_landed and one.accepted_run_id is None for one in known)
    newest = next((one for one in reversed(known) if one.accepted_run_id is None), None)
    if state is not None and newest is not None and newest.landing_id != state.landing_id:
        raise Blocked(
            f"the newest landing of {source.table} is {state.landing_id}, and that of the ledger "
            f"{newest.landing_id}: the table was set back to older metadata, or another process "
            "lands the source",
            state=_NOTHING_LANDED,
            fix="give the command again; if it is refused again, register the table's newest "
            "metadata file",
        )
    if state is None and landed:
        raise Blocked(
            f"the ledger names {landed} landed files of {source.source}, and {source.table} has no "
            "landing: the table was dropped, or the declaration names another one",
            state=_NOTHING_LANDED,
            fix="register the table's newest metadata file again, or declare the files as a source "
            "of another name",
        )
