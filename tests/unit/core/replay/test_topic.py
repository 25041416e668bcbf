"""Replays into a topic: each event once and in order, and only into one that is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.local.event_set import DuckEventSet
from lakehouse_backfill.core.replay.topic import (
    TopicReplayOutcome,
    TopicReplayPorts,
    check_topic,
    replay_into_topic,
)
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.sources.events import (
    EventStoreDeclaration,
    ReplayJob,
    ReplayRequest,
)
from lakehouse_backfill.errors import Blocked, RejectedInput, SourceDown
from lakehouse_backfill.fault_points import watch_ports
from tests.support.fakes.compute import SilentJournal, SilentProgress
from tests.support.fakes.events import FakeEventTopics
from tests.support.fakes.kills import Killed, killed_at
from tests.support.fakes.lake import FixedClock

pytestmark = pytest.mark.req("S6", "E1")
#: (aggregate, number, second): by second, but each aggregate in its own order.
EVENTS = [("a", 1, 5), ("b", 1, 1), ("a", 2, 3), ("b", 2, 9), ("c", 1, 9), ("a", 3, 10)]
IN_ORDER = ["b1", "a1", "a2", "b2", "c1", "a3"]


def _rows(events: Sequence[tuple[str, int, int]], payload: bytes = b"{}") -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "event_id": f"{name}{number}", "aggregate_id": name, "event_type": "paid",
                "payload": payload, "sequence_num": number, "occurred_us": second * 1_000_000,
            }
            for name, number, second in events
        ]
    )  # fmt: skip


class Store:
    """A reader of one list of events, and a ledger that keeps its rows."""

    def __init__(self, events: Sequence[tuple[str, int, int]] = EVENTS) -> None:
        self.rows = _rows(events)
        self.jobs: list[ReplayJob] = []

    def head(self, _: Any) -> int:
        return 7

    def open(self, *_: Any) -> DuckEventSet:
        return DuckEventSet([self.rows], 1)

    def record(self, *_: Any) -> None:
        raise AssertionError("a topic has no handler")

    def report(self, job: ReplayJob) -> None:
        self.jobs.append(job)


def _store(version: str = "1.0.0", size: int = 2) -> EventStoreDeclaration:
    topic = {
        "name": "orders-replay", "bootstrap_servers": "nowhere:1", "version": version,
        "events_per_transaction": size,
    }  # fmt: skip
    return EventStoreDeclaration.model_validate(
        {
            "api_version": "lakehouse-backfill/v1", "events": "orders", "table": "bronze.orders",
            "topics": {"again": topic},
        }
    )  # fmt: skip


def _ports(store: Any = None, topics: Any = None, **switches: bool) -> TopicReplayPorts:
    store = store or Store()
    profile = {"catalog": {"name": "lake"}, "switches": {"live_topic": True} | switches}
    return TopicReplayPorts(
        reader=store, topics=topics or FakeEventTopics(), ledger=store, clock=FixedClock(),
        journal=SilentJournal(), progress=SilentProgress(),
        profile=Profile.model_validate(profile),
    )  # fmt: skip


def _send(ports: TopicReplayPorts, version: str = "1.0.0", **wanted: Any) -> TopicReplayOutcome:
    return replay_into_topic(ports, _store(version), "again", ReplayRequest(**wanted))


def _sent(ports: TopicReplayPorts) -> list[str]:
    held = ports.topics.records.get("orders-replay", [])  # type: ignore[attr-defined]
    return [record[1].event_id for record in held]


def test_all_events_are_sent_once_in_order_with_the_headers_of_their_replay() -> None:
    ports = _ports()
    assert check_topic(ports, _store(), "again", ReplayRequest()).left == 6
    done = _send(ports)
    assert (done.total, done.sent, _sent(ports)) == (6, 6, IN_ORDER)
    headers = ports.topics.records["orders-replay"][0][0]  # type: ignore[attr-defined]
    assert headers == {
        "x-run-id": done.replay_id, "x-processing-mode": "replay",
        "x-transform-version": "1.0.0", "x-input-snapshot": "bronze.orders=7",
        "x-event-store": "orders",
    }  # fmt: skip
    assert (_send(ports).total, len(_sent(ports))) == (0, 6)
    jobs: list[ReplayJob] = ports.ledger.jobs  # type: ignore[attr-defined]
    assert [(one.status, one.events, one.total) for one in jobs] == [
        ("running", 0, 6), ("done", 6, 6),
    ]  # fmt: skip
    lines = ports.journal.lines  # type: ignore[attr-defined]
    assert {fields["processing_mode"] for _, fields in lines} == {"replay"}


@pytest.mark.req("X8", "U9")
def test_nothing_is_read_or_sent_while_topics_are_switched_off() -> None:
    class Unread(Store):
        def head(self, _: Any) -> int:
            raise AssertionError

    ports = _ports(Unread(), live_topic=False)
    for act in (replay_into_topic, check_topic):
        with pytest.raises(Blocked, match=r"topics of bronze\.orders are switched off") as refused:
            act(ports, _store(), "again", ReplayRequest())
        assert refused.value.state == "nothing was sent"
    assert _sent(ports) == []


@pytest.mark.req("U9")
def test_a_topic_with_records_of_others_is_refused() -> None:
    ports = _ports()
    _send(ports, aggregate="a")
    ports.topics.records["orders-replay"].append(None)  # type: ignore[attr-defined]
    with pytest.raises(Blocked, match="no replayed events of orders"):
        _send(ports)
    with pytest.raises(Blocked, match="no replayed events of orders"):
        check_topic(ports, _store(), "again", ReplayRequest())


@pytest.mark.req("T3")
def test_a_replay_that_is_killed_anywhere_loses_and_doubles_no_event() -> None:
    with killed_at(0) as reached:
        _send(watch_ports(_ports()))
    assert {"ReplayLedger.report:before", "EventTopics.send:before"} <= set(reached)
    for moment in range(1, len(reached) + 1):
        ports = _ports()
        with pytest.raises(Killed), killed_at(moment):
            _send(watch_ports(ports))
        _send(ports)
        assert _sent(ports) == IN_ORDER, reached[moment - 1]


def test_brokers_that_go_away_between_two_transactions_leave_whole_ones() -> None:
    class Down(FakeEventTopics):
        def send(self, request: Any, choose: Any) -> int:
            def some(handled: Any) -> Any:
                batches = choose(handled)
                yield next(batches)
                next(batches)
                raise SourceDown("no broker", state="the source's", fix="later")

            return super().send(request, some)

    down = Down()
    ports = _ports(topics=down)
    with pytest.raises(SourceDown) as caught:
        _send(ports)
    assert caught.value.state.startswith("at least 2 of 6 events are in orders-replay")
    again = replace(ports, topics=FakeEventTopics(down.records))
    assert _send(again).total == 4
    assert _sent(again) == IN_ORDER
    jobs: list[ReplayJob] = ports.ledger.jobs  # type: ignore[attr-defined]
    assert [one.status for one in jobs] == ["running", "failed", "running", "done"]


def test_events_that_come_too_late_wait_for_a_new_version() -> None:
    ports = _ports(Store(EVENTS[:3]))
    _send(ports)
    ports.reader.rows = _rows(EVENTS[:4])  # type: ignore[attr-defined]
    assert _send(ports).sent == 1
    late = _ports()
    _send(late, from_=datetime(1970, 1, 1, 0, 0, 4, tzinfo=timezone.utc))
    with pytest.raises(Blocked, match="has later events of the same aggregates"):
        _send(late)
    assert check_topic(late, _store(), "again", ReplayRequest()).faults
    assert _send(late, "1.1.0").sent == 6


def test_an_event_that_was_sent_with_another_content_stops_a_replay() -> None:
    ports = _ports()
    _send(ports, aggregate="a")
    ports.reader.rows = _rows(EVENTS, b'{"other": 1}')  # type: ignore[attr-defined]
    with pytest.raises(Blocked, match="another content than they have now"):
        _send(ports)
    assert _sent(ports) == ["a1", "a2", "a3"]


def test_events_that_contradict_each_other_are_not_sent() -> None:
    ports = _ports(Store([("a", 1, 1), ("a", 3, 2)]))
    with pytest.raises(RejectedInput, match="miss sequence numbers"):
        _send(ports)
    assert _sent(ports) == []
