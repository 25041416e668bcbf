"""A schema registry over HTTP: what is asked, what is found, and which errors a retry helps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lakehouse_backfill.adapters.payloads.decoder import PayloadDecoder
from lakehouse_backfill.adapters.payloads.registry import SchemaRegistryClient
from lakehouse_backfill.domain.sources.schemas import SchemaRegistry, WriterSchema
from lakehouse_backfill.errors import Blocked, ConfigError, SourceDown
from tests.support.sources.registry import Registry, avro, header, protobuf, serve

INT64 = 3


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serve(Registry()) as served:
        yield served


def client(registry: Registry, **more: Any) -> SchemaRegistryClient:
    return SchemaRegistryClient(SchemaRegistry(url=registry.url, **{"retries": 0, **more}))


@pytest.mark.req("S7")
def test_a_schema_comes_with_its_version_and_with_what_it_refers_to(registry: Registry) -> None:
    money, order = avro(("cents", "int"), name="Money"), avro(("fare", "shop.Money"), name="Order")
    registry.add(3, "money/eur", 1, money)
    reference = {"name": "shop.Money", "subject": "money/eur", "version": 1}
    registry.add(4, "orders-value", 2, order, references=[reference])
    found = client(registry).find(4)
    assert found == WriterSchema(
        kind="avro", version=2, subject="orders-value", schema_=order, references=(money,)
    )
    decoder = PayloadDecoder({}, client(registry).find)
    assert json.loads(decoder.decode(header(4, b"\x0a")).text) == {"fare": {"cents": 5}}
    assert client(registry).find(9) is None


@pytest.mark.req("S7")
def test_protobuf_comes_as_descriptors_that_import_each_other(registry: Registry) -> None:
    money = protobuf(("cents", 1, INT64), message="Money")
    order = protobuf(message="Order")
    order.dependency.append("shop/money.proto")
    order.message_type[0].field.add(
        name="fare", number=1, type=11, type_name=".shop.Money", label=1
    )
    registry.add(3, "money", 1, money)
    reference = {"name": "shop/money.proto", "subject": "money", "version": 1}
    registry.add(4, "orders", 1, order, references=[reference])
    decoder = PayloadDecoder({}, client(registry).find)
    data = header(4, b"\x00\x0a\x02\x08\x07")
    assert json.loads(decoder.decode(data).text) == {"fare": {"cents": 7}}


def test_an_outage_is_waited_for_and_then_is_one_that_a_retry_may_help(registry: Registry) -> None:
    registry.add(1, "a", 1, {"type": "object"}, schemaType="JSON")
    registry.failures = [503]
    found = client(registry, retries=1).find(1)
    assert found == WriterSchema(schema_={"type": "object"}, version=1, subject="a")
    registry.failures = [500]
    with pytest.raises(SourceDown, match="it answers 500"):
        client(registry).find(1)
    with pytest.raises(SourceDown, match="no answer"):
        SchemaRegistryClient(SchemaRegistry(url="http://127.0.0.1:9", retries=0)).find(1)


def test_a_refusal_is_no_outage_and_the_secret_is_not_shown(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(1, "a", 1, {}, schemaType="JSON")
    registry.secret = "Basic dTpzM2NyZXQ="
    with pytest.raises(Blocked, match="it answers 401") as refused:
        client(registry).find(1)
    assert "s3cret" not in str(refused.value)
    monkeypatch.setenv("REGISTRY", "u:s3cret")
    assert client(registry, credentials="REGISTRY").find(1) is not None
    registry.secret = "Bearer token"
    monkeypatch.setenv("REGISTRY", "token")
    assert client(registry, credentials="REGISTRY").find(1) is not None
    monkeypatch.delenv("REGISTRY")
    with pytest.raises(ConfigError, match="REGISTRY of schemas"):
        client(registry, credentials="REGISTRY")


def test_only_the_registrys_own_answer_says_that_there_is_no_schema(registry: Registry) -> None:
    registry.add(1, "a", 1, {}, schemaType="JSON")
    wrong = SchemaRegistry(url=f"{registry.url}/other", retries=0)
    registry.paths = ("/schemas", "/subjects")
    with pytest.raises(Blocked, match="it answers 404 to /schemas/ids/1"):
        SchemaRegistryClient(wrong).find(1)
    registry.paths = ("/schemas/ids/1",)
    registry.knows_versions = False
    assert client(registry).find(1) == WriterSchema(schema_={})


@pytest.mark.parametrize(
    "more",
    [
        {"schema": "{"},
        {"schemaType": "XML"},
        {"schemaType": "PROTOBUF", "schema": "syntax"},
        {"references": [{"name": "x"}]},
        {"references": [{"name": "x", "subject": "a", "version": 1}]},
    ],
)
def test_odd_answers_are_errors_that_name_the_registry(
    registry: Registry, more: dict[str, Any]
) -> None:
    registry.add(1, "a", 1, {}, **more)
    with pytest.raises(Blocked, match=r"the schema registry http://127"):
        client(registry).find(1)


@pytest.mark.parametrize("body", [[], 3, None, "text", True])
def test_an_answer_of_another_form_is_an_error_that_names_the_registry(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    monkeypatch.setattr(registry, "answer", lambda *_: (200, body))
    with pytest.raises(Blocked, match=r"ids/1 has another form than said"):
        client(registry).find(1)
