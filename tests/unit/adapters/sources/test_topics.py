"""How the brokers of a topic are called, and what is refused before they are."""

from __future__ import annotations

import sys

import pytest

from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient
from lakehouse_backfill.adapters.sources.kafka.config import KafkaTopic
from lakehouse_backfill.adapters.sources.kafka.errors import broker_error
from lakehouse_backfill.core.landing.offsets import OffsetWindow
from lakehouse_backfill.domain.sources.declaration import KafkaSource
from lakehouse_backfill.errors import Blocked, ConfigError, SourceDown

SECRET = "s3cret-of-the-broker"


def declared(**more: object) -> KafkaSource:
    return KafkaSource(bootstrap_servers="127.0.0.1:1", topic="t", **more)  # type: ignore[arg-type]


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
