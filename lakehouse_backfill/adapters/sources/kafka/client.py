"""A topic over confluent-kafka: offsets are looked up, and read without a consumer group.

Partitions are assigned, never subscribed to: no group is joined, and no offset is committed or
stored. Only committed records are read.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lakehouse_backfill.adapters.sources.kafka.config import KafkaTopic
from lakehouse_backfill.adapters.sources.kafka.errors import (
    bad_properties,
    broker_error,
    is_final,
    missing_client,
    passes,
    source_down,
)
from lakehouse_backfill.core.landing.offsets import (
    FoundOffset,
    OffsetWindow,
    PartitionView,
    Span,
    Spans,
    TopicView,
    cut_by_retention,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer
    from confluent_kafka.admin import AdminClient

#: Messages that are taken from the client at once, and the longest wait for so many.
_AT_ONCE = 5000
_WAIT_S = 0.1
_LOOK_S = 30
#: Between two questions to a partition that gets another leader.
_PAUSE_S = 0.2
#: Brokers close a transaction that is open so long, unless they are told another limit.
_MAX_OPEN_S = 900
_HOUR_MS = 3_600_000
_log = logging.getLogger("lakehouse_backfill.kafka")
_log.addHandler(logging.NullHandler())
_log.propagate = False


@dataclass(frozen=True)
class KafkaClient:
    """What is asked of the brokers of one topic."""

    topic: KafkaTopic
    _admins: list[AdminClient] = field(default_factory=list, repr=False)

    def look(self, window: OffsetWindow) -> TopicView:
        """Return the topic as it is now, with the offsets of the instants that are looked for.

        Raises SourceDown, Blocked for a topic that is not there or must not be read.
        """
        name, admin = self.topic.name, self._admin()
        from confluent_kafka import TopicCollection

        with self._translated():
            described = admin.describe_topics(
                TopicCollection([name]), request_timeout=self._timeout_s
            )[name].result()
            cluster = admin.describe_cluster(request_timeout=self._timeout_s).result()
        numbers = sorted(one.id for one in described.partitions)
        low, stop, high = (
            self._offsets(numbers, spec, committed=committed)
            for spec, committed in (("earliest", True), ("latest", True), ("latest", False))
        )
        begin, end = (
            {} if moment is None else self._offsets(numbers, moment)
            for moment in (window.begin_ms, window.end_ms)
        )
        # Of the time 0: the first record of all.
        first = self._offsets(numbers, 0)
        partitions = {
            number: PartitionView(
                low[number].offset,
                stop[number].offset,
                high[number].offset,
                _found(begin.get(number)),
                _found(end.get(number)),
                _found(first.get(number)),
            )
            for number in numbers
        }
        return TopicView(str(cluster.cluster_id), name, str(described.topic_id), partitions)

    def lows(self, numbers: list[int]) -> dict[int, int]:
        """Return the first offset that is left, by partition."""
        found = self._offsets(numbers, "earliest")
        return {number: one.offset for number, one in found.items()}

    def live_rate(self, view: TopicView, now_ms: int) -> float:
        """Return how many offsets a second the topic got in the hour before `now_ms`."""
        found: dict[int, Any] = self._offsets(list(view.partitions), max(0, now_ms - _HOUR_MS))
        count = sum(
            view.partitions[number].stop - one.offset
            for number, one in found.items()
            if 0 <= one.offset < view.partitions[number].stop
        )
        return float(count / (_HOUR_MS / 1000))

    def broker_stamps(self) -> bool:
        """Return whether brokers set the timestamps; False too where that cannot be asked."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            ConfigResource,
            ResourceType,
        )

        wanted = ConfigResource(ResourceType.TOPIC, self.topic.name)
        try:
            asked = self._admin().describe_configs([wanted], request_timeout=self._timeout_s)
            found = asked[wanted].result()
        except KafkaException:
            return False
        kind = found.get("message.timestamp.type")
        return bool(kind is not None and kind.value == "LogAppendTime")

    def cleanup_policy(self) -> str:
        """Return how brokers clean the topic up, e.g. `delete` or `compact,delete`.

        Raises SourceDown; Blocked when it may not be asked.
        """
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            ConfigResource,
            ResourceType,
        )

        wanted = ConfigResource(ResourceType.TOPIC, self.topic.name)
        with self._translated():
            asked = self._admin().describe_configs([wanted], request_timeout=self._timeout_s)
            found = asked[wanted].result().get("cleanup.policy")
        return "" if found is None else str(found.value)

    @contextmanager
    def open_reading(self, source: str, asked: Spans) -> Iterator[TopicReading]:
        """Open a consumer on these ranges; it is closed at the end."""
        reading = TopicReading(self, source, self._consumer(), asked)
        try:
            yield reading
        finally:
            reading.consumer.close()

    @property
    def _timeout_s(self) -> float:
        return min(self.topic.declared.timeout_s, _LOOK_S)

    def _offsets(
        self, numbers: list[int], what: str | int, *, committed: bool = True
    ) -> dict[int, Any]:
        admin = self._admin()
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        makers: dict[str, Any] = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
        spec = OffsetSpec.for_timestamp(what) if isinstance(what, int) else makers[what]()
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(self.topic.name, number): spec for number in numbers}
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                asked = admin.list_offsets(
                    wanted, isolation_level=level, request_timeout=self._timeout_s
                )
                return {one.partition: future.result() for one, future in asked.items()}
            except KafkaException as error:
                if not passes(error.args[0]) or time.monotonic() > end:
                    raise broker_error(self.topic.name, error.args[0]) from error
            time.sleep(_PAUSE_S)

    def _admin(self) -> AdminClient:
        if not self._admins:
            self._admins.append(self._made("AdminClient", {}))
        return self._admins[0]

    def _consumer(self) -> Consumer:
        own = {
            # The client demands a name; a group of this name never comes to be.
            "group.id": f"lakehouse-backfill-{uuid4().hex}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "check.crcs": True,
        }
        made: Consumer = self._made("Consumer", own)
        return made

    def producer(self, name: str) -> Producer:
        """Make a producer of transactions, which shuts out an earlier one of its name."""
        own = {
            "transactional.id": name,
            "transaction.timeout.ms": int(min(self.topic.declared.timeout_s, _MAX_OPEN_S) * 1000),
            # The brokers judge the size of a record.
            "message.max.bytes": 100_000_000,
            # As clients in Java choose the partition of a key.
            "partitioner": "murmur2_random",
        }
        made: Producer = self._made("Producer", own)
        return made

    def _made(self, kind: str, own: Mapping[str, object]) -> Any:
        try:
            import confluent_kafka
            from confluent_kafka import admin
        except ImportError as error:
            raise missing_client() from error
        makers = {
            "Consumer": confluent_kafka.Consumer,
            "Producer": confluent_kafka.Producer,
            "AdminClient": admin.AdminClient,
        }
        try:
            return makers[kind]({**self.topic.properties, **own}, logger=_log)
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            raise bad_properties(error, self.topic.properties) from None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the client."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise broker_error(self.topic.name, error.args[0]) from error


def _found(one: Any) -> FoundOffset | None:
    return None if one is None or one.offset < 0 else FoundOffset(one.offset, one.timestamp)


class TopicReading:
    """A consumer on ranges of offsets, one range of each partition at a time."""

    def __init__(self, client: KafkaClient, source: str, consumer: Consumer, asked: Spans) -> None:
        self.consumer = consumer
        self._client, self._source, self._topic = client, source, client.topic.name
        self._waiting = {number: deque(spans) for number, spans in asked.items()}
        #: The range that is read of each partition: its next offset, and its end.
        self._open: dict[int, Span] = {}
        #: From where on a range was read, and not taken yet.
        self._marks: dict[int, int] = {}
        self._read: dict[int, list[Span]] = {}
        self._silent_since = time.monotonic()
        self._last_error = ""
        for number in asked:
            self._open_next(number)

    @property
    def is_done(self) -> bool:
        """Whether all ranges were read to their ends."""
        return not self._open

    def take(self, rows: int, size_bytes: int) -> tuple[list[Message], Spans]:
        """Return the next records, and the offsets that are read with them.

        A range is read to its end only when a record at or behind its last offset came, or the
        brokers say that its partition ends there. Raises SourceDown, Blocked.
        """
        self._require_kept()
        self._read, size = {}, 0
        found: list[Message] = []
        self._silent_since = time.monotonic()
        while self._open and len(found) < rows and size < size_bytes:
            missing, before = sum(stop - at for at, stop in self._open.values()), len(found)
            for message in self._consume(min(_AT_ONCE, rows - len(found), missing)):
                if self._holds_plainly(message) or self._holds(message):
                    found.append(message)
                    size += len(message) + len(message.key() or b"")
            if len(found) > before:
                self._silent_since = time.monotonic()
        for number, (offset, _) in self._open.items():
            self._report(number, offset)
        return found, {number: tuple(spans) for number, spans in self._read.items()}

    def _consume(self, count: int) -> list[Message]:
        from confluent_kafka import KafkaException

        try:
            found: list[Message] = self.consumer.consume(count, _WAIT_S)
        except KafkaException as error:
            raise broker_error(self._topic, error.args[0]) from error
        timeout_s = self._client.topic.declared.timeout_s
        if time.monotonic() - self._silent_since > timeout_s:
            number, (offset, stop) = next(iter(self._open.items()))
            raise source_down(
                self._topic,
                f"nothing came for {timeout_s:g} s; partition {number} is at offset {offset}, and "
                f"is to be read up to {stop}{self._last_error}; many offsets without a record need "
                "a longer kafka.timeout_s",
            )
        return found

    def _holds_plainly(self, message: Message) -> bool:
        """Take a record that is neither the first nor the last of its range: nearly all are."""
        offset, number = message.offset(), message.partition()
        own = self._open.get(number)  # type: ignore[arg-type]
        if own is None or offset != own[0] or offset + 1 >= own[1] or message.error() is not None:
            return False
        self._open[number] = (offset + 1, own[1])  # type: ignore[index]
        return True

    def _holds(self, message: Message) -> bool:
        """Take a message; return whether it is a record of a range."""
        number, offset, error = message.partition(), message.offset(), message.error()
        number = -1 if number is None else number
        if error is not None and error.name() != "_PARTITION_EOF":
            self._take_error(number, error)
            return False
        own = self._open.get(number)
        while own is not None and offset is not None and offset >= own[1]:
            self._silent_since = time.monotonic()
            self._close(number, own[1])
            # What closes a range can be a record of the next one; an end is told again.
            own = self._open.get(number) if error is None else None
        if error is not None or own is None or offset is None or offset < own[0]:
            return False
        self._open[number] = (offset + 1, own[1])
        if offset + 1 == own[1]:
            self._close(number, own[1])
        return True

    def _take_error(self, number: int, error: Any) -> None:
        """Raise what no waiting mends; the client itself tries the rest again."""
        name = error.name()
        if name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self._require_kept()
            raise source_down(self._topic, f"partition {number} has not the wanted offset now")
        if is_final(error):
            raise broker_error(self._topic, error)
        self._last_error = f"; the client says {name}"

    def _require_kept(self) -> None:
        """Raise Blocked when retention has removed an offset that is to be read."""
        numbers = list(self._open)
        for number, low in (self._client.lows(numbers) if numbers else {}).items():
            if self._open[number][0] < low:
                offsets = self._open[number][0], low
                raise cut_by_retention(self._source, self._topic, number, offsets)

    def _close(self, number: int, stop: int) -> None:
        self._report(number, stop)
        self._open_next(number)

    def _open_next(self, number: int) -> None:
        from confluent_kafka import TopicPartition

        if number in self._open:
            self.consumer.incremental_unassign([TopicPartition(self._topic, number)])
            del self._open[number]
        if self._waiting[number]:
            first, stop = self._waiting[number].popleft()
            self._open[number], self._marks[number] = (first, stop), first
            self.consumer.incremental_assign([TopicPartition(self._topic, number, first)])

    def _report(self, number: int, offset: int) -> None:
        if offset > self._marks[number]:
            self._read.setdefault(number, []).append((self._marks[number], offset))
            self._marks[number] = offset
