"""Errors of topics: which of them a retry may mend is in their type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakehouse_backfill.errors import BackfillError, Blocked, ConfigError, SourceDown

_STATE = "what was landed before it stays; the landing is continued by the same command"
_RIGHTS = "check `kafka.settings` and `kafka.secrets`, and the rights to read and describe it"
#: Errors of brokers that a retry would get again, by their names in librdkafka.
_FINAL = {
    "UNKNOWN_TOPIC_OR_PART": "check `kafka.topic`",
    "_UNKNOWN_TOPIC": "check `kafka.topic`",
    "_UNKNOWN_PARTITION": "check `kafka.topic`",
    "TOPIC_EXCEPTION": "check `kafka.topic`",
    "TOPIC_AUTHORIZATION_FAILED": _RIGHTS,
    "CLUSTER_AUTHORIZATION_FAILED": _RIGHTS,
    "SASL_AUTHENTICATION_FAILED": _RIGHTS,
    "_AUTHENTICATION": _RIGHTS,
    "_SSL": _RIGHTS,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _RIGHTS,
    "MSG_SIZE_TOO_LARGE": "raise `max.message.bytes` of the topic",
    "_BAD_MSG": "the record is damaged in the topic: restore it from a backup",
}
#: Errors of a topic that is there, while a partition gets a leader: they pass within seconds.
_PASSING = {
    "UNKNOWN_TOPIC_OR_PART",
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "OFFSET_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
}


def missing_client() -> ConfigError:
    """Build the error for a client that is not installed."""
    return ConfigError(
        "a source of kind kafka needs the package confluent-kafka, which is not installed",
        fix="pip install 'lakehouse-backfill[kafka]'",
    )


def bad_properties(error: Exception, names: Iterable[str]) -> ConfigError:
    """Build the error for properties that the client refuses; values are not quoted."""
    found = [name for name in names if name in str(error)]
    return ConfigError(
        f"the client of Kafka refuses its properties{': ' if found else ''}{', '.join(found)}",
        fix="check `kafka.settings`, `kafka.secrets` and `kafka.bootstrap_servers`",
        field="kafka.settings",
    )


def is_final(error: Any) -> bool:
    """Return whether a retry would get the same answer."""
    return error.name() in _FINAL


def passes(error: Any) -> bool:
    """Return whether an error passes by itself within seconds."""
    return error.name() in _PASSING


def broker_error(topic: str, error: Any) -> BackfillError:
    """Translate an error of the client."""
    name = error.name()
    if name in _FINAL:
        return Blocked(
            f"{topic}: the brokers answer {name}",
            state=_STATE,
            fix=f"{_FINAL[name]}, then give the command again",
        )
    return source_down(topic, f"the brokers answer {name}")


def source_down(topic: str, problem: str) -> SourceDown:
    """Build the error for brokers that do not answer; a retry may help."""
    return SourceDown(f"{topic}: {problem}", state=_STATE, fix="give the command again later")


def unreadable_value(place: str, problem: str, *, can_keep: bool) -> Blocked:
    """Build the error for a value that does not fit the declared columns; it is not quoted."""
    keep = "; or write kafka.unreadable: keep, which lands it with its value and `parse_error`"
    return Blocked(
        f"{place}: the value is no record of the declared columns: {problem}",
        state=_STATE,
        fix=f"correct the columns{keep if can_keep else ''}",
    )
