"""Progress on a terminal's stderr, with rate and time left; plain lines where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TextIO

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.ports.system import Progress

#: Seconds between two lines in a log file.
PAUSE_S = 5.0


def make_progress(stream: TextIO, *, is_silent: bool) -> Progress:
    """Choose by what `stream` is: a moving bar, plain lines, or nothing."""
    if is_silent:
        return NullProgress()
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


class LineProgress:
    """Implements `ports.progress.Progress`: a line at the start, the end, and every few seconds."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Write to `stream`; `clock` gives seconds."""
        self._stream, self._clock, self._pause_s = stream, clock, pause_s
        self._label, self._unit = "", ""
        self._total, self._done, self._rows = 0, 0, 0
        self._started, self._last_line_s = 0.0, 0.0

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a step of `total` units."""
        self._label, self._total, self._unit = label, total, unit
        self._done, self._rows = 0, 0
        self._started = self._last_line_s = self._clock()
        self._say(f"{label}: {total:,} {unit}")

    def advance(self, amount: int = 1, rows: int = 0) -> None:
        """Count finished units, and say so when the last line is old enough."""
        self._done += amount
        self._rows += rows
        if self._clock() - self._last_line_s >= self._pause_s and self._done < self._total:
            self._last_line_s = self._clock()
            took = self._last_line_s - self._started
            left = seconds_left(self._done, self._total, took)
            self._say_progress(took, f"{format_duration(left)} left")

    def finish(self) -> None:
        """Describe how long the step took."""
        took = self._clock() - self._started
        self._say_progress(took, f"done in {format_duration(took)}")

    def _say_progress(self, took: float, ending: str) -> None:
        rows = f", {self._rows:,} rows" if self._rows else ""
        counts = f"{self._label}: {self._done:,} of {self._total:,} {self._unit}{rows}"
        self._say(f"{counts}{row_rate_text(self._rows, took)}, {ending}")

    def _say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class BarProgress(LineProgress):
    """Draws a moving bar between the first and the last line; it disappears when the step ends."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on `stream`, a terminal."""
        super().__init__(stream, pause_s=math.inf)
        self._bar: Any = None
        self._task: Any = None

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a step of `total` units."""
        from rich import progress
        from rich.console import Console

        self._stop()
        super().start(label, total, unit)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[unit]}{task.fields[rate]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=Console(file=self._stream, markup=False, highlight=False),
            transient=True,
        )
        self._task = self._bar.add_task(label, total=total, unit=unit, rate="")
        self._bar.start()

    def advance(self, amount: int = 1, rows: int = 0) -> None:
        """Move the bar and show the rate."""
        super().advance(amount, rows)
        if self._bar is not None:
            speed = row_rate_text(self._rows, self._clock() - self._started)
            self._bar.update(self._task, advance=amount, rate=speed)

    def finish(self) -> None:
        """Take the bar away and say how long the step took."""
        self._stop()
        super().finish()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def row_rate_text(rows: int, seconds: float) -> str:
    """Describe the speed; nothing before there are rows and time to divide by."""
    return f", {rows / seconds:,.0f} rows/s" if rows and seconds > 0 else ""


def seconds_left(done: int, total: int, seconds: float) -> float | None:
    """Estimate from the units done so far; None before the first."""
    return seconds / done * (total - done) if done else None


def format_duration(seconds: float | None) -> str:
    """Describe a duration: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return "unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
