"""Sends the guard to Spark's Python workers, with each function of a job.

A function that a job makes is pickled together with the text of the guard. Unpickling it in a
worker installs the guard there first, and returns the function itself: rows cost nothing more, and
it works for every kind of Python function, on any executor and through Spark Connect, without
settings. A function of the toolkit tells a reused
worker that it is no job's.

The functions that unpickling calls are pickled by value: executors may lack this package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


class GuardedCommand:
    """A pickled object, and the call that a worker makes when it unpickles it."""

    def __init__(self, made: Any, load: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = (load, (*arguments, made))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def load_guarded(texts: Mapping[str, str], settings: Mapping[str, Any], made: Any) -> Any:
    """Install the guard in this worker, switch it on, and return the unpickled object."""
    from types import ModuleType

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
    return made


def load_own(made: Any) -> Any:
    """Tell a reused worker that this is no job's code, and return the unpickled object."""
    module = sys.modules.get("lakehouse_backfill_guard_process_guard")
    if module is not None:
        module.GUARD.running = None
    return made
