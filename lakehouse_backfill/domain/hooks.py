"""What happens around a publication: hooks of the owner's, and checks as a consumer would read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakehouse_backfill.domain.declared import Name, SuiteRef, Text
from lakehouse_backfill.domain.value import Value

HookMoment = Literal["before_publish", "after_publish", "after_rollback", "on_halt"]


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


class AfterPublish(Value):
    """What is checked once readers see a publication, read as a consumer reads it."""

    suites: tuple[SuiteRef, ...] = Field(
        (), description="Suites that the accepted version must pass, of the restated partitions."
    )
    on_failed: Literal["alert", "rollback"] = Field(
        "alert", description="alert: exit code 3 and a failed check; rollback: also roll back."
    )
