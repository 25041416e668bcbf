"""Sends correction events to a topic: in transactions, each event once.

A producer of a transactional id shuts out every earlier one of that id, and what that had begun is
over before this one goes on. So what the topic holds then is all that was sent. It is read from
where the topic ended before the first record, and only what is missing is sent: in the order of
positions, one transaction after the other. The record with the highest position tells where to go
on: compaction keeps the newest record of each key, and it is the newest of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient
from lakehouse_backfill.adapters.sources.kafka.config import KafkaTopic
from lakehouse_backfill.adapters.sources.kafka.errors import broker_error, source_down
from lakehouse_backfill.core.landing.offsets import OffsetWindow, Spans, TopicView, merged
from lakehouse_backfill.domain.serialization import canonical_json, to_json_value
from lakehouse_backfill.domain.sources.declaration import KafkaSource
from lakehouse_backfill.domain.sources.topics import (
    CorrectionTopic,
    SentEvents,
    TopicRequest,
    TopicState,
)
from lakehouse_backfill.errors import Blocked, Conflict
from lakehouse_backfill.fault_points import commit_window

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

#: Events in one transaction.
EVENTS_PER_TRANSACTION = 5000
#: Offsets at each end of a partition whose records are looked at.
LOOKED_AT = 20
#: Headers that name the act of a record, its place in it, and its event.
ACT_HEADER, POSITION_HEADER, EVENT_HEADER = "x-publication", "x-position", "x-event-id"
_READ_AT_ONCE, _MIB = 10_000, 1024 * 1024
_PAUSE_S = 0.1
_STATE = "what was sent before stays in the topic"


@dataclass(frozen=True)
class KafkaCorrectionTopics:
    """`ports.comparison.CorrectionTopics` on Kafka."""

    events_per_transaction: int = EVENTS_PER_TRANSACTION

    def look(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic, and which of its first and last records are none of ours."""
        client = _client(topic)
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
        messages = list(_read(client, spans))
        foreign = tuple(
            f"{topic.name}[{one.partition()}] offset {one.offset()}"
            for one in messages
            if _header(one, ACT_HEADER) is None
        )
        found = _state(view)
        return found.model_copy(update={"looked_at": len(messages), "foreign": foreign})

    def state(self, topic: CorrectionTopic) -> TopicState:
        """Return the topic as it is; no record is read."""
        return _state(_client(topic).look(OffsetWindow()))

    def send(self, request: TopicRequest, events: Iterable[Mapping[str, Any]]) -> SentEvents:
        """Send the events of an act that are not in the topic, in the order of their positions."""
        client = _client(request.topic)
        producer = client.producer(request.producer)
        act = _Sending(client, producer, request)
        act.shut_out_others()
        found = act.next_position()
        waiting, sent = islice(iter(events), found, None), 0
        while batch := list(islice(waiting, self.events_per_transaction)):
            act.send(batch)
            sent += len(batch)
        return SentEvents(sent=sent, found=found)


@dataclass(frozen=True)
class _Sending:
    """One act on its way into a topic."""

    client: KafkaClient
    producer: Producer
    request: TopicRequest

    @property
    def _timeout_s(self) -> float:
        return self.request.topic.timeout_s

    def shut_out_others(self) -> None:
        """End what earlier producers of this name have begun; they can send nothing any more."""
        from confluent_kafka import KafkaException

        try:
            self.producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            raise broker_error(self.request.topic.name, error.args[0]) from error

    def next_position(self) -> int:
        """Return the position behind the last event of the act that is in the topic.

        Raises Blocked where records of the act may be gone.
        """
        since, view = self.request.since, self._whole_view()
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
        token = self.request.token.encode()
        positions = (
            int(_header(one, POSITION_HEADER) or b"-1")
            for one in _read(self.client, spans)
            if _header(one, ACT_HEADER) == token
        )
        return max(positions, default=-1) + 1

    def _whole_view(self) -> TopicView:
        """Return the topic once no open transaction hides records that are in it now.

        Without those of our own, which are over, these are transactions of others.
        """
        end, first = time.monotonic() + self._timeout_s, self.client.look(OffsetWindow())
        view = first
        while any(
            view.partitions[number].stop < one.high for number, one in first.partitions.items()
        ):
            if time.monotonic() > end:
                raise source_down(view.topic, "an open transaction hides its newest records")
            time.sleep(_PAUSE_S)
            view = self.client.look(OffsetWindow())
        return first

    def send(self, batch: list[Mapping[str, Any]]) -> None:
        """Send some events in one transaction: readers see all of them or none."""
        from confluent_kafka import KafkaException

        try:
            self.producer.begin_transaction()
            for event in batch:
                self._produce(event)
            with commit_window("CorrectionTopics.commit"):
                self._commit()
        except (KafkaException, BufferError) as error:
            cause = error.args[0]
            with suppress(KafkaException):
                self.producer.abort_transaction(min(self._timeout_s, 5))
            raise self._error(cause) from error

    def _produce(self, event: Mapping[str, Any]) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            *self.request.headers.items(),
            (ACT_HEADER, self.request.token),
            (POSITION_HEADER, str(event["position"])),
            (EVENT_HEADER, str(event["event_id"])),
        ]
        value = canonical_json({name: to_json_value(one) for name, one in event.items()})
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                return self.producer.produce(
                    self.request.topic.name, value.encode(), str(event["key"]).encode(),
                    headers=headers,
                )  # fmt: skip
            except BufferError:
                if time.monotonic() > end:
                    raise
                self.producer.poll(_PAUSE_S)

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        end = time.monotonic() + self._timeout_s
        while True:
            try:
                return self.producer.commit_transaction(self._timeout_s)
            except KafkaException as error:
                # The same call again asks for the same end of the same transaction.
                if not error.args[0].retriable() or time.monotonic() > end:
                    raise

    def _error(self, cause: Any) -> Exception:
        name = self.request.topic.name
        if not hasattr(cause, "name"):
            return source_down(name, "its brokers take no more records")
        if cause.name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"):
            return Conflict(
                f"{name}: another process sends the same events, and has shut this one out",
                state=_STATE,
                fix="wait for that process; then: lakehouse-backfill recover",
            )
        return broker_error(name, cause)


def _unreadable(name: str, problem: str) -> Blocked:
    return Blocked(
        f"{name}: which events of the act are in it cannot be read: {problem}",
        state=_STATE,
        fix="compare the topic with the table of events by the header x-event-id; nothing is sent "
        "again by itself",
    )


def _client(topic: CorrectionTopic) -> KafkaClient:
    declared = KafkaSource(
        bootstrap_servers=topic.bootstrap_servers,
        topic=topic.name,
        settings=topic.settings,
        secrets=topic.secrets,
        timeout_s=topic.timeout_s,
    )
    return KafkaClient(KafkaTopic.open(declared))


def _state(view: TopicView) -> TopicState:
    ends = {number: one.high for number, one in view.partitions.items()}
    return TopicState(cluster_id=view.cluster_id, topic_id=view.topic_id, ends=ends)


def _read(client: KafkaClient, spans: Spans) -> Iterator[Message]:
    if not spans:
        return
    with client.open_reading(client.topic.name, spans) as reading:
        while not reading.is_done:
            yield from reading.take(_READ_AT_ONCE, 64 * _MIB)[0]


def _header(message: Message, name: str) -> bytes | None:
    """Return the last value of a header, as bytes."""
    found = [header[1] for header in message.headers() or () if header[0] == name]
    last = found[-1] if found else None
    return last.encode() if isinstance(last, str) else last
