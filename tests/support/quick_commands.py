"""The program's command line for tests that call it hundreds of times in one process."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


def build_once() -> None:
    """Let typer build the command line of an app once, where it is loaded, not at every call."""
    for module, name in (("typer.main", "get_command"), ("typer.testing", "_get_command")):
        loaded: Any = sys.modules.get(module)
        if loaded is not None and not hasattr(getattr(loaded, name), "cache_info"):
            setattr(loaded, name, cache(getattr(loaded, name)))
