"""Calling what an owner wants to be told or to do around a publication."""

from __future__ import annotations

from typing import Any, Protocol

from lakehouse_backfill.domain.hooks import Hook, HookCall
from lakehouse_backfill.fault_points import side_effect


class Hooks(Protocol):
    """Commands and webhooks."""

    @side_effect
    def call(self, hook: Hook, message: dict[str, Any]) -> HookCall:
        """Call it with a JSON message and wait for its end; a failure is an outcome, no error.

        The message's `idempotency_key` is the same whenever the same call is repeated.
        """
        ...
