"""A process over the in-memory lake that dies between any two of its side effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.fault_points import install_hook, watch_ports
from lakehouse_backfill.ports.compute import ComputePorts


class Killed(BaseException):
    """Nothing catches it: the process is gone."""


def other_process(found: Context, driver: str = "here:dead") -> Context:
    """The same workbench in another process, each side effect of which reaches its points."""
    compute = found.compute()
    names = [one.name for one in dataclasses.fields(ComputePorts)]
    ports = watch_ports(ComputePorts(**{name: getattr(compute, name) for name in names}))
    return watch_ports(dataclasses.replace(found, compute=lambda: ports, driver=driver))


@contextmanager
def hooked(hook: Callable[[str], None]) -> Iterator[None]:
    """Call `hook` at each point that is reached inside."""
    install_hook(hook)
    try:
        yield
    finally:
        install_hook(None)


@contextmanager
def killed_at(moment: int | str) -> Iterator[list[str]]:
    """Raise `Killed` at a point, by its name or its number from 1; give those that were reached."""
    reached: list[str] = []

    def kill(point: str) -> None:
        reached.append(point)
        if moment in (point, len(reached)):
            raise Killed(point)

    with hooked(kill):
        yield reached
