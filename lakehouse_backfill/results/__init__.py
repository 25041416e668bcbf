"""What the methods of `Project` return: immutable values, whose fields are those of `--json`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """Load a module of results when it is first named.

        So a command loads only the results, and with them the parts of the core, that it needs.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        return import_module(f"{__name__}.{name}")
