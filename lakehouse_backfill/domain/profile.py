"""Catalog profiles, as written in `catalog/profiles.yaml`: one lake, and how runs work in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from lakehouse_backfill.domain.guards.compute import ComputePlaces
from lakehouse_backfill.domain.guards.safety import OFF_BY_DEFAULT, PaceLimits, Switch, Switches
from lakehouse_backfill.domain.monitoring.metrics import Monitoring
from lakehouse_backfill.domain.serialization import (
    Name,
    TableName,
    Text,
    Value,
)
from lakehouse_backfill.errors import ConfigError

#: How long a request to a REST catalog may take to connect and, then, to be answered, where the
#: profile's catalog does not say it. The names are those of Iceberg's Java client. It and PyIceberg
#: have no limit: a server that takes connections and answers none would be waited for forever.
REST_TIMEOUTS_MS: Final = {
    "rest.client.connection-timeout-ms": 10_000,
    "rest.client.socket-timeout-ms": 60_000,
}
#: The same of a statement to a catalog on PostgreSQL, for PyIceberg.
SQL_STATEMENT_TIMEOUT_MS: Final = ("sql.statement-timeout-ms", 60_000)
#: The environments in which approver and requester differ.
FOUR_EYES_ENVIRONMENTS: Final = ("prod",)


def timeout_s(catalog: Mapping[str, str], key: str, default_ms: int) -> float:
    """Return a limit of time that the profile's catalog declares in milliseconds, or the default.

    Raises ConfigError for one that is no whole number above 0.
    """
    text = str(catalog.get(key, default_ms))
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(
            f"catalog.{key} {text!r} is no number of milliseconds",
            fix="write a whole number above 0, or remove it",
            field=f"catalog.{key}",
        )
    return int(text) / 1000


Environment = Literal["dev", "prod"]


class Prices(Value):
    """What the plan multiplies its estimates with; all in US dollars."""

    core_hour: float | None = Field(None, ge=0)
    read_gb: float | None = Field(None, ge=0)
    write_gb: float | None = Field(None, ge=0)
    requests_1000: float | None = Field(None, ge=0)


class OidcIssuer(Value):
    """An issuer of identity tokens to CI jobs, and which of its subjects may sign as whom."""

    issuer: Text = Field(description="The `iss` of its tokens, an https address.")
    jwks: Text = Field(
        description="Its public keys: a file inside the project, or an https address. A file also "
        "holds keys that the issuer has retired, so that old decisions can still be verified."
    )
    subjects: dict[Text, Text] = Field(
        min_length=1, description="The `sub` of a token, exactly: the name that it signs as."
    )
    token_command: tuple[Text, ...] = Field(
        (),
        description="Program and arguments that print a token for the audience {audience}; without "
        "it the environment of GitHub Actions is used.",
    )


Isolation = Literal["clone", "branch", "auto"]


class AnchorPlace(Value):
    """Where heads of logs are kept outside the lake; exactly one of the two."""

    folder: Text | None = Field(
        None, description="A folder in which the publisher may create files, but change none."
    )
    git: Text | None = Field(
        None, description="A repository that accepts new tags, and refuses to move or delete them."
    )


class Profile(Value):
    """One lake: a catalog in PyIceberg's property names, and how Spark runs against it."""

    environment: Environment = "dev"
    catalog: dict[str, str] = Field(
        description="PyIceberg properties with `name`; ${project} is the project's folder."
    )
    spark: dict[str, str] = Field(
        default_factory=dict, description="Spark settings, e.g. spark.master."
    )
    control_namespace: Name = "lakehouse_backfill"
    shadow_namespace: Name = "lakehouse_backfill_shadow"
    isolation: Isolation = "clone"
    prices: Prices = Field(default_factory=Prices)
    lease_seconds: int = Field(
        300,
        ge=3,
        description="How long a run stays with a process that gives no sign of life any more.",
    )
    forgotten_after_days: int = Field(
        7, ge=1, description="`status` names open runs without an event for so many days."
    )
    local_diff_limit_mib: int = Field(
        512,
        ge=0,
        description="Up to this size of changed files, in MiB, a diff needs no Spark.",
    )
    task_diff_limit_mib: int = Field(
        64,
        ge=0,
        description="Up to this size of changed files, in MiB, a Spark task compares a partition.",
    )
    signatures: Literal["required", "optional"] | None = Field(
        None, description="Whether decisions have to be signed; default: required in prod."
    )
    signers: Text = Field(
        "catalog/allowed_signers",
        description="Who signs with which SSH key: a file inside the project, as ssh-keygen reads "
        "it; its times are UTC.",
    )
    oidc: tuple[OidcIssuer, ...] = Field((), description="Issuers whose CI jobs may sign.")
    monitoring: Monitoring = Field(default_factory=Monitoring, description="Metrics and alerts.")
    anchor: AnchorPlace | None = Field(
        None, description="Where heads of logs are kept, so that a rewritten history is found."
    )
    secret_variables: tuple[Name, ...] = Field(
        (),
        description="Environment variables that job code must not see, besides those whose names "
        "or values say so.",
    )
    limits: PaceLimits = Field(
        default_factory=PaceLimits,
        description="How fast runs may go in this lake; fields of a run manifest win.",
    )
    switches: Switches = Field(
        default_factory=Switches, description="What may be done in this lake, for all products."
    )
    product_switches: dict[TableName, Switches] = Field(
        default_factory=dict, description="By product: what differs from `switches`."
    )
    pilot: tuple[TableName, ...] | None = Field(
        None, description="Only these products may be published; all if absent."
    )
    compute: ComputePlaces = Field(
        default_factory=ComputePlaces,
        description="Pools and scratch places that runs may name, and those of live jobs.",
    )

    def is_on(self, switch: Switch, product: str) -> bool:
        """Return whether something may be done with a product in this lake.

        The product's own switch decides, then that of all products, then the default.
        """
        of_product: bool | None = getattr(self.product_switches.get(product), switch, None)
        of_all: bool | None = getattr(self.switches, switch)
        for said in (of_product, of_all):
            if said is not None:
                return said
        return switch not in OFF_BY_DEFAULT

    @property
    def requires_signatures(self) -> bool:
        """Whether decisions have to be signed."""
        if self.signatures is None:
            return self.environment in FOUR_EYES_ENVIRONMENTS
        return self.signatures == "required"


class Profiles(Value):
    """The profiles of a project."""

    api_version: Literal["lakehouse-backfill/v1"]
    default: str
    profiles: dict[str, Profile] = Field(min_length=1)
