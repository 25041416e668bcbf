"""Events of a store into a topic of a real broker: each once and in order, whatever was killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.sources.kafka.event_topics import KafkaEventTopics
from lakehouse_backfill.domain.sources.events import EventTopic, EventTopicRequest, StoredEvent
from lakehouse_backfill.errors import Blocked, ConfigError, Conflict
from lakehouse_backfill.project import Project
from tests.chaos.faults import Kill
from tests.stack.servers import Kafka
from tests.support.fakes.events import FakeEventTopics
from tests.support.forks import FORKS
from tests.support.sources.events import EventCase, Made
from tests.support.sources.kafka import Topic

pytestmark = pytest.mark.req("S6", "U9")


def _event(number: int) -> StoredEvent:
    return StoredEvent(
        rank=f"{number}", sequence_num=number, event_id=f"e{number}", aggregate_id=f"a{number % 3}",
        event_type="paid", payload=b'{"n": "\xc3\xa4"}', occurred_us=-number * 1_000_000,
        version=None, aggregate_type=None, correlation_id=None, causation_id=None,
        content_hash=f"h{number}",
    )  # fmt: skip


EVENTS = [_event(number) for number in range(1, 8)]


@dataclass(frozen=True)
class Port:
    """The port under test with one topic; `spoil` sends a record of somebody else."""

    topics: Any
    topic: EventTopic
    spoil: Callable[[], Any]
    settle: Callable[[], Any] = lambda: None

    def request(self, store: str = "orders", version: str = "1.0.0") -> EventTopicRequest:
        headers = {"x-run-id": "rp-1", "x-transform-version": version, "x-event-store": store}
        topic = self.topic.model_copy(update={"version": version})
        return EventTopicRequest(topic=topic, store=store, producer="p", headers=headers)

    def held(self, version: str = "1.0.0") -> list[dict[str, Any]]:
        topic = self.topic.model_copy(update={"version": version})
        self.settle()
        batches = list(self.topics.sent(topic, "orders")())
        rows = pa.concat_tables(batches).to_pylist() if batches else []
        return sorted(rows, key=lambda row: row["sequence_num"])


def lacking(*events: StoredEvent, size: int = 2) -> Callable[[Any], Iterator[Sequence[Any]]]:
    """Choose those of the events that are not handled, so many in a batch."""

    def choose(handled: Any) -> Iterator[Sequence[StoredEvent]]:
        known = {one for batch in handled() for one in batch["event_id"].to_pylist()}
        left = [event for event in events if event.event_id not in known]
        yield from (left[place : place + size] for place in range(0, len(left), size))

    return choose


@pytest.fixture(params=["fake", "kafka"])
def port(request: pytest.FixtureRequest) -> Port:
    if request.param == "fake":
        fake = FakeEventTopics()
        wanted = EventTopic(name="t", bootstrap_servers="nowhere:1", version="1.0.0")
        return Port(fake, wanted, lambda: fake.records["t"].append(None))
    topic = Topic(request.getfixturevalue("kafka").address, 2)
    return _port(topic)


def _port(topic: Topic) -> Port:
    def spoil() -> None:
        topic.send(b"an order")
        topic.flush()

    wanted = EventTopic(
        name=topic.name, bootstrap_servers=topic.address, version="1.0.0", timeout_s=20
    )
    return Port(KafkaEventTopics(), wanted, spoil, topic.settle)


def test_a_topic_gets_what_it_lacks_and_says_what_it_has(port: Port) -> None:
    assert port.held() == []
    assert port.topics.send(port.request(), lacking(*EVENTS[:3])) == 3
    assert port.topics.send(port.request(), lacking(*EVENTS)) == 4
    assert port.topics.send(port.request(), lacking(*EVENTS)) == 0
    assert port.held() == [
        {
            "event_id": one.event_id, "aggregate_id": one.aggregate_id, "state": "",
            "sequence_num": one.sequence_num, "content_hash": one.content_hash,
        }
        for one in EVENTS
    ]  # fmt: skip
    assert port.topics.send(port.request(version="2.0.0"), lacking(*EVENTS[:2])) == 2
    assert (len(port.held()), len(port.held("2.0.0"))) == (7, 2)


def test_a_topic_of_others_is_refused(port: Port) -> None:
    port.topics.send(port.request(), lacking(EVENTS[0]))
    with pytest.raises(Blocked, match="no replayed events of payments"):
        port.topics.send(port.request("payments"), lacking(EVENTS[1]))
    port.spoil()
    for act in (port.held, lambda: port.topics.send(port.request(), lacking(EVENTS[1]))):
        with pytest.raises(Blocked, match="no replayed events of orders"):
            act()


@pytest.fixture
def topic(kafka: Kafka) -> Topic:
    return Topic(kafka.address, 1)


def test_a_topic_that_forgets_records_is_refused(topic: Topic, kafka: Kafka) -> None:
    compacted = _port(Topic(kafka.address, 1, **{"cleanup.policy": "compact"}))
    with pytest.raises(Blocked, match="is compacted"):
        compacted.topics.send(compacted.request(), lacking(*EVENTS))
    port = _port(topic)
    port.topics.send(port.request(), lacking(*EVENTS))
    topic.cut(0, 2)
    with pytest.raises(Blocked, match="lost the records before 2"):
        port.topics.send(port.request(), lacking(*EVENTS))


def test_a_process_that_was_overtaken_sends_nothing_more(topic: Topic) -> None:
    port = _port(topic)

    def slowly(handled: Any) -> Iterator[Sequence[StoredEvent]]:
        batches = lacking(*EVENTS)(handled)
        yield next(batches)
        assert port.topics.send(port.request(), lacking(*EVENTS)) == 5
        yield from batches

    with pytest.raises(Conflict, match="has shut this one out"):
        port.topics.send(port.request(), slowly)
    assert [row["sequence_num"] for row in port.held()] == list(range(1, 8))


def test_a_topic_that_gets_partitions_gets_no_more_events_of_that_version(topic: Topic) -> None:
    port = _port(topic)

    def while_it_grows(handled: Any) -> Iterator[Sequence[StoredEvent]]:
        batches = lacking(*EVENTS)(handled)
        yield next(batches)
        topic.grow(2)
        yield from batches

    with pytest.raises(Blocked, match="has 2 partitions, and had 1"):
        port.topics.send(port.request(), while_it_grows)
    for act in (port.held, lambda: port.topics.send(port.request(), lacking(*EVENTS))):
        with pytest.raises(Blocked, match="has 2 partitions, and had 1") as refused:
            act()
        assert "a new version in catalog/events/orders.yaml" in refused.value.fix
    assert port.topics.send(port.request(version="2.0.0"), lacking(*EVENTS)) == 7
    assert len(port.held("2.0.0")) == 7


TOPICS = """\
topics:
  again:
    name: {name}
    bootstrap_servers: "{address}"
    version: 1.2.0
    events_per_transaction: 2
    timeout_s: 20
"""
STORED = [Made(f"e{number}", f"A{number % 2}", 1 + number // 2) for number in range(7)]


def _send(project: Path, hook: Kill | None) -> None:
    from lakehouse_backfill import fault_points

    fault_points.install_hook(hook)
    Project.open(project).replay_into_topic("orders", "again")


@pytest.mark.req("X8", "T3")
def test_a_replay_into_a_topic_is_killed_and_goes_on_and_each_aggregate_is_in_order(
    topic: Topic, tmp_path: Path
) -> None:
    case = EventCase(tmp_path / "project")
    case.declare(TOPICS.format(name=topic.name, address=topic.address))
    case.append(STORED[::-1])
    project = Project.open(case.project)
    with pytest.raises(Blocked, match="switched off"):
        project.replay_into_topic("orders", "again")
    profiles = case.project / "catalog/profiles.yaml"
    switched = "    switches: {live_topic: true}\n    catalog:"
    profiles.write_text(profiles.read_text().replace("    catalog:", switched))
    assert Project.open(case.project).check_topic("orders", "again").left == 7
    for when, sent in (("committing", 2), ("committed", 6)):
        # The second transaction of each process; what was open is over, and is sent again.
        kill = Kill(f"Topics.commit:{when}", 2)
        child = FORKS.Process(target=_send, args=(case.project, kill))
        child.start()
        child.join(120)
        assert child.exitcode == -9
        if when == "committed":
            topic.settle()
        assert len(topic.values()) == sent
    done = Project.open(case.project).replay_into_topic("orders", "again")
    assert (done.total, done.sent) == (1, 1)
    assert Project.open(case.project).replay_into_topic("orders", "again").total == 0
    found = _records(topic)
    names = [header["x-event-id"].decode() for _, header, _ in found]
    assert sorted(names) == sorted(one.event_id for one in STORED)
    for aggregate in ("A0", "A1"):
        numbers = [int(header["x-sequence"]) for key, header, _ in found if key == aggregate]
        assert numbers == sorted(numbers)
    _, header, value = found[-1]
    assert json.loads(value) == {"cents": STORED[-1].cents}
    assert (header["x-run-id"].decode(), header["x-processing-mode"]) == (done.replay_id, b"replay")
    assert header["x-transform-version"] == b"1.2.0"
    assert header["x-input-snapshot"].decode() == f"bronze.order_events={done.snapshot_id}"


def test_a_topic_that_is_landed_is_a_live_one(tmp_path: Path) -> None:
    case = EventCase(tmp_path / "project")
    case.declare(TOPICS.format(name="orders-live", address="nowhere:1"))
    source = case.project / "catalog/sources/orders.yaml"
    source.parent.mkdir(exist_ok=True)
    source.write_text(
        "api_version: lakehouse-backfill/v1\nsource: orders\nkind: kafka\ntable: bronze.orders\n"
        'kafka: {bootstrap_servers: "nowhere:1", topic: orders-live}\n'
    )
    with pytest.raises(ConfigError, match="is landed by the source orders: it is a live topic"):
        Project.open(case.project).replay_into_topic("orders", "again")


def _records(topic: Topic) -> list[tuple[str, dict[str, bytes], bytes]]:
    """Read the key, the headers and the value of all committed records of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": topic.address, "group.id": "judge"}
    settings |= {"enable.partition.eof": "true", "enable.auto.commit": "false"}
    topic.settle()
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    found = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        key = (message.key() or b"").decode()
        found.append((key, dict(message.headers() or ()), message.value() or b""))
    consumer.close()
    return found
