"""Sends correction events to a topic: in transactions, each event once.

What the topic holds is read from where it ended before the first record, once every earlier process
is shut out, and only what is missing is sent: in the order of positions, one transaction after the
other. The record with the highest position tells where to go on: compaction keeps the newest record
of each key, and it is the newest of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lakehouse_backfill.adapters.sources.kafka.transactions import (
    SENT_STAYS,
    TopicRecord,
    TopicSender,
    header_of,
    open_client,
    read_records,
    require_same_partitions,
)
from lakehouse_backfill.core.landing.offsets import OffsetWindow, Spans, TopicView, merged
from lakehouse_backfill.domain.serialization import canonical_json, to_json_value
from lakehouse_backfill.domain.sources.topics import (
    CorrectionTopic,
    SentEvents,
    TopicRequest,
    TopicState,
)
from lakehouse_backfill.errors import Blocked

#: Events in one transaction.
EVENTS_PER_TRANSACTION = 5000
#: Offsets at each end of a partition whose records are looked at.
LOOKED_AT = 20
#: Headers that name the act of a record, its place in it, and its event.
ACT_HEADER, POSITION_HEADER, EVENT_HEADER = "x-publication", "x-position", "x-event-id"


@dataclass(frozen=True)
class KafkaCorrectionTopics:
    """`ports.comparison.CorrectionTopics` on Kafka."""

    events_per_transaction: int = EVENTS_PER_TRANSACTION

    def look(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic, and which of its first and last records are none of ours."""
        client = open_client(topic)
        view = client.look(OffsetWindow())
        spans: Spans = {
            number: merged(
                (
                    (one.low, min(one.low + LOOKED_AT, one.stop)),
                    (max(one.low, one.stop - LOOKED_AT), one.stop),
                )
            )
            for number, one in view.partitions.items()
            if one.stop > one.low
        }
        messages = list(read_records(client, spans))
        foreign = tuple(
            f"{topic.name}[{one.partition()}] offset {one.offset()}"
            for one in messages
            if header_of(one, ACT_HEADER) is None
        )
        found = _state(view)
        return found.model_copy(update={"looked_at": len(messages), "foreign": foreign})

    def state(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic as it is; no record is read."""
        return _state(open_client(topic).look(OffsetWindow()))

    def send(self, request: TopicRequest, events: Iterable[Mapping[str, Any]]) -> SentEvents:
        """Send the events of an act that are not in the topic, in the order of their positions."""
        sender = TopicSender.open(request.topic, request.producer)
        found = _next_position(sender, request)
        waiting, sent = islice(iter(events), found, None), 0
        while batch := list(islice(waiting, self.events_per_transaction)):
            sender.send((_record(request, event) for event in batch), len(request.since.ends))
            sent += len(batch)
        return SentEvents(sent=sent, found=found)


def _next_position(sender: TopicSender, request: TopicRequest) -> int:
    """Return the position behind the last event of the act that is in the topic.

    Raises Blocked where records of the act may be gone.
    """
    since, view = request.since, sender.whole_view()
    name = view.topic
    if (view.cluster_id, view.topic_id) != (since.cluster_id, since.topic_id):
        raise _unreadable(name, "it is not the topic that the sending began with")
    spans: Spans = {}
    for number, one in view.partitions.items():
        begin = since.ends.get(number, 0)
        if begin < one.low:
            raise _unreadable(name, f"partition {number} lost the records before {one.low}")
        if begin < one.high:
            spans[number] = ((begin, one.high),)
    gone = since.ends.keys() - view.partitions.keys()
    if gone:
        raise _unreadable(name, f"it has no partition {min(gone)} any more")
    require_same_partitions(name, len(since.ends), len(view.partitions))
    token = request.token.encode()
    positions = (
        int(header_of(one, POSITION_HEADER) or b"-1")
        for one in read_records(sender.client, spans)
        if header_of(one, ACT_HEADER) == token
    )
    return max(positions, default=-1) + 1


def _record(request: TopicRequest, event: Mapping[str, Any]) -> TopicRecord:
    own = {
        ACT_HEADER: request.token,
        POSITION_HEADER: str(event["position"]),
        EVENT_HEADER: str(event["event_id"]),
    }
    value = canonical_json({name: to_json_value(one) for name, one in event.items()})
    return TopicRecord(str(event["key"]), value.encode(), {**request.headers, **own})


def _unreadable(name: str, problem: str) -> Blocked:
    return Blocked(
        f"{name}: which events of the act are in it cannot be read: {problem}",
        state=SENT_STAYS,
        fix="compare the topic with the table of events by the header x-event-id, and send what it "
        "lacks by hand",
    )


def _state(view: TopicView) -> TopicState:
    ends = {number: one.high for number, one in view.partitions.items()}
    return TopicState(cluster_id=view.cluster_id, topic_id=view.topic_id, ends=ends)
