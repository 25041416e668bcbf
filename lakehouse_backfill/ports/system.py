"""The surroundings of a run: clock, owner hooks, progress display and structured journal.

Who acts: signatures of statements, and the anchor that keeps heads of logs elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from lakehouse_backfill.domain.guards.outside import Hook, HookCall
from lakehouse_backfill.domain.guards.privacy import MaskKey
from lakehouse_backfill.domain.identity.statement import AnchorRecord, Envelope, Signature
from lakehouse_backfill.domain.monitoring.metrics import MetricSample, MetricsExport
from lakehouse_backfill.fault_points import side_effect


class Clock(Protocol):
    """Wall-clock time in UTC."""

    def now(self) -> datetime:
        """Return the current instant, timezone-aware UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""
        ...


class Secrets(Protocol):
    """Secrets by reference; what they are is never stored."""

    def read(self, key: MaskKey) -> bytes:
        """Return the secret of the masks. Raises ConfigError when it is missing or too short."""
        ...


class MetricsOutput(Protocol):
    """Where metrics go. Nothing of it fails a command: what went wrong is returned as a sentence.

    `collect` returns the metrics as of the moment when it is called, None while they cannot be
    read.
    """

    def text(self, samples: tuple[MetricSample, ...]) -> str:
        """Return the samples in the text format of Prometheus."""
        ...

    def write(self, samples: tuple[MetricSample, ...], file: str) -> str:
        """Replace a text file at once; return what went wrong, or an empty text."""
        ...

    def push(self, samples: tuple[MetricSample, ...], export: MetricsExport) -> str:
        """Replace the job's metrics at a Pushgateway; return what went wrong, or an empty text."""
        ...

    def serve(
        self, collect: Callable[[], tuple[MetricSample, ...] | None], export: MetricsExport
    ) -> tuple[str, Callable[[], None]]:
        """Answer scrapes from now on; return what went wrong, if it did, and what ends that.

        While metrics cannot be read, the last ones are given.
        """
        ...


class Hooks(Protocol):
    """Commands and webhooks of the owner, called around a publication."""

    @side_effect
    def call(self, hook: Hook, message: dict[str, Any]) -> HookCall:
        """Call the hook with a JSON message and wait for its end; return a failure as an outcome.

        The message's `idempotency_key` is the same whenever the same call is repeated.
        """
        ...


class Progress(Protocol):
    """Display of how far a long step is, with rate and time left."""

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a step of `total` units; 0: a wait, which may stand inside a step."""
        ...

    def count(self, label: str, total: int, unit: str) -> None:
        """Begin a step that is shown once it has lasted some seconds; it may stand in a step."""
        ...

    def within(self, label: str, total: int, unit: str) -> AbstractContextManager[None]:
        """Count a step around others, which begin and end in it; it ends with the block."""
        ...

    def advance(self, amount: int = 1, rows: int = 0, *, was_done: bool = False) -> None:
        """Report finished units and the rows that they wrote.

        What `was_done` before says nothing of the speed.
        """
        ...

    def finish(self) -> None:
        """End the step."""
        ...

    def say(self, text: str) -> None:
        """Show a line that somebody should know before the work, not after it."""
        ...


class Journal(Protocol):
    """Structured log lines and spans; every line carries the labels of its run."""

    def log(self, event: str, **fields: Any) -> None:
        """Write one line."""
        ...

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[None]:
        """Write one line with the seconds that the block took, and its outcome."""
        ...

    def bind(self, **fields: Any) -> Journal:
        """Return a journal whose lines all carry `fields`."""
        ...


@dataclass(frozen=True)
class CheckedSignature:
    """What a look at a signature found: the key, as people know it, and what is wrong with it."""

    key: str
    fault: str = ""


class Identity(Protocol):
    """The key of the acting person, and the keys of all who may sign, as the project lists them."""

    def has_signer(self) -> bool:
        """Return whether this process was given something to sign with."""
        ...

    def describe(self, *, is_required: bool) -> str:
        """Describe who may sign, and whether this process may; raises ConfigError if it cannot."""
        ...

    def sign(self, message: bytes, by: str, at: datetime) -> Signature:
        """Sign as `by`; raises NotAllowed unless what signs is listed for `by` at that time."""
        ...

    def check(self, envelope: Envelope, by: str, at: datetime) -> CheckedSignature:
        """Return whether the envelope is signed by a key that is listed for `by` at that time."""
        ...


class Anchor(Protocol):
    """A place outside the lake that keeps heads of logs; what is there is never changed."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    @side_effect
    def keep(self, record: AnchorRecord) -> None:
        """Write a record; one of the same name stays as it is. Raises EnvironmentDown."""
        ...

    def names(self) -> frozenset[str]:
        """Return the names of all records; raises EnvironmentDown."""
        ...

    def records(self) -> tuple[AnchorRecord, ...]:
        """Return all records; raises EnvironmentDown, and Tampered for one that is no record."""
        ...
