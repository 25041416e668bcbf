"""Topics of a real broker: the rules of every kind of source, and those of offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.change_log import arrow_state_as_of
from lakehouse_backfill.domain.sources.topic_offsets import WindowOffsets
from lakehouse_backfill.errors import Blocked, SourceDown
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.chaos.lab import DAYS, SCOPE, SOURCE, TARGET, Lab
from tests.chaos.worker import LabWiring
from tests.contract.test_sources import (
    require_no_kill_matters,
    test_each_record_is_landed_once_and_the_snapshot_is_pinned,  # noqa: F401 (the same test, on `case`)
)
from tests.stack.servers import Kafka
from tests.support.sources.case import land, require_each_row_once
from tests.support.sources.changes import CHANGE_LOG, Change, envelope, oracle
from tests.support.sources.files import trips
from tests.support.sources.kafka import JSON, KafkaCase, Topic

NewCase = Callable[..., KafkaCase]
RAW = "  rows_per_commit: 1000\n"
EIGHT = datetime(2026, 1, 1, 8, tzinfo=timezone.utc)


@pytest.fixture
def new_case(kafka: Kafka, tmp_path: Path) -> NewCase:
    def make(more: str = JSON, partitions: int = 2, **settings: str) -> KafkaCase:
        topic = Topic(kafka.address, partitions, **settings)
        return KafkaCase(tmp_path / "project", topic, more)

    return make


@pytest.fixture
def case(new_case: NewCase) -> KafkaCase:
    return new_case()


def milliseconds(hour: float) -> int:
    """The instant at this hour of the first day of 2026, as Kafka writes it."""
    return int((EIGHT.timestamp() + (hour - 8) * 3600) * 1000)


@pytest.mark.req("S2")
def test_a_landing_that_was_killed_anywhere_loses_and_doubles_no_record(case: KafkaCase) -> None:
    require_no_kill_matters(case)


@pytest.mark.req("S2")
def test_key_headers_time_partition_and_offset_are_kept_as_they_are(new_case: NewCase) -> None:
    case = new_case(RAW)
    at = milliseconds(9)
    case.topic.send(
        b"\x00\xff", 1, key=b"k\xfe", headers=[("a", b"\x01"), ("a", None)], timestamp=at
    )
    case.topic.send(None, 1, timestamp=at + 1)
    case.topic.send(b"", 0, key=b"", timestamp=at)
    case.topic.flush()
    assert land(case).rows == 3
    columns = ("partition", "offset", "timestamp_type", "key", "value", "headers")
    assert case.rows(*(f"kafka_{name}" for name in columns)) == [
        (0, 0, "create_time", b"", b"", []),
        (1, 0, "create_time", b"k\xfe", b"\x00\xff",
         [{"key": "a", "value": b"\x01"}, {"key": "a", "value": None}]),
        (1, 1, "create_time", None, None, []),
    ]  # fmt: skip
    moments = [row[0] for row in case.rows("kafka_timestamp")]
    assert [one.timestamp() * 1000 for one in moments] == [at, at, at + 1]
    assert {row[0] for row in case.rows("kafka_topic")} == {case.topic.name}


@pytest.mark.req("S2")
def test_offsets_without_a_record_are_gaps_and_the_coverage_is_proven(new_case: NewCase) -> None:
    case = new_case(RAW, partitions=1)
    case.topic.transaction([b"a", b"b"], commits=True)
    case.topic.transaction([b"x", b"y", b"z"], commits=False)
    assert land(case).rows == 2
    assert case.rows("kafka_offset", "kafka_value") == [(0, b"a"), (1, b"b")]
    found = case.position()
    assert (found["asked"], found["landed"]) == ({"0": [[0, 7]]}, {"0": [[0, 7]]})
    assert (found["records"], found["gaps"]) == ({"0": 2}, {"0": 5})
    table = Project.open(case.project).wiring.catalog.load_table(case.table)
    summary = table.current_snapshot().summary.additional_properties
    assert json.loads(summary["lakehouse-backfill.landing-position"])["gaps"] == {"0": 5}
    case.topic.transaction([b"c"], commits=True)
    assert land(case).rows == 1
    assert case.position()["asked"] == {"0": [[7, 9]]}


@pytest.mark.req("S2")
def test_records_that_compaction_removed_are_gaps(new_case: NewCase) -> None:
    case = new_case(
        RAW, partitions=1,
        **{"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
    )  # fmt: skip
    for number in range(6):
        case.topic.send(b"%d" % number, key=b"k" if number < 4 else b"%d" % number)
    case.topic.flush()
    end = time.monotonic() + 30
    kept = [b"0"]
    while kept[0] == b"0" and time.monotonic() < end:
        # A record of a new segment: only closed ones are compacted.
        time.sleep(0.3)
        case.topic.send(b"more", key=b"more")
        case.topic.flush()
        kept = case.topic.values()
    landed = land(case).rows
    found = case.position()
    values = [row[0] for row in case.rows("kafka_value")]
    assert [value for value in values if value != b"more"] == [b"3", b"4", b"5"]
    assert found["gaps"]["0"] == found["asked"]["0"][0][1] - landed
    assert found["gaps"]["0"] >= 3


def test_an_open_transaction_holds_the_end_back_and_a_later_landing_reads_it(
    new_case: NewCase,
) -> None:
    case = new_case(RAW, partitions=1)
    case.topic.send(b"a")
    case.topic.flush()
    producer = case.topic.transactional()
    producer.begin_transaction()
    producer.produce(case.topic.name, b"b", partition=0)
    producer.flush(20)
    done = land(case)
    assert done.rows == 1
    assert "an open transaction holds back 1 offsets from 1 on" in " ".join(done.warnings)
    producer.commit_transaction(20)
    assert land(case).rows == 1
    assert [row[0] for row in case.rows("kafka_value")] == [b"a", b"b"]


@pytest.mark.req("M3", "S2")
def test_timestamps_become_offsets_that_stay_when_the_topic_grows(new_case: NewCase) -> None:
    case = new_case(RAW + "  disorder_s: 0\n")
    for hour in range(6, 14):
        case.topic.send(b"%d" % hour, hour % 2, timestamp=milliseconds(hour))
    case.topic.flush()
    project = Project.open(case.project)
    looked = project.preview_landing(case.name, "2026-01-01T08:00:00Z", "2026-01-01T10:30:00Z")
    assert looked.offsets is not None
    assert [(one.partition, one.first, one.stop) for one in looked.offsets] == [
        (0, 1, 3),
        (1, 1, 2),
    ]
    assert "at most 2 records; the topic has 0 to 4" in looked.parts[0].because
    assert "not measured yet" in str(looked.throughput)
    assert not (case.project / ".lakehouse").exists()

    def grow(point: str) -> None:
        if point == "RawTables.stage:before":
            fault_points.install_hook(None)
            case.topic.send(b"late", 0, timestamp=milliseconds(9))
            case.topic.flush()

    fault_points.install_hook(grow)
    done = land(case, from_="2026-01-01T08:00:00Z", to="2026-01-01T10:30:00Z")
    assert done.rows == 3
    assert case.position()["asked"] == {"0": [[1, 3]], "1": [[1, 2]]}
    assert "more than 0 s after their timestamp" in done.warnings[0]
    again = project.preview_landing(case.name, "2026-01-01T08:00:00Z", "2026-01-01T10:30:00Z")
    assert [part.action for part in again.parts] == ["skip", "skip"]
    assert "a second" in str(again.throughput)
    assert land(case, from_="2026-01-01T08:00:00Z", to="2026-01-01T10:30:00Z").landing_id is None
    wider = land(case, from_="2026-01-01T06:00:00Z")
    assert wider.rows == 6
    assert sorted(row[0] for row in case.rows("kafka_value")) == [
        b"10", b"11", b"12", b"13", b"6", b"7", b"8", b"9", b"late",
    ]  # fmt: skip


@pytest.mark.req("P6")
def test_a_window_in_event_time_is_complete_although_offsets_have_another_order(
    new_case: NewCase,
) -> None:
    case = new_case(RAW, partitions=1)
    for hour in (6, 9, 12, 8, 10, 7, 13):
        case.topic.send(b"%d" % hour, timestamp=milliseconds(hour))
    case.topic.flush()
    done = land(case, from_="2026-01-01T08:00:00Z", to="2026-01-01T11:00:00Z")
    assert "it is read on to its end" in done.warnings[0]
    found = {row[0] for row in case.rows("kafka_value")}
    assert {b"8", b"9", b"10"} <= found
    assert b"6" not in found
    # What the brokers said is kept: nothing before offset 1 is of the window.
    assert [1, 2**63 - 1] not in case.position()["facts"]["0"]
    assert [0, 1, "stamped_before", milliseconds(8)] in case.position()["facts"]["0"]


def test_where_brokers_set_the_timestamps_the_end_is_the_offset_of_the_instant(
    new_case: NewCase,
) -> None:
    case = new_case(RAW, partitions=1, **{"message.timestamp.type": "LogAppendTime"})
    case.topic.send(b"a")
    case.topic.flush()
    time.sleep(0.01)
    between = datetime.now(timezone.utc).isoformat()
    time.sleep(0.01)
    case.topic.send(b"b")
    case.topic.flush()
    done = land(case, to=between)
    assert (done.rows, done.warnings) == (1, ())
    assert case.rows("kafka_timestamp_type", "kafka_value") == [("log_append_time", b"a")]


@pytest.mark.req("S2")
def test_a_range_that_retention_cut_is_refused_with_the_first_offset_that_is_left(
    new_case: NewCase,
) -> None:
    case = new_case(RAW)
    for hour in range(6, 12):
        case.topic.send(b"%d" % hour, timestamp=milliseconds(hour))
    case.topic.flush()
    case.topic.cut(0, 3)
    with pytest.raises(Blocked, match=r"before 3, .* is 3 of 2026-01-01T09:00:00.000Z") as refused:
        land(case, from_="2026-01-01T08:00:00Z")
    table = Project.open(case.project).wiring.catalog
    assert not table.table_exists(case.table)
    assert "--from 2026-01-01T09:00:00.000Z" in refused.value.fix
    assert land(case, from_="2026-01-01T09:00:00.000Z").rows == 3
    for hour in range(12, 15):
        case.topic.send(b"%d" % hour, timestamp=milliseconds(hour))
    case.topic.flush()
    case.topic.cut(0, 7)
    with pytest.raises(Blocked, match=r"wants offset 6, .* left is 7"):
        land(case)
    assert len(case.rows("kafka_offset")) == 3


@pytest.mark.req("S2")
def test_retention_that_removes_records_while_they_are_landed_ends_the_landing(
    new_case: NewCase,
) -> None:
    case = new_case("  rows_per_commit: 2\n", partitions=1)
    for number in range(6):
        case.topic.send(b"%d" % number)
    case.topic.flush()

    def cut(point: str) -> None:
        if point == "RawTables.commit:after":
            fault_points.install_hook(None)
            case.topic.cut(0, 4)

    fault_points.install_hook(cut)
    with pytest.raises(Blocked, match=r"wants offset 2, .* left is 4"):
        land(case)
    assert [row[0] for row in case.rows("kafka_offset")] == [0, 1]


def test_a_topic_that_was_made_again_is_refused_and_a_new_partition_is_landed(
    case: KafkaCase,
) -> None:
    case.deliver(trips(1, 4))
    land(case)
    case.topic.grow(3)
    case.topic.send(b"null", 2)
    case.topic.flush()
    with pytest.raises(Blocked, match=r"\[2\], offset 0: .* is no JSON object"):
        land(case)
    case.declare(JSON + "  unreadable: keep\n")
    done = land(case)
    assert done.rows == 1
    assert f"{case.topic.name}[2] is a new partition" in " ".join(done.warnings)
    assert case.rows("id", "kafka_value", "parse_error")[-1] == (
        None, b"null", "is no JSON object",
    )  # fmt: skip
    case.topic.delete()
    with pytest.raises(Blocked, match="UNKNOWN_TOPIC_OR_PART"):
        land(case)
    assert case.topic.name not in case.topic.admin.list_topics(timeout=20).topics
    case.topic.create(3)
    with pytest.raises(Blocked, match="deleted and made again"):
        land(case)


def test_a_value_that_does_not_fit_is_found_among_good_ones(new_case: NewCase) -> None:
    case = new_case("  format: json\n  unreadable: keep\n", partitions=1)
    values = [
        b'{"id": 1}', b'{"id": "x"}', b'{"id": 2} {"id": 3}', b"", b"\xff", b'{"id": NaN}',
        b'{"id": 4, "fare": 1.005}', None, b'{"id": 5, "fare": 10.25, "city": "a\\nb"}',
    ]  # fmt: skip
    for value in values:
        case.topic.send(value)
    case.topic.flush()
    assert land(case).rows == len(values)
    assert case.rows("id", "parse_error", "kafka_value") == [
        (found, error, value)
        for (found, error), value in zip(
            [
                (1, None), (None, "does not fit the declared columns"), (None, "is no JSON"),
                (None, "is no JSON"), (None, "is no UTF-8"), (None, "is no JSON"),
                (None, "does not fit the declared columns"), (None, None), (5, None),
            ],
            values,
            strict=True,
        )
    ]  # fmt: skip


@pytest.mark.req("S2")
def test_consumer_groups_of_the_broker_are_as_they_were(case: KafkaCase) -> None:
    from confluent_kafka import Consumer, TopicPartition

    case.deliver(trips(1, 6))
    live = Consumer(
        {"bootstrap.servers": case.topic.address, "group.id": "live", "enable.auto.commit": False}
    )
    live.commit(offsets=[TopicPartition(case.topic.name, 0, 1)], asynchronous=False)

    def groups() -> dict[str, Any]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        admin = case.topic.admin
        names = [one.group_id for one in admin.list_consumer_groups().result().valid]
        found = {}
        for name in sorted(names):
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])
            places = asked[name].result().topic_partitions
            found[name] = [(one.topic, one.partition, one.offset) for one in places]
        return found

    before = groups()
    assert (case.topic.name, 0, 1) in before["live"]
    seen = []
    fault_points.install_hook(lambda _: seen.append(groups()))
    try:
        land(case)
    finally:
        fault_points.install_hook(None)
    assert groups() == before
    assert all(one == before for one in seen)
    assert len(seen) > 3
    live.close()
    require_each_row_once(case)


@pytest.mark.req("S3")
def test_the_change_log_of_a_topic_gives_the_state_of_its_table(new_case: NewCase) -> None:
    case = new_case(RAW)
    declared = case.project / "catalog/sources/trips.yaml"
    columns = "columns:\n  - {name: id, type: long}\n  - {name: v, type: long}\n" + CHANGE_LOG
    text = declared.read_text().replace("kafka:\n", f"{columns}kafka:\n  format: debezium\n")
    declared.write_text(text)
    log = [
        Change(1, "r", 1, 10, "first"), Change(1, "r", 2, 20, "last"), Change(2, "u", 1, 11),
        Change(3, "c", 3, 30), Change(4, "d", 2, 20), Change(5, "u", 3, 31),
    ]  # fmt: skip
    for one in sorted(log, key=lambda one: one.id % 2):  # not in the order of the changes
        key = json.dumps({"id": one.id}).encode()
        case.topic.send(json.dumps(envelope(one)).encode(), one.id % 2, key=key)
        if one.op == "d":
            case.topic.send(None, one.id % 2, key=key)
    case.topic.flush()
    assert land(case).rows == len(log) + 1
    raw = Project.open(case.project).wiring.catalog.load_table(case.table).scan().to_arrow()
    state = arrow_state_as_of(raw, ["id"])
    assert dict(zip(state["id"].to_pylist(), state["v"].to_pylist(), strict=True)) == oracle(log)


def test_brokers_that_do_not_answer_are_waited_for_and_named(tmp_path: Path) -> None:
    class Nowhere:
        address, name = "127.0.0.1:1", "trips"

    case = KafkaCase(tmp_path / "project", Nowhere(), RAW + "  timeout_s: 0.5\n")  # type: ignore[arg-type]
    text = case.project / "catalog/sources/trips.yaml"
    text.write_text(text.read_text().replace("  timeout_s: 20\n", ""))
    with pytest.raises(SourceDown, match="trips: the brokers answer"):
        land(case)


AMOUNTS = """\
api_version: lakehouse-backfill/v1
source: amounts
kind: kafka
table: bronze.s
columns:
  - {{name: d, type: date}}
  - {{name: k, type: long}}
  - {{name: v, type: long}}
kafka: {{bootstrap_servers: "{address}", topic: {topic}, format: json}}
"""


def amounts(kafka: Kafka, root: Path) -> tuple[Lab, Topic, Path]:
    """The lab, whose source is a topic; and the file that declares it."""
    lab, topic = Lab(root), Topic(kafka.address)
    lab.make()
    with lab.opened() as catalog:
        catalog.drop_table(SOURCE)
    declared = lab.folder / "catalog/sources/amounts.yaml"
    declared.parent.mkdir()
    declared.write_text(AMOUNTS.format(address=topic.address, topic=topic.name))
    return lab, topic, declared


def opened(lab: Lab) -> Project:
    found = Adapters.open(lab.folder, None, NullProgress())
    return Project(LabWiring(found.folder, found.profile, NullProgress(), found.profile_name))


def publish(project: Project, run: str) -> None:
    project.approve(run, by="ana")
    project.run(run, "ana")
    project.accept(run, by="ana")
    project.publish(run, by="ana")


@pytest.mark.req("P6", "M3")
def test_a_window_of_wrong_events_becomes_offsets_of_the_topic_and_is_restated(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Events out of order by their own time; each step by the program's own verbs."""
    lab, topic, declared = amounts(kafka, tmp_path)
    text = declared.read_text()
    wanted: dict[int, list[int]] = {0: [], 1: []}
    for offset, day in enumerate(reversed(DAYS)):
        for number in (0, 1):
            value = json.dumps({"d": day, "k": number + 1, "v": 1}).encode()
            moment = datetime.fromisoformat(f"{day}T12:00:00+00:00")
            topic.send(value, number, timestamp=int(moment.timestamp() * 1000))
            wanted[number] += [offset] if day in SCOPE[:2] else []
    topic.flush()
    project = opened(lab)
    first = project.land("amounts")
    lab.manifest("topic.yaml", SCOPE[0], SCOPE[-1])
    window = f"{SCOPE[0]}..{SCOPE[1]}"
    with pytest.raises(Blocked, match=r"nothing says how long after its d") as refused:
        project.plan("jobs/topic.yaml", by="ana", window=window)
    assert "declare kafka.column_disorder_s.d" in refused.value.fix
    # What was declared since is landed without a record.
    bound = "format: json, column_disorder_s: {d: 864000}"
    declared.write_text(text.replace("format: json", bound))
    second = project.land("amounts")
    assert (second.rows, second.landing_id == first.landing_id) == (0, False)
    assert project.land("amounts").landing_id is None
    planned = project.plan("jobs/topic.yaml", by="ana", window=window)
    assert planned.window is not None
    (source,) = planned.window.sources
    assert source.topic is not None
    assert source.topic.offsets == tuple(
        WindowOffsets(partition=number, first=min(own), last=max(own), records=2)
        for number, own in wanted.items()
    )
    assert planned.window.is_closed
    (pinned, _) = planned.pins
    assert pinned.topic is not None
    assert [(one.partition, one.first, one.stop) for one in pinned.topic.offsets] == [
        (number, 0, len(DAYS)) for number in (0, 1)
    ]
    topic.send(json.dumps({"d": SCOPE[0], "k": 9, "v": 1}).encode(), 0)
    topic.flush()
    run = str(planned.run_id)
    assert project.plan("jobs/topic.yaml", by="ana", dry_run=True).run_id == run
    publish(project, run)
    with lab.opened() as catalog:
        rows = catalog.load_table(TARGET).scan().to_arrow().to_pylist()
    restated = sorted((str(row["d"]), row["k"], row["v"]) for row in rows if row["v"] == 10)
    assert restated == [(day, k, 10) for day in SCOPE[:2] for k in (1, 2)]


@pytest.mark.req("S2", "M3")
def test_a_topic_is_landed_and_restated_from_and_a_later_landing_does_not_change_the_run(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The program's own verbs; Spark's part is played by the lab's engine."""
    lab, topic, _ = amounts(kafka, tmp_path)

    def deliver(day: str, k: int, v: int) -> None:
        topic.send(json.dumps({"d": day, "k": k, "v": v}).encode(), k % 2)
        topic.flush()

    for day in DAYS:
        for k in range(1, 4):
            deliver(day, k, k)
    project = opened(lab)
    landed = project.land("amounts")
    manifest = lab.folder / lab.manifest("topic.yaml", "2024-01-02", "2024-01-05")
    pinned = f"table: bronze.s, at: {landed.tag},"
    manifest.write_text(manifest.read_text().replace("table: bronze.s,", pinned))
    run = str(project.plan("jobs/topic.yaml", by="ana").run_id)
    deliver("2024-01-02", 1, 1000)
    assert project.land("amounts").rows == 1
    publish(project, run)
    with lab.opened() as catalog:
        rows = catalog.load_table(TARGET).scan().to_arrow().to_pylist()
    assert sorted((str(row["d"]), row["k"], row["v"]) for row in rows) == [
        (day, k, k * (10 if day in SCOPE else 100)) for day in DAYS for k in range(1, 4)
    ]
