"""How the brokers of a topic are called, and what is refused before they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
from lakehouse_backfill.adapters.sources.change_records import read_change_lines
from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient, TopicReading
from lakehouse_backfill.adapters.sources.kafka.config import KafkaTopic
from lakehouse_backfill.adapters.sources.kafka.errors import broker_error
from lakehouse_backfill.adapters.sources.kafka.reader import KafkaReader
from lakehouse_backfill.core.landing.offsets import OffsetWindow
from lakehouse_backfill.domain.contract import ContractColumn
from lakehouse_backfill.domain.sources.declaration import (
    ChangeLog,
    KafkaSource,
    SourceDeclaration,
)
from lakehouse_backfill.errors import Blocked, ConfigError, SourceDown
from tests.support.sources.changes import Change, envelope, lines
from tests.support.sources.messages import ReadMessage

SECRET = "s3cret-of-the-broker"
CHANGES = SourceDeclaration(
    api_version="lakehouse-backfill/v1", source="orders", kind="kafka", table="bronze.orders",
    columns=(ContractColumn(name="id", type="long"), ContractColumn(name="v", type="long")),
    change_log=ChangeLog(key=("id",), position=("lsn",)),
    kafka=KafkaSource(bootstrap_servers="127.0.0.1:1", topic="t", format="debezium"),
)  # fmt: skip


def declared(**more: object) -> KafkaSource:
    return KafkaSource(bootstrap_servers="127.0.0.1:1", topic="t", **more)


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    "name",
    [
        "group.id", "enable.auto.commit", "auto.offset.reset", "isolation.level",
        "plugin.library.paths",
        "bootstrap.servers", "ssl.engine.location", "sasl.kerberos.kinit.cmd", "debug",
    ],
)  # fmt: skip
def test_a_property_that_is_not_about_the_connection_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no property that a source can set"):
        KafkaTopic.open(declared(settings={name: "x"}))


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.pem", "ssl.key.password"])
def test_a_secret_stands_in_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is a secret") as refused:
        KafkaTopic.open(declared(settings={name: SECRET}))
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigError, match=r"KAFKA_SECRET of kafka.secrets is not set"):
        KafkaTopic.open(declared(secrets={name: "KAFKA_SECRET"}))
    monkeypatch.setenv("KAFKA_SECRET", SECRET)
    opened = KafkaTopic.open(declared(secrets={name: "KAFKA_SECRET"}))
    assert opened.properties[name] == SECRET
    assert SECRET not in repr(opened)


def test_a_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError, match="confluent-kafka, which is not installed") as refused:
        KafkaClient(KafkaTopic.open(declared())).look(OffsetWindow())
    assert refused.value.fix == "pip install 'lakehouse-backfill[kafka]'"


def test_properties_that_the_client_refuses_are_named_without_their_values() -> None:
    wrong = declared(settings={"security.protocol": "odd-protocol"})
    with pytest.raises(ConfigError, match=r"properties: security\.protocol") as refused:
        KafkaClient(KafkaTopic.open(wrong)).look(OffsetWindow())
    assert "odd-protocol" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", Blocked), ("UNKNOWN_TOPIC_OR_PART", Blocked),
        ("_ALL_BROKERS_DOWN", SourceDown), ("_TIMED_OUT", SourceDown),
        ("LEADER_NOT_AVAILABLE", SourceDown),
    ],
)  # fmt: skip
def test_whether_a_retry_helps_is_in_the_type(name: str, kind: type[Exception]) -> None:
    class Answer:
        def name(self) -> str:
            return name

    assert isinstance(broker_error("t", Answer()), kind)


class StreamedConsumer:
    """Gives messages as one stream each time, whatever is assigned meanwhile."""

    def __init__(self, *streams: list[StreamedMessage]) -> None:
        self._streams = list(streams)

    def consume(self, _count: int, _wait_s: float) -> list[StreamedMessage]:
        return self._streams.pop(0)

    def incremental_assign(self, places: object) -> None:
        pass

    incremental_unassign = incremental_assign


class StreamedMessage:
    """A record of partition 0; without a value the end of the partition."""

    def __init__(self, offset: int, *, is_end: bool = False) -> None:
        self._offset, self._is_end = offset, is_end

    def __len__(self) -> int:
        return 1

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def error(self) -> object:
        class End:
            def name(self) -> str:
                return "_PARTITION_EOF"

        return End() if self._is_end else None


class KeptTopic:
    """A topic that retention removes nothing from."""

    topic = KafkaTopic("t", {}, declared())

    def lows(self, numbers: list[int]) -> dict[int, int]:
        return dict.fromkeys(numbers, 0)


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("asked", "streams", "held"),
    [
        (((0, 3),), [[0, 1, 2]], [0, 1, 2]),
        # The range ends with gaps: a record behind it says so.
        (((0, 3),), [[0, 5]], [0]),
        # That record may be one of the next range, and the stream that it came in may go on.
        (((0, 3), (5, 8)), [[0, 5, 6, 7]], [0, 5, 6, 7]),
        (((0, 3), (5, 8)), [[0, 5], [6, 7, 8]], [0, 5, 6, 7]),
        (((0, 3), (5, 8)), [[0, 5], [5, 6, 7]], [0, 5, 6, 7]),
        (((0, 3), (5, 8), (9, 11)), [[0, 1, 9, 10]], [0, 1, 9, 10]),
        # Or the end of the partition, which is told again for the next range.
        (((0, 3),), [[0, -3]], [0]),
        (((0, 3), (5, 8)), [[0, -9], [5, -9]], [0, 5]),
        # An end before the range is over says nothing.
        (((0, 3),), [[0, -2], [2]], [0, 2]),
    ],
)
def test_ranges_are_read_to_their_ends_and_no_record_twice(
    asked: tuple[tuple[int, int], ...], streams: list[list[int]], held: list[int]
) -> None:
    made = [[StreamedMessage(abs(one), is_end=one < 0) for one in stream] for stream in streams]
    consumer = StreamedConsumer(*made)
    reading = TopicReading(KeptTopic(), "s", consumer, {0: asked})  # type: ignore[arg-type]
    found, spans = reading.take(100, 100)
    assert [one.offset() for one in found] == held
    assert spans == {0: asked}
    assert reading.is_done


def test_a_checkpoint_ends_at_its_rows_and_the_next_one_goes_on_there() -> None:
    stream = [StreamedMessage(0), StreamedMessage(4)]
    consumer = StreamedConsumer(stream[:1], stream[1:])
    reading = TopicReading(KeptTopic(), "s", consumer, {0: ((0, 5),)})  # type: ignore[arg-type]
    assert reading.take(1, 100)[1] == {0: ((0, 1),)}
    assert reading.take(1, 100)[1] == {0: ((1, 5),)}
    assert reading.is_done


class MovingLeader:
    """An admin client of a topic whose partition gets another leader."""

    def __init__(self, *answers: int | str) -> None:
        self._answers = list(answers)

    def list_offsets(self, wanted: Iterable[TopicPartition], **_: object) -> dict[object, object]:
        answer = self._answers.pop(0)
        found: Future[object] = Future()
        if isinstance(answer, int):
            found.set_result(SimpleNamespace(offset=answer))
        else:
            found.set_exception(KafkaException(KafkaError(getattr(KafkaError, answer))))
        return dict.fromkeys(wanted, found)


def test_a_partition_that_gets_another_leader_is_asked_again() -> None:
    moving: Any = MovingLeader("NOT_LEADER_FOR_PARTITION", 7)
    assert KafkaClient(KafkaTopic.open(declared()), [moving]).lows([0]) == {0: 7}
    refusing: Any = MovingLeader("TOPIC_AUTHORIZATION_FAILED", 7)
    with pytest.raises(Blocked, match="TOPIC_AUTHORIZATION_FAILED"):
        KafkaClient(KafkaTopic.open(declared()), [refusing]).lows([0])


def changes(records: list[tuple[Any, Any]]) -> list[dict[str, Any]]:
    schema = IcebergRawTables.record_schema(CHANGES)
    assert CHANGES.kafka is not None
    client = KafkaClient(KafkaTopic.open(CHANGES.kafka))
    reader = KafkaReader(CHANGES, schema, client, None, None)  # type: ignore[arg-type]
    made: Any = [ReadMessage(place, *record) for place, record in enumerate(records)]
    return list(reader.rows(made).to_pylist())


RECORDS = [
    ({"id": 1}, envelope(Change(1, "r", 1, 5, mark="first"))),
    ({"schema": {}, "payload": {"id": 2}}, {"schema": {}, "payload": envelope(Change(2, "c", 2))}),
    (None, envelope(Change(3, "u", 1, 6))),
    ({"id": 1}, {**envelope(Change(4, "d", 1)), "before": None}),
    ({"id": 1}, None),
    (None, None),
]


@pytest.mark.req("S3")
def test_records_of_a_change_log_are_the_same_from_a_topic_as_from_a_file() -> None:
    found = changes(RECORDS)
    own = [name for name in found[0] if not name.startswith(("kafka_", "parse_"))]
    whole = IcebergRawTables.record_schema(CHANGES)
    lined = lines({"key": key, "value": value} for key, value in RECORDS)
    schema = pa.schema([whole.field(name) for name in own])
    assert CHANGES.change_log is not None
    wanted = read_change_lines(lined, CHANGES.change_log, schema).to_pylist()
    assert [{name: row[name] for name in own} for row in found] == wanted
    assert [(row["change_op"], row["id"]) for row in found] == [
        ("r", 1), ("c", 2), ("u", 1), ("d", 1), ("tombstone", 1), ("tombstone", None),
    ]  # fmt: skip
    assert {row["parse_error"] for row in found} == {None}
    assert found[4]["kafka_value"] is None


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ({"id": 2}, b"\xff", "is no JSON"),
        (b"\x00\x00\x00\x00\x01\x02", envelope(Change(2, "c", 2)), "is no JSON"),
        ({"id": 2}, {**envelope(Change(2, "c", 2)), "op": "t"}, "has an op that is none of"),
        ({"id": 2}, envelope(Change(2, "c", 2), {"id": 2, "v": SECRET}), "does not fit"),
        ({"id": "\ud800"}, None, "does not fit"),
        (None, b"[" * 100_000, "is no JSON"),
    ],
    ids=["bytes", "key", "truncation", "type", "surrogate", "deep"],
)  # fmt: skip
def test_a_record_that_is_no_change_ends_the_landing_with_its_offset(
    key: Any, value: Any, problem: str
) -> None:
    with pytest.raises(Blocked, match=rf"t\[0\], offset 6: .*{problem}") as caught:
        changes([*RECORDS, (key, value)])
    assert SECRET not in str(caught.value)
    assert "unreadable" not in caught.value.fix


def test_of_many_values_those_that_do_not_fit_are_found_by_halves() -> None:
    import pyarrow as pa

    from lakehouse_backfill.adapters.sources.formats import unfit_rows

    rows: list[dict[str, Any]] = [{"n": number} for number in range(1000)]
    for place in (0, 500, 999):
        rows[place] = {"n": "x"}
    assert unfit_rows(rows, pa.schema({"n": pa.int64()})) == [0, 500, 999]
    assert unfit_rows([], pa.schema({"n": pa.int64()})) == []
