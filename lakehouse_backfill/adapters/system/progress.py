"""Progress for callers that watch nothing; the one for a terminal is in `cli.progress`."""

from __future__ import annotations


class NullProgress:
    """Implements `ports.progress.Progress` and says nothing."""

    def start(self, label: str, total: int, unit: str) -> None:
        """Do nothing."""

    def advance(self, amount: int = 1, rows: int = 0) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""
