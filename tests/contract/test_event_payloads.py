"""Events whose payloads are Avro or Protobuf, by the schemas of their writers, on a real lake."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
from lakehouse_backfill.adapters.payloads.decoder import PayloadDecoder
from lakehouse_backfill.adapters.payloads.registry import SchemaRegistryClient
from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient
from lakehouse_backfill.adapters.sources.kafka.config import KafkaTopic
from lakehouse_backfill.adapters.sources.kafka.reader import KafkaReader
from lakehouse_backfill.adapters.sources.schema_values import RegisteredValues
from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.domain.sources.landings import LandingRequest, LandingState, next_state
from lakehouse_backfill.domain.sources.schemas import SchemaRegistry
from lakehouse_backfill.errors import Blocked, Unsupported
from lakehouse_backfill.project import Project
from tests.support.sources.events import DECLARATION, HANDLERS, START, EventCase, Made
from tests.support.sources.messages import ReadMessage
from tests.support.sources.registry import Registry, avro, avro_bytes, header, protobuf, serve

INT64 = 3
#: Millis, euros, cents: the versions 1 to 3 of a payload; the last reads the one before it.
AVRO = (
    avro(("millis", "int")),
    avro(("euros", "int"), ("note", "string", "")),
    avro(("cents", "long", 700), ("note", "string", "")),
)
STEPS = """

def to_euros(payload):
    return {"euros": payload["millis"] // 1000}


def to_cents(payload):
    return {"cents": payload["euros"] * 100}
"""
UPCASTERS = """\
current: {paid: 3}
upcasters:
  - {event_type: paid, from: 1, to: 2, function: "handlers.money:to_euros"}
  - {event_type: paid, from: 2, to: 3, function: "handlers.money:to_cents"}
"""


@pytest.fixture
def case(tmp_path: Path) -> EventCase:
    made = EventCase(tmp_path / "project", payload="binary")
    text = HANDLERS.partition("def to_cents")[0] + STEPS.lstrip("\n")
    (made.project / "handlers/money.py").write_text(text)
    return made


def write_schemas(case: EventCase, schemas: Mapping[int, Any], **more: Any) -> None:
    """Write the schemas of a folder; the version is the last digit of the id."""
    folder = case.project / "schemas"
    folder.mkdir(exist_ok=True)
    for number, one in schemas.items():
        is_proto = isinstance(one, FileDescriptorProto)
        schema = one
        if is_proto:
            text = FileDescriptorSet(file=[one]).SerializeToString()
            schema = base64.b64encode(text).decode()
        kind = "protobuf" if is_proto else "avro"
        made = {"kind": kind, "event_type": "paid", "version": number % 10, "schema": schema}
        (folder / f"{number}.json").write_text(json.dumps({**made, **more}))


def paid(number: int, payload: Any) -> Made:
    return Made(f"e{number}", "A", number, seconds=number, payload=payload)


def avro_events(first_id: int = 11) -> list[Made]:
    records = ({"millis": 4000}, {"euros": 5, "note": "ü"}, {"cents": 600, "note": ""})
    return [
        paid(number, avro_bytes(first_id - 1 + number, AVRO[number - 1], record))
        for number, record in enumerate(records, start=1)
    ]


@pytest.mark.req("S7")
def test_three_versions_of_avro_and_protobuf_replay_in_one_run_by_upcasters(
    case: EventCase,
) -> None:
    write_schemas(case, dict(enumerate(AVRO, start=11)))
    fields = ("millis", "euros", "cents")
    write_schemas(
        case,
        {number + 20: protobuf((name, 1, INT64)) for number, name in enumerate(fields, start=1)},
    )
    case.declare(f"version: {{schemas: schemas}}\n{UPCASTERS}")
    protos = [
        paid(number, header(number + 17, b"\x00\x08" + varint(value)))
        for number, value in ((4, 7000), (5, 8), (6, 900))
    ]
    case.append([*avro_events(), *protos])
    done = case.replay()
    assert (done.done, done.rejected) == (6, 0)
    assert case.states()["A"]["cents"] == 400 + 500 + 600 + 700 + 800 + 900
    rebuilt = Project.open(case.project).rebuild("orders", "balances", "A")
    assert rebuilt.state["cents"] == case.states()["A"]["cents"]


def varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made, value = made + bytes([value & 0x7F | 0x80]), value >> 7
    return made + bytes([value])


@pytest.mark.req("S7")
def test_old_avro_is_read_as_the_readers_schema_and_what_is_damaged_is_rejected_with_a_reason(
    case: EventCase,
) -> None:
    write_schemas(case, {12: AVRO[1], 13: AVRO[2]})
    write_schemas(case, {19: AVRO[2]}, event_type="refunded")
    version = "version: {schemas: schemas, readers: {paid: 13}, compatibility: %s}\n"
    case.declare(version % "backward" + "current: {paid: 3}\n")
    good = avro_events()[1:]
    given = [
        *(paid(place, one.payload) for place, one in enumerate(good, start=1)),
        paid(3, header(99, b"\x00")),
        paid(4, avro_bytes(13, AVRO[2], {"cents": 1, "note": ""})[:-1]),
        paid(5, avro_bytes(19, AVRO[2], {"cents": 1, "note": ""})),
        paid(6, b"no header"),
    ]  # fmt: skip
    case.append(given)
    done = case.replay()
    assert (done.done, done.rejected) == (2, 4)
    assert case.states()["A"]["cents"] == 700 + 600
    reasons = {row["sequence_num"]: row["reason"] for row in case.rows() if row["reason"]}
    assert reasons == {
        3: "its payload has the schema 99, which is not known",
        4: "its payload is no Avro of its schema: EOFError",
        5: "its payload has a schema of refunded",
        6: "its payload is no JSON: JSONDecodeError",
    }
    write_schemas(case, {14: avro(("cents", "string"), ("note", "string", ""))})
    with pytest.raises(Unsupported, match="schema 14 read as 13: cents: string does not become"):
        case.replay()
    case.declare(version % "none" + "current: {paid: 3}\n")
    case.append([paid(7, avro_bytes(14, avro(("cents", "string"), ("note", "string")),
                                    {"cents": "1", "note": ""}))])  # fmt: skip
    assert case.replay().rejected == 1
    assert "does not resolve into the reader's" in case.rows()[-1]["reason"]


TOPIC = SourceDeclaration.model_validate(
    {
        "api_version": "lakehouse-backfill/v1", "source": "orders", "kind": "kafka",
        "table": "bronze.landed",
        "columns": [
            {"name": name, "type": kind}
            for name, kind in (("id", "string"), ("kind", "string"), ("number", "long"),
                               ("at", "timestamptz"), ("account", "string"))
        ],
        "kafka": {"bootstrap_servers": "none:9", "topic": "orders", "format": "json",
                  "unreadable": "keep", "schemas": {"url": "http://none"}},
    }
)  # fmt: skip
FACTS = (
    ("id", "string"), ("account", "string"), ("kind", "string"), ("number", "long"),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
)  # fmt: skip
LANDED = DECLARATION.replace("bronze.order_events", "bronze.landed") + (
    "columns: {event_id: id, aggregate_id: account, event_type: kind, sequence_num: number,\n"
    "  occurred_at: at, payload: kafka_value}\n"
    "version: {landed_schemas: true, compatibility: none}\n"
)


class Landing:
    """Commits values as the landing of a topic does, checkpoint by checkpoint."""

    def __init__(self, case: EventCase, url: str, **schemas: Any) -> None:
        wiring = Project.open(case.project).wiring
        self.tables = IcebergRawTables(wiring.catalog)
        declared = SchemaRegistry(url=url, retries=0, **schemas)
        kept = self.tables.schemas(TOPIC.table)
        decoder = PayloadDecoder(kept, SchemaRegistryClient(declared).find)
        assert TOPIC.kafka is not None
        client = KafkaClient(KafkaTopic.open(TOPIC.kafka))
        self.values = RegisteredValues(declared, decoder, kept)
        self.reader = KafkaReader(
            TOPIC, IcebergRawTables.record_schema(TOPIC), client, None, None, self.values  # type: ignore[arg-type]
        )  # fmt: skip
        self.tables.ensure(TOPIC)

    def land(self, values: list[bytes | None], first: int = 0) -> None:
        """Land values in one commit."""
        messages: Any = [
            ReadMessage(place, None, one) for place, one in enumerate(values, start=first)
        ]
        rows, new = self.reader.rows(messages), self.values.take_new()
        before = self.tables.state(TOPIC.table) or LandingState(
            landing_id="ld-1", source="orders", request=LandingRequest(), started_at=START
        )
        state = next_state(before, rows=before.rows + rows.num_rows)
        staged = self.tables.stage(TOPIC.table, [rows], state)
        self.tables.commit(TOPIC.table, (staged,), state, (), new)


@pytest.mark.req("S7")
def test_what_a_topic_has_landed_by_a_registry_is_read_again_without_one(case: EventCase) -> None:
    versions = [avro(*FACTS, (name, "long")) for name in ("millis", "euros", "cents")]
    at = START
    records = [
        {"id": f"e{n}", "account": "A", "kind": "paid", "number": n, "at": at, name: value}
        for n, (name, value) in enumerate((("millis", 4000), ("euros", 5), ("cents", 600)), start=1)
    ]
    with serve(Registry()) as registry:
        for number, schema in enumerate(versions, start=1):
            registry.add(10 + number, "orders-value", number, schema)
        landing = Landing(case, registry.url)
        landing.land([avro_bytes(11, versions[0], records[0]), None])
        asked = len(registry.asked)
        landing.land([avro_bytes(11, versions[0], {**records[0], "id": "e0", "number": 0})], 2)
        assert len(registry.asked) == asked
    # The registry is gone: schemas that were kept are not asked for.
    again = Landing(case, registry.url)
    assert again.tables.schemas(TOPIC.table).keys() == {11}
    again.land([avro_bytes(11, versions[0], {**records[0], "id": "e-", "number": -1})], 3)
    with serve(Registry()) as registry:
        for number, schema in enumerate(versions, start=1):
            registry.add(10 + number, "orders-value", number, schema)
        Landing(case, registry.url).land(
            [avro_bytes(12, versions[1], records[1]), avro_bytes(13, versions[2], records[2]),
             header(77, b""), b"{}", avro_bytes(12, versions[1], records[1])[:-1]], 4)  # fmt: skip
    rows = case.table(TOPIC.table).scan().to_arrow().sort_by("kafka_offset").to_pylist()
    assert [row["id"] for row in rows] == ["e1", None, "e0", "e-", "e2", "e3", None, None, None]
    assert rows[0]["at"] == START
    assert [row["parse_error"] for row in rows[6:]] == [
        "has the schema 77, which is not known", "has no header with the id of a schema",
        "is no Avro of its schema: EOFError",
    ]  # fmt: skip
    case.table(TOPIC.table).delete("kafka_offset in (1, 2, 3, 6, 7, 8)")
    case.declare(UPCASTERS, LANDED)
    assert case.replay().done == 3
    assert case.states()["A"]["cents"] == 400 + 500 + 600


@pytest.mark.req("S7")
def test_a_schema_that_breaks_what_is_declared_of_its_subject_lands_nothing(
    case: EventCase,
) -> None:
    old, new = avro(*FACTS, ("cents", "long")), avro(*FACTS, ("euros", "long"))
    record = {"id": "e1", "account": "A", "kind": "paid", "number": 1, "at": START}
    with serve(Registry()) as registry:
        registry.add(1, "orders-value", 1, old)
        registry.add(2, "orders-value", 2, new)
        landing = Landing(case, registry.url, compatibility="backward")
        landing.land([avro_bytes(1, old, {**record, "cents": 1})])
        with pytest.raises(Blocked, match=r"1 to 2 \(backward\): euros: it is not written"):
            landing.land([avro_bytes(2, new, {**record, "euros": 1})], 1)
    assert case.table(TOPIC.table).scan().to_arrow().num_rows == 1
    assert landing.tables.schemas(TOPIC.table).keys() == {1}
