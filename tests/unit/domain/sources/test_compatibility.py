"""Rules of which schema reads what another one wrote; judged against the reader itself."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.domain.sources.compatibility import schema_faults
from lakehouse_backfill.domain.sources.schemas import WriterSchema
from tests.support.sources.registry import avro


def of(schema: Any, kind: Any = "avro") -> WriterSchema:
    return WriterSchema(kind=kind, schema_=schema)


ENUM = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
MORE = {"type": "enum", "name": "K", "symbols": ["A", "B", "C"]}
NODE = avro(("next", ["null", "Node"], None), ("n", "int"), name="Node")


@pytest.mark.req("S7")
@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        (avro(("a", "int")), avro(("a", "long")), [], ["a: long does not become int"]),
        (
            avro(("a", "int")),
            avro(("a", "int"), ("b", "int")),
            ["b: it is not written, and has no default"],
            [],
        ),
        (avro(("a", "int")), avro(("a", "int"), ("b", "int", 0)), [], []),
        (
            avro(("a", "int")),
            avro(("b", "int", 0)),
            [],
            ["a: it is not written, and has no default"],
        ),
        (
            avro(("a", ["null", "int"])),
            avro(("a", "int")),
            ["a: null does not become int"],
            [],
        ),
        (avro(("k", ENUM)), avro(("k", MORE)), [], ["k: the symbols C are not known"]),
        (
            avro(("k", {"type": "array", "items": "int"})),
            avro(("k", {"type": "array", "items": "string"})),
            ["k: int does not become string"],
            ["k: string does not become int"],
        ),
        (
            avro(("a", "int"), name="Paid"),
            avro(("a", "int"), name="Sold"),
            ["the schema: Paid is not Sold"],
            ["the schema: Sold is not Paid"],
        ),
        (NODE, avro(("next", ["null", "Node"], None), ("n", "long"), name="Node"), [],
         ["n: long does not become int"]),
        (
            avro(("m", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})),
            avro(("m", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3})),
            ["m: its logical type is not the same"],
            ["m: its logical type is not the same"],
        ),
        (
            avro(("f", {"type": "fixed", "name": "F", "size": 2})),
            avro(("f", {"type": "fixed", "name": "F", "size": 3})),
            ["f: 2 bytes do not become 3"],
            ["f: 3 bytes do not become 2"],
        ),
    ],
)  # fmt: skip
def test_avro_is_compatible_by_the_rules_of_its_resolution(
    old: Any, new: Any, backward: list[str], forward: list[str]
) -> None:
    assert schema_faults(of(old), of(new), "backward") == backward
    assert schema_faults(of(old), of(new), "forward") == forward


_PLAIN = st.sampled_from(["int", "long", "double", "string", "boolean", "null"])
_TYPES = st.one_of(
    _PLAIN,
    st.sampled_from([ENUM, MORE]),
    st.lists(_PLAIN, min_size=1, max_size=3, unique=True),
    _PLAIN.map(lambda one: {"type": "array", "items": one}),
)
_VALUES = {
    "int": 1, "long": 2**40, "double": 1.5, "string": "x", "boolean": True, "null": None,
}  # fmt: skip


def values_of(kind: Any) -> list[Any]:
    if isinstance(kind, list):
        return [_VALUES[one] for one in kind]
    if isinstance(kind, dict):
        return kind["symbols"] if "symbols" in kind else [[_VALUES[kind["items"]]], []]
    return [_VALUES[kind]]


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from("abc"), _TYPES, min_size=1),
    st.dictionaries(st.sampled_from("abc"), _TYPES, min_size=1),
)
def test_a_reader_without_a_fault_reads_all_that_the_writer_writes(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    # A name stands for one type in a schema.
    assume(all(sum("symbols" in kind for kind in one.values()) < 2 for one in (old, new)))
    writer, reader = (avro(*one.items()) for one in (old, new))
    if schema_faults(of(writer), of(reader), "backward"):
        return
    for kept in range(3):
        record = {name: values_of(kind)[kept % len(values_of(kind))] for name, kind in old.items()}
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, writer, record)
        stream.seek(0)
        fastavro.schemaless_reader(stream, writer, reader)


ONE = ("cents", "int32", "one")


@pytest.mark.req("S7")
@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        ({1: ONE}, {1: ("amount", "int32", "one")}, [], []),
        ({1: ONE}, {1: ONE, 2: ("b", "string", "one")}, [], []),
        (
            {1: ONE},
            {1: ("cents", "int64", "one")},
            [],
            ["M: the number 1 is int64, and int32 there"],
        ),
        (
            {1: ONE},
            {1: ("name", "string", "one")},
            ["M: the number 1 is int32, and string there"],
            ["M: the number 1 is string, and int32 there"],
        ),
        (
            {1: ONE},
            {2: ONE},
            ["M.cents has the number 1, and 2 there"],
            ["M.cents has the number 2, and 1 there"],
        ),
        (
            {1: ONE},
            {1: ("cents", "int32", "repeated")},
            ["M: the number 1 is repeated on one side only"],
            ["M: the number 1 is repeated on one side only"],
        ),
        (
            {1: ONE},
            {1: ONE, 2: ("b", "string", "required")},
            ["M.b is required, and may be absent"],
            [],
        ),
    ],
)
def test_protobuf_is_compatible_by_the_numbers_of_its_fields(
    old: Any, new: Any, backward: list[str], forward: list[str]
) -> None:
    one = of("", "protobuf")
    assert schema_faults(one, one, "backward", ({"M": old}, {"M": new})) == backward
    assert schema_faults(one, one, "forward", ({"M": old}, {"M": new})) == forward


def test_another_format_or_a_message_that_is_gone_is_never_compatible() -> None:
    assert schema_faults(of({}, "json"), of("int"), "backward") == ["it was json, and is avro"]
    one = of("", "protobuf")
    assert schema_faults(one, one, "backward", ({"M": {}}, {})) == ["the message M is not known"]
