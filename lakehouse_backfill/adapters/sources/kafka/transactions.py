"""Records to a topic in transactions, by one process at a time.

A producer of a transactional id shuts out every earlier one of that id, and what that had begun is
over before this one goes on. So what the topic holds then is all that was sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient
from lakehouse_backfill.adapters.sources.kafka.config import KafkaTopic
from lakehouse_backfill.adapters.sources.kafka.errors import broker_error, source_down
from lakehouse_backfill.core.landing.offsets import OffsetWindow, Spans, TopicView
from lakehouse_backfill.domain.sources.declaration import KafkaSource
from lakehouse_backfill.domain.sources.topics import TopicAddress
from lakehouse_backfill.errors import Blocked, Conflict
from lakehouse_backfill.fault_points import commit_window

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

#: What is so after any failure of a sending.
SENT_STAYS = "what was sent before stays in the topic"
_READ_AT_ONCE, _MIB = 10_000, 1024 * 1024
_PAUSE_S = 0.1


class TopicRecord(NamedTuple):
    """A record that is to be sent; the value None is sent as no value."""

    key: str
    value: bytes | None
    headers: dict[str, str]


@dataclass(frozen=True)
class TopicSender:
    """A producer of transactions to one topic."""

    client: KafkaClient
    producer: Producer

    @staticmethod
    def open(topic: TopicAddress, name: str) -> TopicSender:
        """Make the producer of a name, and end what earlier ones of that name have begun.

        They can send nothing any more. Raises SourceDown, Blocked.
        """
        from confluent_kafka import KafkaException

        client = open_client(topic)
        sender = TopicSender(client, client.producer(name))
        try:
            sender.producer.init_transactions(sender._timeout_s)
        except KafkaException as error:
            raise broker_error(topic.name, error.args[0]) from error
        return sender

    @property
    def _name(self) -> str:
        return self.client.topic.name

    @property
    def _timeout_s(self) -> float:
        return self.client.topic.declared.timeout_s

    def whole_view(self) -> TopicView:
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

    def send(self, records: Iterable[TopicRecord], partitions: int) -> None:
        """Send some records in one transaction: readers see all of them or none.

        Raises Conflict when a later process has shut this one out, SourceDown, Blocked: also when
        the topic does not have that many partitions any more.
        """
        from confluent_kafka import KafkaException

        try:
            self.producer.begin_transaction()
            for record in records:
                self._produce(record)
            self._require_partitions(partitions)
            with commit_window("Topics.commit"):
                self._commit()
        except (KafkaException, BufferError) as error:
            self._abort()
            raise self._error(error.args[0]) from error
        except Blocked:
            self._abort()
            raise

    def _require_partitions(self, partitions: int) -> None:
        """Raise Blocked when some of these records may be in a partition that was added.

        All have their partitions once they are sent; before that, a later look could miss one.
        """
        self.producer.flush(self._timeout_s)
        found = self.producer.list_topics(self._name, self._timeout_s).topics[self._name]
        if found.error is None:
            require_same_partitions(self._name, partitions, len(found.partitions))

    def _abort(self) -> None:
        from confluent_kafka import KafkaException

        with suppress(KafkaException):
            self.producer.abort_transaction(min(self._timeout_s, 5))

    def _produce(self, record: TopicRecord) -> None:
        headers: list[tuple[str, str | bytes | None]] = [*record.headers.items()]
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                return self.producer.produce(
                    self._name, record.value, record.key.encode(), headers=headers
                )
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
        if not hasattr(cause, "name"):
            return source_down(self._name, "its brokers take no more records")
        if cause.name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"):
            return Conflict(
                f"{self._name}: another process sends the same events, and has shut this one out",
                state=SENT_STAYS,
                fix="wait for that process; then: lakehouse-backfill recover",
            )
        return broker_error(self._name, cause)


def require_same_partitions(name: str, before: int, now: int) -> None:
    """Raise Blocked when keys go to other partitions than before: the order of each would end."""
    if now != before:
        raise Blocked(
            f"{name} has {now} partitions, and had {before} when its records were sent: keys go to "
            "other partitions now, so that consumers may read the records of one in another order",
            state=SENT_STAYS,
            fix="send to a new topic",
        )


def open_client(topic: TopicAddress) -> KafkaClient:
    """Return what asks the brokers of a topic; raises ConfigError for its settings."""
    declared = KafkaSource(
        bootstrap_servers=topic.bootstrap_servers,
        topic=topic.name,
        settings=topic.settings,
        secrets=topic.secrets,
        timeout_s=topic.timeout_s,
    )
    return KafkaClient(KafkaTopic.open(declared))


def read_records(client: KafkaClient, spans: Spans) -> Iterator[Message]:
    """Yield the committed records of ranges of offsets; raises SourceDown, Blocked."""
    if not spans:
        return
    with client.open_reading(client.topic.name, spans) as reading:
        while not reading.is_done:
            yield from reading.take(_READ_AT_ONCE, 64 * _MIB)[0]


def header_of(message: Message, name: str) -> bytes | None:
    """Return the last value of a header, as bytes."""
    found = [header[1] for header in message.headers() or () if header[0] == name]
    last = found[-1] if found else None
    return last.encode() if isinstance(last, str) else last
