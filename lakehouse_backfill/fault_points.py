"""Named points between side effects, at which tests can crash the process.

Every port method with a side effect is marked `@side_effect`. Ports wrapped by `watch_ports` reach
`PORT.METHOD:before` and `PORT.METHOD:after`. Inside an adapter, a commit is wrapped in `with
commit_window("NAME")`, which reaches `NAME:committing` and `NAME:committed`.

The commits of a command are also counted: an error without a text of its own about the state of the
data names them (`describe_commits`).

A point does nothing unless this process has installed a hook, and only tests do: no setting and no
environment variable installs one. The ports of a process without a hook are not wrapped at all.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Method = TypeVar("Method", bound=Callable[..., Any])
Holder = TypeVar("Holder", bound="DataclassInstance")
FaultHook = Callable[[str], None]

#: Commits inside adapters: a port method with several steps may crash between them.
COMMIT_POINTS = (
    "Anchor.keep",
    "Catalog.create_namespace",
    "Catalog.create_table",
    "Catalog.update_schema",
    "ControlFiles.delete",
    "ControlLog.accepted_output_version",
    "ControlLog.backfill_chunk_run",
    "ControlLog.evidence",
    "ControlLog.file_fingerprint",
    "ControlLog.file_import_ledger",
    "ControlLog.pin_lease",
    "ControlLog.pipeline_run",
    "ControlLog.processed_event",
    "ControlLog.reject_record",
    "ControlLog.replay_job",
    "ControlLog.run_event",
    "Corrections.append",
    "MigratedTables.commit",
    "MigratedTables.drop",
    "HandlerTables.commit",
    "Pins.tag",
    "Publisher.swap",
    "Publisher.swap_together",
    "RawTables.commit",
    "RequestSpool.drop",
    "RequestSpool.keep",
    "RunFiles.delete",
    "Shadows.create",
    "Shadows.drop",
    "Shadows.evolve",
    "Shadows.fence",
    "Shadows.fill",
    "Shadows.metadata_file",
    "Shadows.register",
    "Spark.create_view",
    "Spark.keep_intermediate",
    "Spark.keep_state",
    "Spark.overwrite",
    "Topics.commit",
    "Views.commit",
    "Pins.expire",
)

_SIDE_EFFECT_METHODS: dict[str, None] = {}
_hook: FaultHook | None = None


def side_effect(method: Method) -> Method:
    """Mark a port's method as one that changes something outside the process."""
    _SIDE_EFFECT_METHODS[method.__qualname__] = None
    return method


def side_effect_methods(protocol: type[Any]) -> frozenset[str]:
    """Return the marked methods of a port."""
    prefix = f"{protocol.__name__}."
    return frozenset(
        name.removeprefix(prefix) for name in _SIDE_EFFECT_METHODS if name.startswith(prefix)
    )


def all_points() -> tuple[str, ...]:
    """Return all points of the imported ports and of the adapters, sorted."""
    methods = [f"{name}:{when}" for name in _SIDE_EFFECT_METHODS for when in ("before", "after")]
    commits = [f"{name}:{when}" for name in COMMIT_POINTS for when in ("committing", "committed")]
    return tuple(sorted(methods + commits))


def install_hook(hook: FaultHook | None) -> None:
    """Call `hook` with the name of each point that this process reaches; None removes it."""
    global _hook
    _hook = hook


def reach_point(point: str) -> None:
    """Call the installed hook, if any, with the name of a point."""
    if _hook is not None:
        _hook(point)


#: The commits that this process has tried since the newest command began, and those that landed.
_tried: list[str] = []
_landed: list[str] = []
_thread = threading.local()


@contextmanager
def commit_window(name: str) -> Iterator[None]:
    """Reach `name:committing`, run the block, and reach `name:committed` unless it raised."""
    reach_point(f"{name}:committing")
    _tried.append(name)
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _thread.depth -= 1
    _landed.append(name)
    reach_point(f"{name}:committed")


def is_own_commit() -> bool:
    """Return whether this thread is inside a commit of the toolkit."""
    return bool(getattr(_thread, "depth", 0))


def forget_commits() -> None:
    """Begin a command: what this process has committed before is no part of it."""
    _tried.clear()
    _landed.clear()


def describe_commits() -> str:
    """Describe what the commits of the command have changed so far, for an error in it.

    With commands side by side in one process, commits of the others may be named, too.
    """
    if _landed:
        return f"committed before this, and kept: {', '.join(dict.fromkeys(_landed))}"
    if _tried:
        return f"no commit is known to have landed; tried: {', '.join(dict.fromkeys(_tried))}"
    return "nothing was changed"


def watch_ports_if_hooked(holder: Holder) -> Holder:
    """Return the dataclass as `watch_ports` does in a process with a hook, else as it is."""
    return holder if _hook is None else watch_ports(holder)


def watch_ports(holder: Holder) -> Holder:
    """Return the dataclass with a point before and after each marked method of each port.

    Results, errors and side effects of the methods are unchanged; `:after` is not reached after an
    error.
    """
    ports = {
        field: _WatchedPort(getattr(holder, field), protocol)
        for field, protocol in get_type_hints(type(holder)).items()
        if isinstance(protocol, type) and side_effect_methods(protocol)
    }
    return dataclasses.replace(holder, **ports)


class _WatchedPort:
    """A port whose marked methods reach their points."""

    def __init__(self, port: Any, protocol: type[Any]) -> None:
        self._port = port
        self.protocol = protocol
        for method in side_effect_methods(protocol):
            setattr(
                self, method, _with_points(getattr(port, method), f"{protocol.__name__}.{method}")
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _with_points(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def passing(*arguments: Any, **named: Any) -> Any:
        reach_point(f"{name}:before")
        result = method(*arguments, **named)
        reach_point(f"{name}:after")
        return result

    return passing
