"""Payloads with Confluent's header: what they become, and what is rejected with a reason."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.adapters.payloads.decoder import PayloadDecoder
from lakehouse_backfill.domain.sources.schemas import UndecodablePayload, WriterSchema
from lakehouse_backfill.errors import ConfigError
from tests.support.sources.registry import avro, avro_bytes, header, protobuf

INT64, INT32, STRING, MESSAGE, DOUBLE = 3, 5, 9, 11, 1
OLD = avro(("cents", "int"), ("note", ["null", "string"], None))
NEW = avro(("amount", "long"), ("currency", "string", "EUR"))
NEW["fields"][0]["aliases"] = ["cents"]


def as_set(*files: FileDescriptorProto) -> str:
    return base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()


def decoder(**schemas: Any) -> PayloadDecoder:
    return PayloadDecoder({int(name[1:]): one for name, one in schemas.items()})


def of_avro(schema: Any, **more: Any) -> WriterSchema:
    return WriterSchema(kind="avro", schema_=schema, **more)


@pytest.mark.req("S7")
def test_avro_is_read_by_its_writers_schema_and_resolved_into_the_readers() -> None:
    known = decoder(_1=of_avro(OLD, version=1), _2=of_avro(NEW, version=2))
    data = avro_bytes(1, OLD, {"cents": 5, "note": "ü"})
    found = known.decode(data)
    assert json.loads(found.text) == {"cents": 5, "note": "ü"}
    assert found.schema is not None
    assert found.schema.version == 1
    assert json.loads(known.decode(data, reader=2).text) == {"amount": 5, "currency": "EUR"}
    newer = avro_bytes(2, NEW, {"amount": 7, "currency": "CHF"})
    assert json.loads(known.decode(newer, reader=2).text) == {"amount": 7, "currency": "CHF"}
    with pytest.raises(UndecodablePayload, match="does not resolve into the reader's"):
        known.decode(newer, reader=1)


@pytest.mark.req("S7")
def test_values_of_avro_that_json_lacks_have_one_text_each() -> None:
    money = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    kind = avro(
        ("fare", money), ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("day", {"type": "int", "logicalType": "date"}), ("raw", "bytes"),
        ("kinds", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
        ("tags", {"type": "map", "values": {"type": "array", "items": "float"}}),
    )  # fmt: skip
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
    record = {
        "fare": Decimal("12.50"), "at": at, "day": at.date(), "raw": b"\x00\xff", "kinds": "B",
        "tags": {"x": [1.5]},
    }  # fmt: skip
    found = decoder(_7=of_avro(kind)).decode(avro_bytes(7, kind, record))
    assert json.loads(found.text) == {
        "fare": "12.50", "at": "2026-01-02T03:04:05.000006+00:00", "day": "2026-01-02",
        "raw": "AP8=", "kinds": "B", "tags": {"x": [1.5]},
    }  # fmt: skip
    bad = avro_bytes(7, kind, {**record, "tags": {"x": [float("nan")]}})
    with pytest.raises(UndecodablePayload, match="NaN or Infinity"):
        decoder(_7=of_avro(kind)).decode(bad)


@pytest.mark.req("S7")
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (header(9, b"\x02"), "has the schema 9, which is not known"),
        (avro_bytes(1, OLD, {"cents": 1})[:-1], "is no Avro of its schema: EOFError"),
        (avro_bytes(1, OLD, {"cents": 1}) + b"\x00", "bytes follow its end"),
        (header(1, b""), "is no Avro of its schema"),
        (header(1, b"\xff" * 40), "is no Avro of its schema"),
        (header(2, b"\x00\x08"), "is no Protobuf of its schema"),
        (header(2, b""), "has no message indexes"),
        (header(2, b"\x02\x01"), "has no message indexes"),
        (header(2, b"\x02\x06\x08\x01"), "names a message that its schema has not"),
        (header(2, b"\xff\xff\xff\xff\xff\xff"), "has no message indexes"),
    ],
)
def test_what_cannot_be_decoded_says_why_and_quotes_nothing(data: bytes, why: str) -> None:
    paid = WriterSchema(kind="protobuf", schema_=as_set(protobuf(("cents", 1, INT64))))
    with pytest.raises(UndecodablePayload, match=why):
        decoder(_1=of_avro(OLD), _2=paid).decode(data)


@given(st.binary(max_size=40), st.sampled_from([1, 2]))
def test_no_bytes_lead_to_another_error(rest: bytes, number: int) -> None:
    paid = WriterSchema(kind="protobuf", schema_=as_set(protobuf(("s", 1, STRING))))
    known = decoder(_1=of_avro(OLD), _2=paid)
    with suppress(UndecodablePayload):
        json.loads(known.decode(header(number, rest)).text)


def nested() -> tuple[FileDescriptorProto, ...]:
    """Return a file that imports another one and an instant, with a message inside another."""
    money = protobuf(("cents", 1, INT64), ("currency", 2, STRING), message="Money")
    made = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    made.dependency.extend(["money.proto", "google/protobuf/timestamp.proto"])
    made.message_type.add(name="Ignored")
    order = made.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="count", number=1, type=INT32, label=1)
    order.field.add(name="id", number=1, type=STRING, label=1)
    order.field.add(name="fare", number=2, type=MESSAGE, type_name=".shop.Money", label=1)
    order.field.add(name="lines", number=3, type=MESSAGE, type_name=".shop.Order.Line", label=3)
    order.field.add(
        name="at", number=4, type=MESSAGE, type_name=".google.protobuf.Timestamp", label=1
    )
    order.field.add(name="rate", number=5, type=DOUBLE, label=1)
    order.field.add(name="gone", number=6, type=MESSAGE, type_name=".shop.Money", label=1)
    return money, made


@pytest.mark.req("S7")
def test_protobuf_is_read_by_descriptors_with_imports_and_message_indexes() -> None:
    known = decoder(_3=WriterSchema(kind="protobuf", schema_=as_set(*nested())))
    order = (
        b"\x0a\x01a" b"\x12\x09\x08\xac\x02\x12\x03EUR?"[:-1].replace(b"\x12\x09", b"\x12\x08")
        + b"\x1a\x02\x08\x07" + b"\x1a\x00" + b"\x22\x02\x08\x01"
    )  # fmt: skip
    found = json.loads(known.decode(header(3, b"\x02\x02" + order)).text)
    assert found == {
        "id": "a", "fare": {"cents": 300, "currency": "EUR"},
        "lines": [{"count": 7}, {"count": 0}], "at": "1970-01-01T00:00:01Z", "rate": 0.0,
        "gone": None,
    }  # fmt: skip
    line = json.loads(known.decode(header(3, b"\x04\x02\x00\x08\x09")).text)
    assert line == {"count": 9}
    assert json.loads(known.decode(header(3, b"\x00")).text) == {}


@pytest.mark.req("S7")
def test_protobuf_of_other_versions_is_read_by_the_numbers_of_the_readers_fields() -> None:
    old = protobuf(("cents", 1, INT32), ("note", 2, STRING))
    new = protobuf(("amount", 1, INT64), ("currency", 3, STRING))
    known = decoder(
        _1=WriterSchema(kind="protobuf", schema_=as_set(old)),
        _2=WriterSchema(kind="protobuf", schema_=as_set(new)),
    )
    data = header(1, b"\x00\x08\x05\x12\x01x")
    assert json.loads(known.decode(data).text) == {"cents": 5, "note": "x"}
    assert json.loads(known.decode(data, reader=2).text) == {"amount": 5, "currency": ""}


@pytest.mark.req("S7")
def test_a_schema_is_asked_for_once_and_json_and_headerless_payloads_stay_as_they_are() -> None:
    asked: list[int] = []

    def find(number: int) -> WriterSchema | None:
        asked.append(number)
        return WriterSchema(version=1) if number == 4 else None

    known = PayloadDecoder({}, find)
    for _ in range(2):
        assert known.decode(header(4, b"{}")).text == b"{}"
        with pytest.raises(UndecodablePayload, match="has the schema 5, which is not known"):
            known.decode(header(5, b"{}"))
    assert known.decode(b'{"a": 1}').text == b'{"a": 1}'
    assert asked == [4, 5]
    assert known.known().keys() == {4}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (of_avro({"type": "record"}), "schema 1 is no Avro schema"),
        (of_avro("shop.Unknown"), "schema 1 is no Avro schema"),
        (WriterSchema(kind="protobuf", schema_="?"), "1 is no set of Protobuf descriptors"),
        (WriterSchema(kind="protobuf", schema_=""), "1 is no set of Protobuf descriptors"),
        (
            WriterSchema(kind="protobuf", schema_=as_set(nested()[1])),
            "1 is no set of Protobuf descriptors",
        ),
    ],
)
def test_a_schema_that_is_none_is_an_error_with_its_id(schema: WriterSchema, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        decoder(_1=schema).decode(header(1, b"\x00\x00"))


def test_avro_types_of_other_files_are_found_in_the_references() -> None:
    money = avro(("cents", "int"), name="Money")
    order = avro(("fare", "shop.Money"), name="Order")
    known = decoder(_1=of_avro(order, references=(money,)))
    assert json.loads(known.decode(header(1, b"\x0a")).text) == {"fare": {"cents": 5}}
    assert FieldDescriptorProto.TYPE_INT64 == INT64


@pytest.mark.parametrize("depth", [3, 100_000])
def test_values_that_nest_without_an_end_do_not_end_the_process(depth: int) -> None:
    inner = {"type": "array", "items": ["null", "Node"]}
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": inner}]}
    data = header(1, b"\x02\x02" * depth + b"\x00" * (depth + 1))
    nested = decoder(_1=of_avro(node))
    if depth == 3:
        assert json.loads(nested.decode(data).text) == {
            "next": [{"next": [{"next": [{"next": []}]}]}]
        }
    else:
        with pytest.raises(UndecodablePayload, match="RecursionError"):
            nested.decode(data)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "Nothing", "size": 0},
        {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]},
        "shop.Empty",
    ],
)
def test_an_array_that_its_payload_does_not_bound_is_not_read(items: Any) -> None:
    empty = {"type": "record", "name": "Empty", "namespace": "shop", "fields": []}
    inside = ["null", {"type": "map", "values": {"type": "array", "items": items}}]
    known = decoder(
        _1=of_avro(avro(("all", inside)), references=(empty,) if items == "shop.Empty" else ())
    )
    endless = b"\x02\x02\x02a" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\x00\x00"
    with pytest.raises(UndecodablePayload, match="items take no bytes"):
        known.decode(header(1, endless))


def test_an_array_of_items_that_may_be_null_is_read() -> None:
    known = decoder(_1=of_avro(avro(("all", {"type": "array", "items": ["null", "int"]}))))
    assert json.loads(known.decode(header(1, b"\x04\x00\x02\x06\x00")).text) == {"all": [None, 3]}
