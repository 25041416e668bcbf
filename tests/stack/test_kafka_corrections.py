"""Correction events in a topic of a real broker: each once, after the act, whatever was killed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.sources.kafka.producer import KafkaCorrectionTopics
from lakehouse_backfill.domain.sources.topics import CorrectionTopic, SentEvents, TopicRequest
from lakehouse_backfill.errors import Blocked, Conflict
from tests.chaos.faults import Kill
from tests.chaos.lab import BY, DAYS, Lab
from tests.stack.servers import Kafka
from tests.support.fakes.rollout import FakeCorrectionTopics
from tests.support.forks import FORKS
from tests.support.sources.kafka import Topic

pytestmark = pytest.mark.req("U9")
EVENTS = [{"event_id": f"e{n}", "position": n, "key": f"k{n % 3}", "new": "ä"} for n in range(7)]
HEADERS = {"x-run-id": "bf-1", "x-processing-mode": "backfill"}


@dataclass(frozen=True)
class Port:
    """The port under test, one topic, and the ids of the events that are in it."""

    topics: Any
    topic: CorrectionTopic
    held: Callable[[], list[str]]

    def request(self, token: str, **changes: Any) -> TopicRequest:
        since = self.topics.state(self.topic)
        made = TopicRequest(
            topic=self.topic, producer=f"p-{self.topic.name}", token=token, headers=HEADERS,
            since=since,
        )  # fmt: skip
        return made.model_copy(update=changes)


def records(topic: Topic) -> list[Any]:
    """Read all committed records, partition by partition."""
    from confluent_kafka import Consumer, TopicPartition

    topic.settle()
    settings = {"bootstrap.servers": topic.address, "group.id": "judge"}
    settings |= {"enable.partition.eof": "true", "enable.auto.commit": "false"}
    consumer = Consumer(settings)
    numbers = sorted(topic.admin.list_topics(topic.name, timeout=20).topics[topic.name].partitions)
    consumer.assign([TopicPartition(topic.name, number, 0) for number in numbers])
    found, ended = [], 0
    while ended < len(numbers):
        message = consumer.poll(20)
        assert message is not None
        if message.error() is not None:
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return found


@pytest.fixture(params=["fake", "kafka"])
def port(request: pytest.FixtureRequest) -> Port:
    if request.param == "fake":
        fake = FakeCorrectionTopics()
        topic = CorrectionTopic(name="t", bootstrap_servers="nowhere:1")
        return Port(
            fake, topic, lambda: [event["event_id"] for _, event in fake.records.get("t", [])]
        )
    kafka: Kafka = request.getfixturevalue("kafka")
    made = Topic(kafka.address, 2)
    topic = CorrectionTopic(name=made.name, bootstrap_servers=kafka.address, timeout_s=20)
    return Port(
        KafkaCorrectionTopics(events_per_transaction=3), topic,
        lambda: [json.loads(one.value())["event_id"] for one in records(made)],
    )  # fmt: skip


def test_the_events_of_an_act_come_once_whatever_was_sent_before(port: Port) -> None:
    assert port.topics.look(port.topic).looked_at == 0
    first = port.request("t1")
    assert port.topics.send(first, EVENTS[:3]) == SentEvents(sent=3, found=0)
    assert port.topics.send(first, EVENTS) == SentEvents(sent=4, found=3)
    assert port.topics.send(first, EVENTS) == SentEvents(sent=0, found=7)
    assert sorted(port.held()) == sorted(one["event_id"] for one in EVENTS)
    assert port.topics.send(port.request("t2"), EVENTS[:2]).sent == 2
    assert len(port.held()) == 9
    found = port.topics.look(port.topic)
    assert (found.looked_at, found.foreign) == (9, ())


@pytest.fixture
def topic(kafka: Kafka) -> Topic:
    return Topic(kafka.address, 1)


def sending(topic: Topic, **more: Any) -> Port:
    wanted = CorrectionTopic(name=topic.name, bootstrap_servers=topic.address, timeout_s=20)
    return Port(KafkaCorrectionTopics(**more), wanted, list)


def test_records_have_the_headers_of_the_run_and_of_the_event(topic: Topic) -> None:
    port = sending(topic)
    port.topics.send(port.request("t1"), EVENTS[:1])
    (found,) = records(topic)
    assert dict(found.headers()) == {
        "x-run-id": b"bf-1", "x-processing-mode": b"backfill", "x-publication": b"t1",
        "x-position": b"0", "x-event-id": b"e0",
    }  # fmt: skip
    assert (found.key(), json.loads(found.value())) == (b"k0", EVENTS[0])


def test_records_of_others_make_a_topic_a_live_one(topic: Topic) -> None:
    port = sending(topic)
    port.topics.send(port.request("t1"), EVENTS)
    topic.settle()
    topic.send(b"an order")
    topic.flush()
    assert port.topics.look(port.topic).foreign == (f"{topic.name}[0] offset 8",)


def test_a_process_that_was_overtaken_sends_nothing_more(topic: Topic) -> None:
    port = sending(topic, events_per_transaction=2)
    request = port.request("t1")

    def slowly() -> Iterator[dict[str, Any]]:
        yield from EVENTS[:3]
        assert port.topics.send(request, EVENTS) == SentEvents(sent=5, found=2)
        yield from EVENTS[3:]

    with pytest.raises(Conflict, match="has shut this one out"):
        port.topics.send(request, slowly())
    assert [json.loads(one.value())["position"] for one in records(topic)] == list(range(7))


def test_what_cannot_be_read_any_more_is_never_sent_again(topic: Topic) -> None:
    port = sending(topic)
    request = port.request("t1")
    port.topics.send(request, EVENTS[:4])
    topic.cut(0, 2)
    with pytest.raises(Blocked, match="partition 0 lost the records before 2"):
        port.topics.send(request, EVENTS)
    topic.delete()
    topic.create(1)
    with pytest.raises(Blocked, match="is not the topic that the sending began with"):
        port.topics.send(request, EVENTS)
    assert records(topic) == []


def test_a_topic_that_gets_partitions_while_it_is_sent_to_gets_no_more(topic: Topic) -> None:
    port = sending(topic, events_per_transaction=2)
    request = port.request("t1")

    def while_it_grows() -> Iterator[dict[str, Any]]:
        yield from EVENTS[:2]
        topic.grow(2)
        yield from EVENTS[2:]

    for events in (while_it_grows(), EVENTS):
        with pytest.raises(Blocked, match="has 2 partitions, and had 1"):
            port.topics.send(request, events)
    assert len(records(topic)) == 2


def test_a_record_that_is_too_large_is_refused_and_named(topic: Topic) -> None:
    port = sending(topic)
    large = {**EVENTS[0], "new": "x" * 2_000_000}
    with pytest.raises(Blocked, match="MSG_SIZE_TOO_LARGE"):
        port.topics.send(port.request("t1"), [large])
    assert records(topic) == []


#: Before the first and the second transaction of two events each, and behind the last.
MOMENTS = (("committing", 1), ("committing", 2), ("committed", 4))


def _send_until(request: TopicRequest, moment: tuple[str, int]) -> None:
    fault_points.install_hook(Kill(*moment))
    KafkaCorrectionTopics(events_per_transaction=2).send(request, EVENTS)


def test_a_kill_around_each_transaction_loses_and_doubles_no_event(topic: Topic) -> None:
    port = sending(topic, events_per_transaction=2)
    for number, moment in enumerate(MOMENTS):
        request = port.request(f"t{number}")
        point = f"Topics.commit:{moment[0]}"
        child = FORKS.Process(target=_send_until, args=(request, (point, moment[1])))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        found = min(7, moment[1] * 2 - (2 if moment[0] == "committing" else 0))
        assert port.topics.send(request, EVENTS) == SentEvents(sent=7 - found, found=found)
    tokens = [dict(one.headers())["x-publication"].decode() for one in records(topic)]
    assert Counter(tokens) == {f"t{number}": 7 for number in range(len(MOMENTS))}


SINK = """\
  publish_mode: correction_events
  corrections:
    table: silver.t_events
    topic: {{name: {topic}, bootstrap_servers: "{address}", timeout_s: 20}}
"""


@pytest.mark.req("T3")
def test_a_driver_killed_behind_its_transaction_is_followed_by_one_that_sends_each_event_once(
    topic: Topic, tmp_path: Path
) -> None:
    lab = Lab(tmp_path)
    lab.make()
    file = lab.folder / lab.manifest("a.yaml", DAYS[1], DAYS[3])
    sink = SINK.format(topic=topic.name, address=topic.address)
    file.write_text(file.read_text().replace("target:\n", f"target:\n{sink}"))
    profiles = lab.folder / "catalog/profiles.yaml"
    switched = "    switches: {live_topic: true}\n    lease_s"
    profiles.write_text(profiles.read_text().replace("    lease_s", switched))
    lab.run = lab.must("plan", "jobs/a.yaml", *BY).data["run_id"]
    for verb in ("approve", "stage", "validate", "accept"):
        lab.must(verb, lab.run, *BY)
    assert records(topic) == []
    # Kills at all points that fakes have: unit/core/publication/test_corrections.py.
    lab.killed("publish", lab.run, *BY, hook=Kill("Topics.commit:committed"))
    new = [json.loads(one.value())["event_id"] for one in records(topic)]
    assert len(new) == len(set(new)) == 6
    lab.must("recover", "--all", *BY)
    assert len(records(topic)) == 6
    lab.must("rollback", "silver.t", "--reason", "wrong", *BY)
    found = records(topic)
    taken = [json.loads(one.value()) for one in found[-6:]]
    assert {one["corrects_event_id"] for one in taken} == set(new)
    assert {dict(one.headers())["x-run-id"] for one in found} == {lab.run.encode()}
