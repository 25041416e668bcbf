"""One topic as its brokers are called: properties of the connection, with the secrets."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from lakehouse_backfill.domain.sources.declaration import KafkaSource
from lakehouse_backfill.errors import ConfigError

#: What a declaration may set: how brokers are reached. All else is decided here, or runs code.
_ALLOWED = re.compile(
    r"(security\.protocol|client\.(id|dns\.lookup|rack)|broker\.address\.(family|ttl)"
    r"|(sasl|ssl|socket|fetch|metadata|reconnect|retry|queued)\.[a-z0-9.]+"
    r"|receive\.message\.max\.bytes|api\.version\.request)"
)
_SECRET = re.compile(r"password|secret|\.pem$|jaas|sasl\.oauthbearer\.(config|assertion)")
#: They name code that is loaded, or a command that is run.
_RUNS_CODE = re.compile(r"kinit\.cmd|engine|providers")


@dataclass(frozen=True)
class KafkaTopic:
    """What a client needs; the properties are never shown."""

    name: str
    properties: dict[str, str] = field(repr=False)
    declared: KafkaSource

    @staticmethod
    def open(declared: KafkaSource) -> KafkaTopic:
        """Read the secrets; raises ConfigError for a property that cannot be set here."""
        properties = {"bootstrap.servers": declared.bootstrap_servers}
        for name in (*declared.settings, *declared.secrets):
            if not _ALLOWED.fullmatch(name) or _RUNS_CODE.search(name):
                raise ConfigError(
                    f"{name} is no property that a source can set",
                    fix="set only how brokers are reached: security.protocol, sasl.*, ssl.*, "
                    "socket.*, fetch.*, client.id",
                    field="kafka.settings",
                )
        for name, value in declared.settings.items():
            if _SECRET.search(name) and name != "sasl.oauthbearer.method":
                raise ConfigError(
                    f"{name} is a secret, and stands in kafka.settings",
                    fix="name the environment variable that holds it in kafka.secrets",
                    field="kafka.settings",
                )
            properties[name] = value
        for name, variable in declared.secrets.items():
            found = os.environ.get(variable, "")
            if not found:
                raise ConfigError(
                    f"the environment variable {variable} of kafka.secrets is not set",
                    fix=f"set {variable} to the value of {name}",
                    field="kafka.secrets",
                )
            properties[name] = found
        return KafkaTopic(declared.topic, properties, declared)
