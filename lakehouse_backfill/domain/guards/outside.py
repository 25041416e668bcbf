"""What acts outside of a run, as a contract declares it: the owner's hooks and the code's sinks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakehouse_backfill.domain.serialization import (
    Name,
    RunMode,
    TableText,
    Text,
    Value,
    added_later,
)
from lakehouse_backfill.domain.sources.topics import CorrectionTopic

HookMoment = Literal["before_publish", "after_publish", "after_rollback", "on_halt", "on_alert"]


class Hook(Value):
    """A command or a webhook that is called at a moment of a run; exactly one of the two."""

    name: Name = Field(description="Name of the hook, unique in the contract.")
    on: HookMoment = Field(
        description="When it is called; a failed before_publish stops the publish."
    )
    command: tuple[Text, ...] = Field(
        (), description="Program and arguments; no shell. It gets the message as JSON on stdin."
    )
    webhook: Text | None = Field(None, description="http(s) address that the message is sent to.")
    token_env: Name | None = Field(
        None, description="Environment variable whose text is sent as bearer token."
    )
    timeout_seconds: float = Field(60, gt=0, le=3600, description="Then it has failed.")


class HookCall(Value):
    """How one call of a hook ended."""

    hook: str
    on: HookMoment
    is_ok: bool
    detail: str
    seconds: float
    may_have_arrived: bool = added_later(
        default=False,
        description="It failed without an answer of the receiver, which may have acted on it.",
    )


SinkType = Literal[
    "table", "materialised_view", "search_index", "feature_store", "topic", "notification",
    "ticket", "cache", "external_api",
]  # fmt: skip


#: Stored rows of a chunk in which secrets are looked for inside longer texts.
SECRET_ROWS_READ = 1_000
SinkPolicy = Literal["allow", "forbid", "mock", "sandbox", "dedupe", "compensate"]


class Sink(Value):
    """Something outside that the product's code acts on, by `context.sink(name).send(…)`."""

    name: Name = Field(description="Name of the sink, unique in the contract.")
    type: SinkType = Field(description="What it is; decides what a policy may say.")
    webhook: Text | None = Field(None, description="http(s) address that messages are sent to.")
    sandbox: Text | None = Field(None, description="http(s) address for the policy sandbox.")
    answers: Text | None = Field(
        None, description="JSON file of the project for the policy mock: answers by key."
    )
    token_env: Name | None = Field(
        None, description="Environment variable whose text is sent as bearer token."
    )
    idempotent: bool = added_later(
        default=False,
        description="The receiver ignores an idempotency_key that it knows; allow "
        "needs it outside of live runs.",
    )
    inverse: Text | None = added_later(
        None, "http(s) address that undoes a message of the policy compensate by its message_id."
    )
    timeout_seconds: float = Field(60, gt=0, le=3600, description="Then a message has failed.")
    policies: dict[RunMode, SinkPolicy] = Field(
        default_factory=dict,
        description="What runs of a mode do: allow, forbid, mock, sandbox, dedupe, compensate; "
        "forbid if absent. The run manifest may say otherwise.",
    )


class CorrectionSink(Value):
    """Where correction events go, and how a changed row is told (U9)."""

    table: TableText = Field(description="Table of events; created when it does not exist.")
    as_: Literal["correction", "retraction"] = Field(
        "correction",
        alias="as",
        description="`correction`: one event for each differing key; `retraction`: a retraction "
        "of the old row and an addition of the new one.",
    )
    topic: CorrectionTopic | None = Field(None, description="Topic that gets the events, too.")
