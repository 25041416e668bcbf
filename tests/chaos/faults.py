"""What a test makes a process do at a fault point, or let its catalog do at a commit.

All of them travel to another process, so they are values; counting starts there.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import CommitStateUnknownException

from lakehouse_backfill.adapters.system.process import SystemClock
from lakehouse_backfill.errors import EnvironmentDown

PATIENCE_S = 60


@dataclass
class At:
    """Acts when the `nth` time comes that the process reaches `point`."""

    point: str
    nth: int = 1
    seen: Counter[str] = field(default_factory=Counter)

    def __call__(self, point: str) -> None:
        self.seen[point] += 1
        if point == self.point and self.seen[point] == self.nth:
            self.act()

    def act(self) -> None:
        raise NotImplementedError


class Kill(At):
    """Dies as if the power were cut."""

    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Stop(At):
    """Stops, as a machine that hangs; only SIGCONT lets it go on."""

    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Fail(At):
    """Meets an engine or a store that does not answer."""

    def act(self) -> None:
        raise EnvironmentDown("it does not answer")


@dataclass
class Meet(At):
    """Waits until every process of the barrier got to its point."""

    barrier: Any = None

    def act(self) -> None:
        self.barrier.wait(PATIENCE_S)


@dataclass
class Block(At):
    """Says that it got there, and waits to be let go on, alive all the time."""

    arrived: Any = None
    go: Any = None

    def act(self) -> None:
        self.arrived.set()
        if not self.go.wait(PATIENCE_S):
            raise TimeoutError(self.point)


@dataclass
class Pause(At):
    """Takes its time, alive."""

    seconds: float = 0.0

    def act(self) -> None:
        time.sleep(self.seconds)


@dataclass
class Both:
    """Two hooks in one."""

    first: Any
    second: Any

    def __call__(self, point: str) -> None:
        self.first(point)
        self.second(point)


@dataclass
class Record:
    """Writes down every point that the process reaches."""

    file: Path

    def __call__(self, point: str) -> None:
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(f"{point}\n")


#: What a full disk still takes: a message; no file of a table, and no page of a catalog.
_MESSAGE_BYTES = 4096


class FullDisk(At):
    """From here on the disk takes nothing: no file of this process may grow any more."""

    def act(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MESSAGE_BYTES, most))


@dataclass
class Skewed:
    """The clock of the process is off."""

    by: timedelta

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in the other process."""
        vars(self).update(state)
        true, by = SystemClock.now, self.by
        SystemClock.now = lambda clock: true(clock) + by  # type: ignore[method-assign]

    def __call__(self, point: str) -> None:
        """Nothing happens here: the clock is off all the time."""


class SkewedCommits(Skewed):
    """The clock of the process is off, and so are the times of its snapshots."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        true, by = time.time, self.by.total_seconds()
        time.time = lambda: true() + by  # type: ignore[assignment]


#: What of a catalog is a commit.
COMMITTING = ("commit_table", "create_table", "register_table", "create_namespace")


@dataclass
class Outage:
    """The `nth` commit is answered by an error: after it landed, or instead of it."""

    nth: int
    is_after: bool
    file: Path | None = None
    count: int = 0

    def wrap(self, catalog: Any) -> None:
        for name in COMMITTING:
            vars(catalog)[name] = self._failing(getattr(catalog, name))

    def _failing(self, commit: Any) -> Any:
        def answer(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            if self.file is not None:
                self.file.write_text(str(self.count), encoding="utf-8")
            if self.count != self.nth:
                return commit(*arguments, **named)
            if not self.is_after:
                raise ConnectionResetError("the catalog went away before it committed")
            commit(*arguments, **named)
            raise CommitStateUnknownException("the catalog went away after it committed")

        return answer


#: What a command asks of a catalog beside its commits.
_LOOKING = ("load_table", "list_tables", "table_exists", "namespace_exists")


@dataclass
class Away:
    """From the `nth` commit on the catalog answers nothing, as long as the command runs."""

    nth: int
    count: int = 0

    def wrap(self, catalog: Any) -> None:
        for name in (*COMMITTING, *_LOOKING):
            vars(catalog)[name] = self._silent(getattr(catalog, name), name in COMMITTING)

    def _silent(self, ask: Any, is_commit: bool) -> Any:
        def answer(*arguments: Any, **named: Any) -> Any:
            self.count += is_commit
            if self.count >= self.nth:
                raise ConnectionRefusedError("the catalog is away")
            return ask(*arguments, **named)

        return answer
