"""The verb `rebuild`: the state of one aggregate, from its newest kept state and what follows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakehouse_backfill.core.replay.check import require_versions
from lakehouse_backfill.core.replay.replay import (
    ReplayHandler,
    ReplayPorts,
    failure_named,
    handle_stored,
    own_state,
)
from lakehouse_backfill.domain.sources.events import (
    AggregateEvents,
    AggregateState,
    EventFindings,
    EventStoreDeclaration,
    ReplayState,
)
from lakehouse_backfill.errors import NotFound, RejectedInput, Unsupported


@dataclass(frozen=True)
class RebuiltState:
    """The state of an aggregate after its newest event, and what was read for it."""

    snapshot_id: int
    state: Any
    sequence_num: int
    #: Sequence number of the kept state that it was computed from; None: from the first event.
    based_on: int | None
    events: int
    rejected: int
    files_read: int
    files_total: int


def rebuild(
    ports: ReplayPorts,
    store: EventStoreDeclaration,
    handler: ReplayHandler,
    aggregate: str,
    good_before: datetime | None = None,
) -> RebuiltState:
    """Compute the state of an aggregate as of the newest snapshot; nothing is written.

    A kept state is used only if it was made of all events of the aggregate up to it and, with
    `good_before`, if all of these occurred before that instant; without such a state it is computed
    from the first event on. Raises NotFound, RejectedInput when its events are not consistent,
    Unsupported.
    """
    snapshot_id = ports.reader.head(store)
    if snapshot_id is None:
        raise NotFound(f"{store.table} has no event", fix="land the events first")
    below = None
    if good_before is not None:
        below = ports.reader.first_since(store, snapshot_id, aggregate, good_before)
    base = _base(ports, store, handler, aggregate, below)
    after = store.first_sequence - 1 if base is None else base.sequence_num
    found = ports.reader.aggregate_events(store, snapshot_id, aggregate, after)
    if base is None and not found.events:
        raise NotFound(
            f"{store.table} has no event of the aggregate {aggregate!r}",
            fix="name an aggregate_id of the table",
        )
    _require_sequence(store, found, aggregate, after)
    kinds = sorted({(one.event_type, one.version) for one in found.events}, key=str)
    versions = tuple((kind, version, 1) for kind, version in kinds)
    require_versions(store, handler.upcasters, EventFindings(versions=versions))
    state, rejected = json.loads(base.state) if base else None, 0
    for one in found.events:
        with failure_named(handler, one.event_id, "nothing was computed"):
            handled = handle_stored(handler, state, one)
        state = handled.state
        rejected += handled.outcome == "rejected"
    return RebuiltState(
        snapshot_id=snapshot_id,
        state=state,
        sequence_num=found.events[-1].sequence_num if found.events else after,
        based_on=None if base is None else base.sequence_num,
        events=len(found.events),
        rejected=rejected,
        files_read=found.files_read,
        files_total=found.files_total,
    )


def _base(
    ports: ReplayPorts,
    store: EventStoreDeclaration,
    handler: ReplayHandler,
    aggregate: str,
    below: int | None,
) -> AggregateState | None:
    """Return the newest kept state that was made of all events up to it, all of them `below`."""
    own, declared = own_state(ports, store, handler), handler.declared
    if own is None:
        return None
    _require_all_types(own, handler)
    kept = ports.tables.newest_state(declared.table, declared.version, aggregate, below)
    return kept if kept is not None and is_whole(store, kept) else None


def _require_all_types(own: ReplayState, handler: ReplayHandler) -> None:
    """Raise Unsupported for a handler whose states are made of events of some types only."""
    declared = handler.declared
    if types := own.selections.get(declared.version):
        raise Unsupported(
            f"{handler.name} {declared.version} has replayed {', '.join(types)} only, and rebuild "
            "folds all events of an aggregate",
            state="nothing was computed",
            fix=f"read its state in {declared.table}",
        )


def is_whole(store: EventStoreDeclaration, kept: AggregateState) -> bool:
    """Return whether a state was made of all events of its aggregate up to it."""
    return kept.handled == kept.sequence_num - store.first_sequence + 1


def _require_sequence(
    store: EventStoreDeclaration, found: AggregateEvents, aggregate: str, after: int
) -> None:
    """Raise RejectedInput when sequence numbers are missing where gaps are refused."""
    missing = len(found.events) and found.events[-1].sequence_num - after - len(found.events)
    if missing and store.gaps == "refuse":
        raise RejectedInput(
            f"{missing} sequence numbers of {aggregate!r} are missing in {store.table}",
            state="nothing was computed",
            fix=f"land the events, or write gaps: allow in catalog/events/{store.events}.yaml",
        )
