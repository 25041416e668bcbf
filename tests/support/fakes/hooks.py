"""Hooks that only note that they were called."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain.guards.outside import Hook, HookCall


class FakeHooks:
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        #: Names of hooks that fail.
        self.broken: set[str] = set()

    def call(self, hook: Hook, message: dict[str, Any]) -> HookCall:
        self.calls.append((hook.name, message))
        is_ok = hook.name not in self.broken
        detail = "exit code 0" if is_ok else "exit code 1"
        return HookCall(hook=hook.name, on=hook.on, is_ok=is_ok, detail=detail, seconds=0.1)
