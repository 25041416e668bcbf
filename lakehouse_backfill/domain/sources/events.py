"""Event stores as declared in `catalog/events/NAME.yaml`, and where a replay of one stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple
from uuid import uuid4

from pydantic import Field, StringConstraints

from lakehouse_backfill.domain.serialization import Name, TableName, Text, Value, digest
from lakehouse_backfill.domain.sources.schemas import Compatibility
from lakehouse_backfill.domain.sources.topics import TopicAddress

FunctionName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        max_length=200,
    ),
]
Version = Annotated[str, StringConstraints(pattern=r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$")]

#: Columns of an event store; those after the sixth may be missing in the table.
EVENT_COLUMNS = (
    "event_id", "aggregate_id", "event_type", "payload", "sequence_num", "occurred_at",
    "aggregate_type", "correlation_id", "causation_id", "created_at",
)  # fmt: skip
REQUIRED_EVENT_COLUMNS = EVENT_COLUMNS[:6]
EventColumn = Literal[
    "event_id", "aggregate_id", "event_type", "payload", "sequence_num", "occurred_at",
    "aggregate_type", "correlation_id", "causation_id", "created_at",
]  # fmt: skip

#: Columns of the table that a handler writes: name, type, meaning.
HANDLER_COLUMNS = (
    ("handler_version", "string", "Version of the handler; each one has rows of its own."),
    ("event_id", "string", "The event that was handled."),
    ("aggregate_id", "string", "Its aggregate."),
    ("sequence_num", "long", "Its number in the aggregate."),
    ("outcome", "string", "done, skipped, suppressed or rejected."),
    ("reason", "string", "Why it was rejected."),
    ("suppressed", "string", "Messages that were not sent, as JSON: sink and key of each."),
    ("handled", "long", "How many events of the aggregate this version has handled by then."),
    ("state", "string", "State of the aggregate after the event, as JSON; null: not kept there."),
    ("replay_id", "string", "The replay that handled it."),
    ("step", "long", "The commit of the replay that brought the row in."),
    ("handled_at", "timestamptz", "When the commit was made."),
    (
        "content_hash",
        "string",
        "Hash of the event as it was handled; null: not kept.",
    ),
)


class EventVersions(Value):
    """Where the version of a payload stands; one of the four."""

    column: Name | None = Field(None, description="A column of the table.")
    field: Name | None = Field(None, description="A field of the payload.")
    schemas: Text | None = Field(
        None,
        description="A folder of the project with ID.json for each writer's schema: the payload "
        "begins with Confluent's header, a zero byte and the id in four bytes.",
    )
    landed_schemas: bool | None = Field(
        None,
        description="true: the schemas that the landing of the table has kept; the version is that "
        "of the schema in its subject.",
    )
    readers: dict[Text, int] = Field(
        default_factory=dict,
        description="By event type, the id of the schema that payloads in Avro or Protobuf are "
        "read as; they are then of the current version.",
    )
    compatibility: Compatibility = Field(
        "none", description="What the schemas of an event type are held to, version by version."
    )


class Upcaster(Value):
    """A function that makes a payload of the next version."""

    event_type: Text = Field(description="Type of the events.")
    from_: int = Field(alias="from", ge=0, description="Version of the payload that it takes.")
    to: int = Field(ge=1, description="Version of the payload that it returns.")
    function: FunctionName = Field(description="`module:function` of the project.")


class HandlerDeclaration(Value):
    """A handler: a pure function of the state of an aggregate and its next event."""

    function: FunctionName = Field(description="`module:function` of the project.")
    version: Version = Field(description="A new version begins with no state and no ledger.")
    table: TableName = Field(description="Table of its rows; created when it does not exist.")
    checkpoint_events: int = Field(
        10_000, ge=1, le=1_000_000, description="Events in one commit at most."
    )
    state_every: int = Field(
        100, ge=1, le=1_000_000, description="The state is kept after every so many events."
    )
    buckets: int = Field(
        8, ge=1, le=1024, description="Buckets of its table by aggregate; for a new table."
    )


class EventTopic(TopicAddress):
    """A topic that only gets replayed events of one store."""

    version: Version = Field(
        description="Version of what is sent, for its consumers: a new one sends all events again."
    )
    events_per_transaction: int = Field(
        1000, ge=1, le=100_000, description="Events that consumers see at once, at most."
    )


class EventTopicRequest(Value):
    """Events of a store that go to a topic."""

    topic: EventTopic
    store: str
    #: Names the producer: of two processes of one name the later shuts the earlier out.
    producer: Text
    #: The headers of each record, beside those that name its event.
    headers: dict[str, str]


class EventStoreDeclaration(Value):
    """An Iceberg table of events, and what is made of them."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    events: Name = Field(description="Name of the event store; the file is called like it.")
    table: TableName = Field(description="The table of events.")
    description: str = Field("", description="What the events say.")
    columns: dict[EventColumn, Name] = Field(
        default_factory=dict, description="Columns of the table that have another name."
    )
    first_sequence: int = Field(1, ge=0, description="Sequence number of the first event.")
    gaps: Literal["refuse", "allow"] = Field(
        "refuse", description="Whether a missing sequence number stops a replay."
    )
    version: EventVersions | None = Field(None, description="Where the version of a payload is.")
    current: dict[Text, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict, description="Newest version of each event type that has versions."
    )
    upcasters: tuple[Upcaster, ...] = Field((), description="How old versions become newer ones.")
    handlers: dict[Name, HandlerDeclaration] = Field(
        default_factory=dict, description="Handlers by name, each with its own ledger."
    )
    topics: dict[Name, EventTopic] = Field(
        default_factory=dict, description="Topics by name that events are replayed into."
    )

    def column(self, name: str) -> str:
        """Return the name of a column in the table."""
        renamed: dict[str, str] = dict(self.columns)  # type: ignore[arg-type]
        return renamed.get(name, name)


class ReplayRequest(Value):
    """Which events a replay handles: all, or those of an aggregate, a time range, some types."""

    aggregate: str | None = None
    from_: datetime | None = None
    to: datetime | None = None
    event_types: tuple[str, ...] = ()


class ReplayPosition(NamedTuple):
    """A place in the order of events: the one after which a replay goes on."""

    rank: str
    sequence_num: int


class ReplayCounts(Value):
    """How many events had which outcome."""

    done: int = 0
    skipped: int = 0
    suppressed: int = 0
    rejected: int = 0

    @property
    def processed(self) -> int:
        """All of them."""
        return self.done + self.skipped + self.suppressed + self.rejected


class ReplayState(Value):
    """Where a replay stands; each commit to the handler's table carries the newest one."""

    replay_id: str
    store: str
    table: str
    handler: str
    version: str
    request: ReplayRequest
    snapshot_id: int
    #: Selected events that the handler had not handled when the replay began.
    total: int
    counts: ReplayCounts = ReplayCounts()
    position: ReplayPosition | None = None
    #: By handler version: the event types that its replays select; empty: all types.
    selections: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    #: Which commit of the handler's table it is, over all replays.
    step: int = 0
    #: Of the table: one that was dropped and made again has another one.
    lineage: str
    is_complete: bool = False
    started_at: datetime
    updated_at: datetime
    #: Names one commit, and the commit whose state it was decided on.
    token: str = ""
    follows: str = ""

    @property
    def ledger_name(self) -> str:
        """The handler as the ledger names it."""
        return f"{self.handler}@{self.version}"

    @property
    def mode(self) -> str:
        """The mode of its commits and log lines."""
        return "replay"


def next_replay_state(state: ReplayState, **changes: object) -> ReplayState:
    """Return the state after the next commit: it names the commit that it follows."""
    links = {"step": state.step + 1, "follows": state.token, "token": uuid4().hex}
    return state.model_copy(update={**changes, **links})


def new_replay_id(store: str, handler: str, request: ReplayRequest, began_at: datetime) -> str:
    """Return the id of a replay that begins now."""
    return f"rp-{digest([store, handler, request, began_at.isoformat()])[:10]}"


class HandledRow(NamedTuple):
    """A row of a handler's table, without the columns that are the same in a commit."""

    event_id: str
    aggregate_id: str
    sequence_num: int
    outcome: str
    reason: str | None
    suppressed: str | None
    handled: int
    state: str | None
    content_hash: str | None = None


class AggregateState(NamedTuple):
    """The state of an aggregate after an event; stored as JSON text."""

    sequence_num: int
    handled: int
    state: Any


class ProcessedEvent(Value):
    """A row of `processed_event`."""

    handler: str
    event_id: str
    outcome: str
    run_id: str | None
    processed_at: datetime
    source: str | None = None
    detail: str | None = None


class ReplayJob(Value):
    """A row of `replay_job`."""

    replay_id: str
    run_id: str
    topic: str
    start_offsets: str
    end_offsets: str
    position: str | None
    status: Literal["running", "done", "failed"]
    events: int
    suppressed: int
    updated_at: datetime
    handler: str | None = None
    snapshot_id: int | None = None
    total: int | None = None
    skipped: int | None = None
    rejected: int | None = None


@dataclass(frozen=True)
class EventFindings:
    """What is wrong with the events of a snapshot; texts name at most a few ids."""

    rows: int = 0
    events: int = 0
    aggregates: int = 0
    #: Faults that stop a replay.
    faults: tuple[str, ...] = ()
    #: Sequence numbers that no event has, and where.
    missing: int = 0
    gaps: tuple[str, ...] = ()
    #: Events that occurred, by their clock, before one with a lower sequence number.
    held_back: int = 0
    #: Event types with the versions that they occur in; None: a version that cannot be read.
    versions: tuple[tuple[str, int | None, int], ...] = ()

    @property
    def duplicates(self) -> int:
        """Rows that repeat an event exactly."""
        return self.rows - self.events


class StoredEvent(NamedTuple):
    """An event as it is stored, with its place in the order; instants in microseconds."""

    rank: str
    sequence_num: int
    event_id: str
    aggregate_id: str
    event_type: str
    payload: bytes | None
    occurred_us: int
    version: int | None
    aggregate_type: str | None
    correlation_id: str | None
    causation_id: str | None
    content_hash: str | None = None
    #: Why its payload cannot be decoded.
    unreadable: str | None = None


@dataclass(frozen=True)
class AggregateEvents:
    """Events of one aggregate that follow a sequence number, and the files that were opened."""

    events: tuple[StoredEvent, ...]
    files_read: int
    files_total: int
