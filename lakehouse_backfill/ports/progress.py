"""Progress and structured logs of long work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Progress(Protocol):
    """Tells a person how far a long step is, with rate and time left."""

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a step of `total` units."""
        ...

    def advance(self, amount: int = 1, rows: int = 0) -> None:
        """Report finished units, and the rows that they wrote."""
        ...

    def finish(self) -> None:
        """End the step."""
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
        """Give a journal whose lines all carry `fields`."""
        ...
