"""Sends the guard to Spark's Python workers, with each function of a job.

A function that a job makes is pickled, and travels as bytes together with the text of the guard.
Unpickling both in a worker installs the guard there, and only then unpickles the function and all
that it holds: rows cost nothing more, and it works for every kind of Python function, on any
executor and through Spark Connect, without settings.

The function that unpickling calls is pickled by value: executors may lack this package.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from typing import Any


class GuardedCommand:
    """A pickled object, with the guard that a worker installs before it unpickles it."""

    def __init__(self, *arguments: Any) -> None:
        """Set up; the arguments are those of `load_guarded`."""
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return load_guarded, self._arguments


def load_guarded(texts: Mapping[str, str], settings: Mapping[str, Any], pickled: bytes) -> Any:
    """Install the guard in this process, switch it on, and return the unpickled object."""
    from types import ModuleType

    driver = sys.modules.get("lakehouse_backfill.adapters.spark.guard.process_guard")
    if driver is not None and driver.GUARD.is_on:
        # A driver reads types that a job has made: it has a guard.
        with driver.GUARD.acting_for(tuple(settings["made_at"])):
            return pickle.loads(pickled)  # noqa: S301 (made by this process)
    modules = {}
    for name, text in texts.items():
        full = f"lakehouse_backfill_guard_{name}"
        module = sys.modules.get(full)
        if module is None:
            module = ModuleType(full)
            module.__file__ = f"<{full}>"
            sys.modules[full] = module
            exec(compile(text, module.__file__, "exec"), module.__dict__)  # noqa: S102 (our own)
        modules[name] = module
    modules["worker_guard"].switch_on(modules, settings)
    return pickle.loads(pickled)  # noqa: S301 (under the guard)
