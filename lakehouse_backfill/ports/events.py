"""Event stores as they are read, and the tables and ledgers that handlers write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from lakehouse_backfill.domain.sources.compatibility import Messages
from lakehouse_backfill.domain.sources.events import (
    AggregateEvents,
    AggregateState,
    EventFindings,
    EventStoreDeclaration,
    EventTopic,
    EventTopicRequest,
    HandledRow,
    HandlerDeclaration,
    ProcessedEvent,
    ReplayJob,
    ReplayPosition,
    ReplayRequest,
    ReplayState,
    StoredEvent,
)
from lakehouse_backfill.domain.sources.schemas import DecodedPayload, WriterSchema
from lakehouse_backfill.fault_points import side_effect

#: Yields tables of Arrow with the rows that a handler has written.
HandledEvents = Callable[[], Iterator[Any]]
#: Chooses what to send, by what is in the topic: batches in order, each for one transaction.
ChooseEvents = Callable[[HandledEvents], Iterator[Sequence[StoredEvent]]]


class PayloadSchemas(Protocol):
    """Schemas of writers, by the id in Confluent's header."""

    def find(self, number: int) -> WriterSchema | None:
        """Return a schema; None when there is none of this id. Raises SourceDown, Blocked."""
        ...

    def protobuf_fields(self) -> Mapping[int, Messages]:
        """Return the fields of all messages of Protobuf schemas, by id."""
        ...

    def known(self) -> Mapping[int, WriterSchema]:
        """Return the schemas that were given, or found until now."""
        ...

    def decode(self, data: bytes, reader: int | None = None) -> DecodedPayload:
        """Return a payload as JSON; what has no header is returned as it is.

        `reader` is the schema that it is resolved into. Raises UndecodablePayload with the reason,
        ConfigError for a schema that cannot be used, SourceDown.
        """
        ...


class EventSet(Protocol):
    """The events of one snapshot, once each, in their order; it may be larger than memory."""

    def findings(self) -> EventFindings:
        """Return what is wrong with them."""
        ...

    def select(self, request: ReplayRequest, handled: HandledEvents | None) -> int:
        """Choose the events of a request that are not handled yet; return how many there are."""
        ...

    def selected(self, request: ReplayRequest) -> tuple[int, int]:
        """Count the events of a request, handled or not, and the chosen ones of incomplete states.

        The latter follow an event of their aggregate that its time range leaves out unhandled.
        """
        ...

    def behind(self) -> tuple[int, str]:
        """Count chosen events that a handled one of their aggregate follows; name a few."""
        ...

    def ledger_faults(self) -> tuple[str, ...]:
        """Return why events do not fit what was handled, and the states that it left."""
        ...

    def batches(self, after: ReplayPosition | None, size: int) -> Iterator[list[StoredEvent]]:
        """Yield the chosen events after a position, in order, so many at a time."""
        ...

    def states(self, aggregates: Sequence[str]) -> dict[str, AggregateState]:
        """Return the newest states of aggregates; those without one are left out."""
        ...

    def keep_states(self, states: Mapping[str, AggregateState]) -> None:
        """Replace the newest states of aggregates."""
        ...

    def close(self) -> None:
        """Free what the events take."""
        ...


class EventReader(Protocol):
    """Tables of events."""

    def head(self, store: EventStoreDeclaration) -> int | None:
        """Return the newest snapshot; None when the table is empty. Raises NotFound."""
        ...

    def holds(self, store: EventStoreDeclaration, snapshot_id: int) -> bool:
        """Return whether the table still has a snapshot."""
        ...

    def open(
        self, store: EventStoreDeclaration, snapshot_id: int, aggregate: str | None
    ) -> EventSet:
        """Read a snapshot, or one aggregate of it.

        Raises Unsupported when a column is missing or has a type that events do not have.
        """
        ...

    def aggregate_events(
        self, store: EventStoreDeclaration, snapshot_id: int, aggregate: str, after: int
    ) -> AggregateEvents:
        """Return the events of one aggregate with a higher sequence number, in order.

        Only files that may hold one are opened. Raises RejectedInput when they are not consistent.
        """
        ...

    def first_since(
        self, store: EventStoreDeclaration, snapshot_id: int, aggregate: str, moment: datetime
    ) -> int:
        """Return the lowest sequence number of an aggregate's events that occurred since a moment.

        Where there are none, the number behind its last event; without events the first of all.
        """
        ...


class HandlerTables(Protocol):
    """Tables of handlers. Each commit carries rows, ledger and the replay's state together."""

    def state(self, table: str) -> ReplayState | None:
        """Return the state of the newest replay; None where there was none, or no table."""
        ...

    @side_effect
    def ensure(self, handler: HandlerDeclaration) -> None:
        """Create the table unless it exists; raises Unsupported when it is another table."""
        ...

    @side_effect
    def commit(self, table: str, rows: Sequence[HandledRow], state: ReplayState) -> None:
        """Make rows and state visible in one commit, exactly once.

        Raises Conflict when another process replays into the table, TooBusy, OutcomeUnknown.
        """
        ...

    def handled(self, table: str, version: str) -> HandledEvents | None:
        """Return what reads the rows of a version; None when there are none."""
        ...

    def step_rows(self, table: str, state: ReplayState) -> Iterator[HandledRow]:
        """Yield the rows that the commit of this state brought in."""
        ...

    def newest_state(
        self, table: str, version: str, aggregate: str, below: int | None = None
    ) -> AggregateState | None:
        """Return the newest kept state of an aggregate, after an event with a number `below`."""
        ...


class ReplayLedger(Protocol):
    """The control tables `processed_event` and `replay_job`."""

    @side_effect
    def record(self, state: ReplayState, events: Sequence[ProcessedEvent]) -> None:
        """Append the events of one commit; the same again does nothing."""
        ...

    def has(self, state: ReplayState) -> bool:
        """Return whether the events of the newest commit are recorded."""
        ...

    @side_effect
    def report(self, job: ReplayJob) -> None:
        """Append where a replay stands; the same again does nothing."""
        ...


class EventTopics(Protocol):
    """Topics of their own that events of a store are replayed into."""

    def sent(self, topic: EventTopic, store: str) -> HandledEvents:
        """Return what reads the events of a version that are in the topic; nothing is sent.

        Raises Blocked for a topic that has other records, or forgets some; SourceDown.
        """
        ...

    @side_effect
    def send(self, request: EventTopicRequest, choose: ChooseEvents) -> int:
        """Send the batches that `choose` yields, each in one transaction; return the events.

        A process that still sends is shut out first, and then the topic is read. Raises what `sent`
        and `choose` raise, Conflict when this process is shut out, SourceDown.
        """
        ...
