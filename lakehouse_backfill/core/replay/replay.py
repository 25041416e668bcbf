"""The verb `replay`: the events of a pinned snapshot go through a handler, each exactly once.

Side effects, in order: 1 the ledgers of a commit that a cut-off replay left, and its tag, if it is
not continued · 2 the handler's table, if it does not exist · 3 a commit without rows that begins
the replay: it holds the snapshot and the selection · 4 the tag that keeps the snapshot · 5 a row of
`replay_job` · for each checkpoint: 6 one commit on the handler's table, with the rows of its events
and the replay's state · 7 its rows of `processed_event` · 8 a row of `replay_job` · at the end: 9 a
commit that marks the replay as complete · 10 the tag is dropped · 11 the last row of `replay_job`.
A replay that was cut off between any two of them is continued by the same command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lakehouse_backfill.core.replay.check import require_sound, require_versions
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.events import (
    AggregateState,
    EventFindings,
    EventStoreDeclaration,
    HandledRow,
    HandlerDeclaration,
    ProcessedEvent,
    ReplayCounts,
    ReplayJob,
    ReplayPosition,
    ReplayRequest,
    ReplayState,
    StoredEvent,
    new_replay_id,
    next_replay_state,
)
from lakehouse_backfill.errors import (
    BackfillError,
    Blocked,
    ConfigError,
    Conflict,
    NotFound,
    Unsupported,
)
from lakehouse_backfill.events import (
    AggregateEvent,
    HandledEvent,
    Handler,
    Upcasters,
    handle_event,
    instant_of,
    state_text,
)
from lakehouse_backfill.ports.events import EventReader, EventSet, HandlerTables, ReplayLedger
from lakehouse_backfill.ports.system import Clock, Journal, Progress
from lakehouse_backfill.ports.tables import Pins

_NOTHING_REPLAYED = "nothing was replayed"
_NOT_COMMITTED = "what was committed before stays; the events of this checkpoint were not handled"
_NO_STATE = AggregateState(sequence_num=-1, handled=0, state=None)


@dataclass(frozen=True)
class ReplayPorts:
    """What a replay works with."""

    reader: EventReader
    tables: HandlerTables
    ledger: ReplayLedger
    pins: Pins
    clock: Clock
    journal: Journal
    progress: Progress


@dataclass(frozen=True)
class ReplayHandler:
    """A declared handler with its code."""

    name: str
    declared: HandlerDeclaration
    function: Handler
    upcasters: Upcasters


@dataclass(frozen=True)
class ReplayOutcome:
    """What a replay has done; `state` is None when no event was left to handle."""

    findings: EventFindings
    snapshot_id: int
    state: ReplayState | None
    is_resumed: bool = False
    #: Events that this command has handled; the state counts those of all commands.
    handled: int = 0
    #: What the selection means for the states.
    notes: tuple[str, ...] = ()


def replay(
    ports: ReplayPorts,
    store: EventStoreDeclaration,
    handler: ReplayHandler,
    request: ReplayRequest,
) -> ReplayOutcome:
    """Handle the events of a request that the handler has not handled; go on with one cut off.

    Raises Blocked (events that are not consistent, or come too late), Conflict (another process
    replays), Unsupported.
    """
    found = own_state(ports, store, handler)
    cut_off = resumable(ports, store, handler, found, request)
    if found is not None:
        _settle(ports, handler.declared.table, found)
        if cut_off is None:
            # The same again for a replay that is complete: it may have been cut off right then.
            _finish(ports, found)
    request = cut_off.request if cut_off else request
    snapshot_id = cut_off.snapshot_id if cut_off else newest_snapshot(ports.reader, store)
    events = ports.reader.open(store, snapshot_id, request.aggregate)
    try:
        findings = events.findings()
        require_sound(store, findings)
        require_versions(store, handler.upcasters, findings)
        left = events.select(
            request, ports.tables.handled(handler.declared.table, handler.declared.version)
        )
        _require_in_order(handler, events)
        _require_unchanged_ledger(handler, events)
        if cut_off and left > cut_off.total - cut_off.counts.processed:
            # Rows of it were deleted: what stands before its position is not handled any more.
            _finish(ports, cut_off)
            cut_off = None
        notes = selection_notes(events, request)
        if not left and cut_off is None:
            return ReplayOutcome(findings, snapshot_id, None, notes=notes)
        steps = _Steps(ports, store, handler, events)
        state = cut_off or steps.begin(found, request, snapshot_id, left)
        state = steps.run(state)
        is_resumed = cut_off is not None
        return ReplayOutcome(findings, snapshot_id, state, is_resumed, steps.handled, notes)
    finally:
        events.close()


class _Steps:
    """The commits of one replay, each conditional on the one before it."""

    def __init__(
        self,
        ports: ReplayPorts,
        store: EventStoreDeclaration,
        handler: ReplayHandler,
        events: EventSet,
    ) -> None:
        self._ports = ports
        self._store = store
        self._handler = handler
        self._events = events
        self.handled = 0

    def begin(
        self, before: ReplayState | None, request: ReplayRequest, snapshot_id: int, left: int
    ) -> ReplayState:
        """Commit that the replay begins; the state after it."""
        self._ports.tables.ensure(self._handler.declared)
        now = self._ports.clock.now()
        name, version = self._handler.name, self._handler.declared.version
        first = ReplayState(
            replay_id=new_replay_id(self._store.events, name, request, now),
            store=self._store.events,
            table=self._store.table,
            handler=name,
            version=version,
            request=request,
            snapshot_id=snapshot_id,
            total=left,
            selections={**(before.selections if before else {}), version: request.event_types},
            started_at=now,
            updated_at=now,
            token=before.token if before else "",
            step=before.step if before else 0,
            lineage=before.lineage if before else uuid4().hex,
        )
        state = next_replay_state(first)
        self._ports.tables.commit(self._handler.declared.table, (), state)
        return state

    def run(self, state: ReplayState) -> ReplayState:
        """Handle all events after the position of a state; the state of the complete replay."""
        ports, size = self._ports, self._handler.declared.checkpoint_events
        ports.pins.pin(self._store.table, state.snapshot_id, state.replay_id)
        ports.ledger.report(_job(state, "running"))
        ports.progress.start(f"replaying {self._store.events}", state.total, "events")
        ports.progress.advance(state.counts.processed, was_done=True)
        try:
            for batch in self._events.batches(state.position, size):
                state = self._checkpoint(state, batch)
        except BackfillError:
            # Not for a commit of another process: the job is no longer this one's to describe. What
            # stopped the replay may also stop this; its own error counts.
            with suppress(BackfillError):
                found = ports.tables.state(self._handler.declared.table)
                if found is not None and found.token == state.token:
                    ports.ledger.report(_job(state, "failed"))
            raise
        finally:
            ports.progress.finish()
        state = next_replay_state(state, is_complete=True, updated_at=ports.clock.now())
        ports.tables.commit(self._handler.declared.table, (), state)
        _finish(ports, state)
        return state

    def _checkpoint(self, state: ReplayState, batch: Sequence[StoredEvent]) -> ReplayState:
        states = self._events.states(sorted({one.aggregate_id for one in batch}))
        rows, after = self._handle(batch, states)
        last = batch[-1]
        state = next_replay_state(
            state,
            counts=add_outcomes(state.counts, [row.outcome for row in rows]),
            position=ReplayPosition(last.rank, last.sequence_num),
            updated_at=self._ports.clock.now(),
        )
        self._ports.tables.commit(self._handler.declared.table, rows, state)
        self._events.keep_states(after)
        self.handled += len(rows)
        _record(self._ports, state, rows)
        self._ports.ledger.report(_job(state, "running"))
        self._ports.progress.advance(len(rows))
        self._ports.journal.bind(processing_mode=state.mode).log(
            "replayed", store=state.store, handler=state.ledger_name, replay=state.replay_id,
            step=state.step, events=len(rows),
        )  # fmt: skip
        return state

    def _handle(
        self, batch: Sequence[StoredEvent], before: Mapping[str, AggregateState]
    ) -> tuple[list[HandledRow], dict[str, AggregateState]]:
        """Return the rows of events, and the states after them."""
        every = self._handler.declared.state_every
        last = {one.aggregate_id: number for number, one in enumerate(batch)}
        states = {
            name: AggregateState(one.sequence_num, one.handled, json.loads(one.state))
            for name, one in before.items()
        }
        rows, after = [], {}
        for number, one in enumerate(batch):
            name = one.aggregate_id
            old = states.get(name, _NO_STATE)
            with failure_named(self._handler, one.event_id, _NOT_COMMITTED):
                made = handle_stored(self._handler, old.state, one)
            new = states[name] = AggregateState(one.sequence_num, old.handled + 1, made.state)
            text = None
            if last[name] == number or new.handled % every == 0:
                text = state_text(made.state, one.event_id)
            if last[name] == number and text is not None:
                after[name] = new._replace(state=text)
            rows.append(_row(one, made, new.handled, text))
        return rows, after


def _row(event: StoredEvent, made: HandledEvent, handled: int, state: str | None) -> HandledRow:
    # What a handler says may hold what no text of a table can.
    reason = made.reason and made.reason.encode("utf-8", "replace").decode()
    return HandledRow(
        event_id=event.event_id,
        aggregate_id=event.aggregate_id,
        sequence_num=event.sequence_num,
        outcome=made.outcome,
        reason=reason,
        suppressed=canonical_json(list(made.suppressed)) if made.suppressed else None,
        handled=handled,
        state=state,
        content_hash=event.content_hash,
    )


@contextmanager
def failure_named(handler: ReplayHandler, event_id: str, state: str) -> Iterator[None]:
    """Name the event at which the code of a handler, or an upcaster before it, fails."""
    try:
        yield
    except BackfillError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the handler {handler.name} failed at event {event_id!r}: {type(error).__name__}",
            state=state,
            fix=f"mend {handler.declared.function} or the upcasters, or let them raise "
            "RejectEvent; then give the command again",
        ) from error


def handle_stored(handler: ReplayHandler, state: Any, stored: StoredEvent) -> HandledEvent:
    """Return what a handler makes of a stored event; one that cannot be decoded is rejected."""
    if stored.unreadable is not None:
        return HandledEvent("rejected", state, stored.unreadable)
    return handle_event(handler.function, state, event_of(stored), handler.upcasters)


def event_of(stored: StoredEvent) -> AggregateEvent:
    """Return a stored event as handlers get it; its payload is still text."""
    return AggregateEvent(
        event_id=stored.event_id,
        aggregate_id=stored.aggregate_id,
        event_type=stored.event_type,
        sequence_num=stored.sequence_num,
        occurred_at=instant_of(stored.occurred_us),
        payload=stored.payload,
        version=stored.version,
        aggregate_type=stored.aggregate_type,
        correlation_id=stored.correlation_id,
        causation_id=stored.causation_id,
    )


def add_outcomes(counts: ReplayCounts, outcomes: Sequence[str]) -> ReplayCounts:
    """Return the counts with more outcomes."""
    names = ReplayCounts.model_fields
    return ReplayCounts(**{name: getattr(counts, name) + outcomes.count(name) for name in names})


def newest_snapshot(reader: EventReader, store: EventStoreDeclaration) -> int:
    """Return the newest snapshot of a store; raises Blocked for an empty table."""
    snapshot_id = reader.head(store)
    if snapshot_id is None:
        raise Blocked(
            f"{store.table} has no snapshot: there is no event",
            state=_NOTHING_REPLAYED,
            fix="land the events first",
        )
    return snapshot_id


def own_state(
    ports: ReplayPorts, store: EventStoreDeclaration, handler: ReplayHandler
) -> ReplayState | None:
    """Return the state of the handler's newest replay; raise Unsupported for another's table."""
    state = ports.tables.state(handler.declared.table)
    if state is not None and (state.store, state.handler) != (store.events, handler.name):
        raise Unsupported(
            f"{handler.declared.table} is the table of the handler {state.handler} of "
            f"{state.store}",
            state=_NOTHING_REPLAYED,
            fix=f"name another table in catalog/events/{store.events}.yaml",
        )
    return state


def resumable(
    ports: ReplayPorts,
    store: EventStoreDeclaration,
    handler: ReplayHandler,
    state: ReplayState | None,
    request: ReplayRequest,
) -> ReplayState | None:
    """Return the replay that was cut off and goes on; None when a new one begins.

    Raises Conflict when another selection was cut off, or other event types were replayed before:
    a state is made of all events of the selected types.
    """
    version = handler.declared.version
    if state is None:
        return None
    is_open = state.version == version and not state.is_complete
    if is_open and ports.reader.holds(store, state.snapshot_id):
        if request not in (ReplayRequest(), state.request):
            raise Conflict(
                f"{state.replay_id}, which was cut off, has another selection",
                state="what it has committed stays",
                fix=f"lakehouse-backfill replay {store.events} --handler {handler.name}: it is "
                "continued without a selection",
            )
        return state
    selected = state.selections.get(version)
    if selected is not None and selected != request.event_types:
        raise Conflict(
            f"{handler.name} {version} has replayed "
            f"{', '.join(selected) or 'all event types'} before: its states are made of "
            "these",
            state=_NOTHING_REPLAYED,
            fix="select the same types, or give the handler a new version",
        )
    return None


def _require_in_order(handler: ReplayHandler, events: EventSet) -> None:
    """Raise Blocked when an event would be handled after a later one of its aggregate."""
    count, named = events.behind()
    if count:
        raise Blocked(
            f"{named}: {handler.name} {handler.declared.version} has handled later events of the "
            "same aggregates",
            state=_NOTHING_REPLAYED,
            fix="give the handler a new version: it then replays all events in order",
        )


def selection_notes(events: EventSet, request: ReplayRequest) -> tuple[str, ...]:
    """Return what a selection by time leaves out, and whether there is anything in it."""
    selected, behind = events.selected(request)
    if not selected:
        return ("no event of the table is in the selection",)
    if not behind:
        return ()
    return (
        f"{behind} events were handled without earlier ones of their aggregate, which the time "
        "range leaves out: their states lack these, and a replay that selects them is refused",
    )


def _require_unchanged_ledger(handler: ReplayHandler, events: EventSet) -> None:
    """Raise Blocked when the rows of a handler do not fit the events that it would go on with."""
    if faults := events.ledger_faults():
        raise Blocked(
            f"{handler.name} {handler.declared.version} cannot go on: {'; '.join(faults)}",
            state=_NOTHING_REPLAYED,
            fix="correct the events, or give the handler a new version: it then replays all events",
        )


def _settle(ports: ReplayPorts, table: str, state: ReplayState) -> None:
    """Record what the newest commit of a replay has handled, unless it is recorded."""
    if not state.is_complete and not ports.ledger.has(state):
        rows = tuple(ports.tables.step_rows(table, state))
        _record(ports, state, rows)


def _record(ports: ReplayPorts, state: ReplayState, rows: Sequence[HandledRow]) -> None:
    ports.ledger.record(
        state,
        [
            ProcessedEvent(
                handler=state.ledger_name,
                event_id=row.event_id,
                outcome=row.outcome,
                run_id=state.replay_id,
                processed_at=state.updated_at,
                source=state.store,
                detail=row.reason or row.suppressed,
            )
            for row in rows
        ],
    )


def _finish(ports: ReplayPorts, state: ReplayState) -> None:
    """Drop the tag of a replay that is complete, or not continued; record how it ended."""
    with suppress(NotFound):  # the tag went with the table
        ports.pins.unpin(state.table, state.replay_id)
    ports.ledger.report(_job(state, "done" if state.is_complete else "failed"))


def _job(state: ReplayState, status: str) -> ReplayJob:
    counts = state.counts
    return ReplayJob(
        replay_id=state.replay_id,
        run_id=state.replay_id,
        topic=state.table,
        start_offsets=canonical_json(state.request),
        end_offsets="{}",
        position=canonical_json(state.position) if state.position else None,
        status=status,
        events=counts.processed,
        suppressed=counts.suppressed,
        updated_at=state.updated_at,
        handler=state.ledger_name,
        snapshot_id=state.snapshot_id,
        total=state.total,
        skipped=counts.skipped,
        rejected=counts.rejected,
    )
