"""The guard inside a Python worker of Spark: one task at a time, all of it a job's or none.

Uses the standard library only: its text is sent to the workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def switch_on(modules: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Install the guard, once for the process, and let it judge as the settings say."""
    process_guard, guard = modules["process_guard"], modules["process_guard"].GUARD
    guard.other_folders = tuple(settings["other_folders"])
    guard.folders = tuple(settings["folders"])
    guard.scratch = tuple(settings["scratch"])
    guard.hides_arguments = lambda: settings["hides_arguments"]
    guard.clients = settings["clients"]
    guard.client_roots = frozenset(name.partition(".")[0] for name in guard.clients)
    guard.own_modules = frozenset(settings["own_modules"])
    guard.running = tuple(settings["made_at"])
    secrets = modules["environment_gate"].SECRETS
    secret = re.compile(settings["secret_names"])
    secrets.is_secret_name = lambda name: secret.search(name) is not None
    secrets.declared = frozenset(settings["secret_variables"])
    guard.attempts.clear()
    held = vars(guard).setdefault("held_folders", {})
    for folder in guard.scratch:
        if folder not in held:
            held[folder] = modules["scratch"].hold(folder)
    if "native" not in vars(guard):
        guard.native = modules["native_writers"].NativeWriters(guard)
        guard.after_import = guard.native.patch
        guard.loaded_file = modules["import_gate"].loaded_file
        modules["import_gate"].install(guard)
        modules["environment_gate"].install(guard, secrets)
        modules["unaudited_calls"].install(guard)
        process_guard.install()
        _end_tasks(guard, process_guard, modules["scratch"])
    guard.native.patch_loaded()
    guard.is_on = True


def _end_tasks(guard: Any, process_guard: Any, scratch: Any) -> None:
    """Give scratch back at the end of a task, and fail it when it swallowed errors of attempts."""
    from pyspark.taskcontext import TaskContext

    owner: Any = TaskContext
    original = owner._setTaskContext.__func__

    def set_context(cls: Any, context: Any) -> None:
        if context is None:
            # The guard stays on: a thread of the job may outlive its task.
            guard.running = None
            while guard.held_folders:
                scratch.let_go(*guard.held_folders.popitem())
            if guard.attempts:
                found = [dict(each) for each in guard.attempts]
                guard.attempts.clear()
                raise process_guard.SideEffectStopped(process_guard.describe_attempts(found))
        original(cls, context)

    owner._setTaskContext = classmethod(set_context)
