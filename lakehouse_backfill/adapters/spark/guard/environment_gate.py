"""Hides secrets of the environment from job code: by name, by declaration, and by value.

Uses the standard library only: its text is sent to Python workers. Values of secrets stay in the
process: a worker knows those of its own environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

#: Shorter values, and paths, stand in other variables by chance.
_LEAST_LENGTH = 8
_CHANGING = ("__setitem__", "__delitem__")
_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


class KnownSecrets:
    """Which variables are secret, and the values that must not leave."""

    def __init__(self) -> None:
        self.is_secret_name: Callable[[str], bool] = lambda _: False
        #: Variables that contracts and profiles name as secret.
        self.declared: frozenset[str] = frozenset()
        #: Values that are no variables, by the name of their setting.
        self.settings: dict[str, str] = {}

    def named(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables whose name, or a declaration, says that they are secret."""
        return {
            name: value
            for name, value in variables.items()
            if name in self.declared or self.is_secret_name(name)
        }

    def values(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the values by which a secret is recognised, by name."""
        known = {**self.named(variables), **self.settings}
        return {
            name: value
            for name, value in known.items()
            if len(value) >= _LEAST_LENGTH and not value.startswith("/")
        }

    def hidden(self, variables: Mapping[str, str]) -> frozenset[str]:
        """Return all variables that a job does not see: also those that hold another's value."""
        values = tuple(self.values(variables).values())
        return frozenset(self.named(variables)) | {
            name
            for name, value in variables.items()
            if any(secret in value for secret in values) or _PASSWORD.search(value)
        }


SECRETS = KnownSecrets()


class EnvironmentGate:
    """What job code sees of the environment."""

    def __init__(self, guard: Any, secrets: KnownSecrets) -> None:
        self._guard = guard
        self._secrets = secrets
        self._state: tuple[Any, ...] = ()
        self._hidden: frozenset[str] = frozenset()

    def hidden(self, data: Mapping[Any, Any]) -> frozenset[str]:
        """Return the hidden variables of an environment; they are found again when it changes."""
        state = (dict(data), self._secrets.declared, dict(self._secrets.settings))
        if state != self._state:
            texts = {os.fsdecode(name): os.fsdecode(value) for name, value in data.items()}
            self._hidden, self._state = self._secrets.hidden(texts), state
        return self._hidden

    def refuse(self, key: Any, data: Mapping[Any, Any], frame: FrameType | None) -> None:
        """Stop job code that names a hidden variable itself."""
        place = self._guard.direct_caller(frame)
        name = _text(key)
        if place is None or self._guard.is_trusted():
            return
        if name in self.hidden(data) or name in self._secrets.named({name: ""}):
            self._guard.stop("secret", f"to read the environment variable {name}", place)

    def seen(self, data: dict[Any, Any], frame: FrameType | None) -> dict[Any, Any]:
        """Return the variables that the caller may see."""
        if self._guard.origin(frame) is None:
            return data
        hidden = self.hidden(data)
        return {name: value for name, value in data.items() if os.fsdecode(name) not in hidden}


def install(guard: Any, secrets: KnownSecrets) -> None:
    """Gate `os.environ` and its copies in this process."""
    gate = EnvironmentGate(guard, secrets)
    own: dict[Any, Any] = os.environ.__dict__["_data"]

    class GuardedEnviron(os._Environ):  # type: ignore[type-arg]
        """The environment; job code sees no secrets in it."""

        def __getitem__(self, key: Any) -> Any:
            if guard.is_on:
                gate.refuse(key, self.__dict__["_data"], sys._getframe(1))
            return super().__getitem__(key)

        @property
        def _data(self) -> dict[Any, Any]:
            data: dict[Any, Any] = self.__dict__["_data"]
            caller = sys._getframe(1)
            # A library that is being imported may change a variable.
            if not guard.is_on or caller.f_code.co_name in _CHANGING:
                return data
            return gate.seen(data, caller)

    for environ in (os.environ, getattr(os, "environb", None)):
        if environ is not None:
            environ.__class__ = GuardedEnviron
    # The variables that the process began with, as `os` got them.
    system = sys.modules.get("posix") or sys.modules.get("nt")
    if system is not None and getattr(system, "environ", None) is own:
        hidden = gate.hidden(own)
        visible = {name: value for name, value in own.items() if os.fsdecode(name) not in hidden}
        vars(system)["environ"] = visible


def _text(name: Any) -> str:
    try:
        return os.fsdecode(name)
    except (TypeError, ValueError):
        return type(name).__name__
