"""Sends events of a store to a topic of their own: in transactions, each event once.

The topic is its own ledger: it is read whole, once every earlier process is shut out, and only the
events that it lacks are sent. So nothing else has to be kept, and a sending that was cut off goes
on with the same command. A topic that forgets records cannot say what was sent: it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient
from lakehouse_backfill.adapters.sources.kafka.transactions import (
    SENT_STAYS,
    TopicRecord,
    TopicSender,
    header_of,
    open_client,
    read_records,
    require_same_partitions,
)
from lakehouse_backfill.core.landing.offsets import OffsetWindow, Spans
from lakehouse_backfill.domain.sources.events import EventTopic, EventTopicRequest, StoredEvent
from lakehouse_backfill.errors import Blocked
from lakehouse_backfill.events import instant_of

if TYPE_CHECKING:
    from confluent_kafka import Message

    from lakehouse_backfill.ports.events import ChooseEvents, HandledEvents

#: Headers of the run that are looked at again: whose record it is, and by which version.
STORE_HEADER, VERSION_HEADER = "x-event-store", "x-transform-version"
#: Headers of each event.
EVENT_HEADER, TYPE_HEADER, SEQUENCE_HEADER = "x-event-id", "x-event-type", "x-sequence"
INSTANT_HEADER, CONTENT_HEADER = "x-occurred-at", "x-content-hash"
#: How many partitions the topic had: the key and this number say which one a record is in.
PARTITIONS_HEADER = "x-partitions"
_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True)
class KafkaEventTopics:
    """`ports.events.EventTopics` on Kafka."""

    def sent(self, topic: EventTopic, store: str) -> HandledEvents:
        """Return what reads the events of a store that are in the topic; nothing is sent."""
        client = open_client(topic)
        _require_memory(client)
        view = client.look(OffsetWindow())
        ends = {number: (one.low, one.stop) for number, one in view.partitions.items()}
        return partial(_handled, client, ends, topic, store)

    def send(self, request: EventTopicRequest, choose: ChooseEvents) -> int:
        """Send what `choose` takes of the events that the topic lacks; return how many."""
        topic = request.topic
        _require_memory(open_client(topic))
        sender = TopicSender.open(topic, request.producer)
        view = sender.whole_view()
        ends = {number: (one.low, one.high) for number, one in view.partitions.items()}
        sent = 0
        for batch in choose(partial(_handled, sender.client, ends, topic, request.store)):
            sender.send((_record(request, event, len(ends)) for event in batch), len(ends))
            sent += len(batch)
        return sent


def _record(request: EventTopicRequest, event: StoredEvent, partitions: int) -> TopicRecord:
    own = {
        EVENT_HEADER: event.event_id,
        TYPE_HEADER: event.event_type,
        SEQUENCE_HEADER: str(event.sequence_num),
        INSTANT_HEADER: instant_of(event.occurred_us).isoformat(),
        CONTENT_HEADER: event.content_hash or "",
        PARTITIONS_HEADER: str(partitions),
    }
    return TopicRecord(event.aggregate_id, event.payload, {**request.headers, **own})


def _require_memory(client: KafkaClient) -> None:
    """Raise Blocked for a topic of which brokers drop records that a newer one replaces."""
    if "compact" in client.cleanup_policy():
        raise Blocked(
            f"{client.topic.name} is compacted: it forgets the earlier events of an aggregate",
            state="nothing was sent",
            fix="name a topic with cleanup.policy=delete",
        )


def _whole(name: str, ends: dict[int, tuple[int, int]]) -> Spans:
    """Return all offsets of a topic; raises Blocked when its first ones are gone."""
    for number, (low, _) in sorted(ends.items()):
        if low:
            raise Blocked(
                f"{name}: partition {number} lost the records before {low}: which events were "
                "sent cannot be read",
                state=SENT_STAYS,
                fix="make a new topic for replays, with retention.ms=-1 and retention.bytes=-1",
            )
    return {number: ((low, end),) for number, (low, end) in ends.items() if low < end}


def _handled(
    client: KafkaClient, ends: dict[int, tuple[int, int]], topic: EventTopic, store: str
) -> Iterator[Any]:
    """Yield tables of Arrow with the events of this version that are in the topic.

    Raises Blocked when a record is no event of the store: the topic is not dedicated to it. Also
    when partitions were added since events of this version were sent.
    """
    rows: list[dict[str, Any]] = []
    for message in read_records(client, _whole(topic.name, ends)):
        row = _event_of(message, store)
        if row is None:
            place = f"{topic.name}[{message.partition()}] offset {message.offset()}"
            raise Blocked(
                f"{topic.name} has records that are no replayed events of {store}, such as "
                f"{place}: it is a live topic, or one of another store",
                state="nothing was sent",
                fix="name a topic that only gets replayed events of this store",
            )
        if header_of(message, VERSION_HEADER) == topic.version.encode():
            _require_partitions(message, topic, store, len(ends))
            rows.append(row)
        if len(rows) >= _ROWS_AT_ONCE:
            yield _table(rows)
            rows = []
    if rows:
        yield _table(rows)


def _require_partitions(message: Message, topic: EventTopic, store: str, now: int) -> None:
    before = header_of(message, PARTITIONS_HEADER)
    try:
        require_same_partitions(topic.name, now if before is None else int(before), now)
    except Blocked as error:
        error.fix = (
            f"give the topic a new version in catalog/events/{store}.yaml: it then gets all "
            "events again, in order"
        )
        raise


def _event_of(message: Message, store: str) -> dict[str, Any] | None:
    """Return a record as a row of a ledger; None when it is no replayed event of the store."""
    found = {
        name: header_of(message, name)
        for name in (STORE_HEADER, EVENT_HEADER, SEQUENCE_HEADER, CONTENT_HEADER)
    }
    key = message.key()
    if None in found.values() or key is None or found[STORE_HEADER] != store.encode():
        return None
    texts = {name: (one or b"").decode("utf-8", "replace") for name, one in found.items()}
    key = key if isinstance(key, bytes) else key.encode()
    try:
        sequence = int(texts[SEQUENCE_HEADER])
    except ValueError:
        return None
    return {
        "event_id": texts[EVENT_HEADER],
        "aggregate_id": key.decode("utf-8", "replace"),
        "sequence_num": sequence,
        # A ledger of a handler has states; a topic has none, and none is missing.
        "state": "",
        "content_hash": texts[CONTENT_HEADER] or None,
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    kinds = [
        ("event_id", pa.string()), ("aggregate_id", pa.string()), ("sequence_num", pa.int64()),
        ("state", pa.string()), ("content_hash", pa.string()),
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds))
