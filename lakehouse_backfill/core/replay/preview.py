"""What a replay would meet, without a change: the events, and which of them it would handle."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.replay.replay import (
    ReplayHandler,
    ReplayPorts,
    newest_snapshot,
    own_state,
    resumable,
    selection_notes,
)
from lakehouse_backfill.domain.sources.events import (
    EventFindings,
    EventStoreDeclaration,
    ReplayRequest,
)


@dataclass(frozen=True)
class EventCheck:
    """What the events of a snapshot are like, and which of them a replay would handle."""

    snapshot_id: int
    findings: EventFindings
    #: Events of the selection; those that the handler has not handled (None: no handler).
    selected: int
    left: int | None
    #: What stops the replay beside the findings.
    faults: tuple[str, ...]
    notes: tuple[str, ...]


def check_events(
    ports: ReplayPorts,
    store: EventStoreDeclaration,
    request: ReplayRequest,
    handler: ReplayHandler | None = None,
) -> EventCheck:
    """Return what a replay of a request would meet; nothing is changed.

    A replay of the handler that was cut off is looked at as it would go on: with its snapshot and
    selection. Raises Conflict, Unsupported as the replay itself.
    """
    cut_off, handled = None, None
    if handler is not None:
        found = own_state(ports, store, handler)
        cut_off = resumable(ports, store, handler, found, request)
        handled = ports.tables.handled(handler.declared.table, handler.declared.version)
    request = cut_off.request if cut_off else request
    snapshot_id = cut_off.snapshot_id if cut_off else newest_snapshot(ports.reader, store)
    events = ports.reader.open(store, snapshot_id, request.aggregate)
    try:
        findings = events.findings()
        left = events.select(request, handled)
        count, named = events.behind()
        late = (f"{named}: later events of the same aggregates were handled",) if count else ()
        return EventCheck(
            snapshot_id=snapshot_id,
            findings=findings,
            selected=events.selected(request)[0],
            left=None if handler is None else left,
            faults=() if handler is None else (*late, *events.ledger_faults()),
            notes=selection_notes(events, request),
        )
    finally:
        events.close()
