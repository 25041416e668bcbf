"""Progress on a terminal's stderr, with rate and time left; plain lines where there is none."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain.run import format_duration
from lakehouse_backfill.ports.system import Progress

#: Seconds between two lines in a log file.
PAUSE_S = 5.0
#: Seconds without a line after which a command says that it is at work (O6).
SILENCE_S = 3.0
#: The same on a terminal, where a person waits: what is shown moves, and goes away.
SCREEN_SILENCE_S = 0.5
#: Seconds between two looks at whether a command shows anything.
_BEAT_S = 0.25
#: Terminals that know no cursor.
_PLAIN_TERMINALS = ("dumb", "unknown")
_LINE_START, _CLEAR_LINE = "\r", "\r\x1b[K"


def make_progress(stream: TextIO, *, is_silent: bool) -> Progress:
    """Choose by what `stream` is: a moving bar, plain lines, or nothing."""
    if is_silent:
        return NullProgress()
    moves = stream.isatty() and os.environ.get("TERM") not in _PLAIN_TERMINALS
    return BarProgress(stream) if moves else LineProgress(stream)


@dataclass
class _Step:
    """A step that is under way; one without units is a wait: nobody knows how far it is."""

    label: str
    total: int
    unit: str
    started: float
    last_line: float
    done: int = 0
    rows: int = 0
    #: Of both, what was done before the step began: it took no time of the step.
    done_before: int = 0
    rows_before: int = 0
    #: Not shown yet: it may end before anybody wonders.
    is_quiet: bool = False
    #: Others begin and end in it: none of them takes its place.
    is_around: bool = False

    def describe(self, now: float, ending: str) -> str:
        """Describe how far the step is, with the speed."""
        if not self.total:
            return f"{self.label}: {ending}"
        rows = f", {self.rows:,} rows" if self.rows else ""
        counts = f"{self.label}: {self.done:,} of {self.total:,} {self.unit}{rows}"
        return f"{counts}{self.rate(now)}, {ending}"

    def rate(self, now: float) -> str:
        """Describe the speed of what was done since the step began: of rows, where they count."""
        seconds, done = now - self.started, self.done - self.done_before
        if not self.rows and seconds >= 1 and done >= seconds:
            return f", {done / seconds:,.0f} {self.unit}/s"
        return row_rate_text(self.rows - self.rows_before, seconds)

    def seconds_left(self, now: float) -> float | None:
        """Estimate from the units done since the step began."""
        done, total = self.done - self.done_before, self.total - self.done_before
        return seconds_left(done, total, now - self.started)


class LineProgress:
    """Implements `ports.system.Progress`: a line at the start, the end, and every few seconds.

    A wait may begin inside a step, which goes on after it. So may a counted step, of which nothing
    is shown before `reveal` finds it old enough. The heartbeat calls that in a thread of its own.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Write to `stream`; `clock` gives seconds."""
        self._stream, self._clock, self._pause_s = stream, clock, pause_s
        self._steps: list[_Step] = []
        self._lock = threading.RLock()

    #: Seconds without a sign of work, and between two signs.
    silence_s, sign_pause_s = SILENCE_S, PAUSE_S

    def show_work(self, text: str) -> None:
        """Show that a command is at work, while no step of it is shown."""
        self.say(text)

    def clear_work(self) -> None:
        """Take away what `show_work` shows; lines stay."""

    @property
    def is_busy(self) -> bool:
        """Whether a step is shown that moves; one around others may stand still for minutes."""
        return any(not (step.is_quiet or step.is_around) for step in self._steps)

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a step of `total` units, or with none of them a wait."""
        with self._lock:
            if total:
                around = [at for at, step in enumerate(self._steps, 1) if step.is_around]
                del self._steps[max(around, default=0) :]
            self._push(label, total, unit)
            self.say(f"{label}: {total:,} {unit}" if total else f"{label} …")

    def count(self, label: str, total: int, unit: str) -> None:
        """Begin a step of `total` units inside what is shown; it is not shown at once."""
        with self._lock:
            self._push(label, total, unit).is_quiet = True

    @contextmanager
    def within(self, label: str, total: int, unit: str) -> Iterator[None]:
        """Count a step around others; after a failure nothing is said of it or of those in it."""
        with self._lock:
            self.count(label, total, unit)
            step = self._steps[-1]
            step.is_around = True
        is_done = False
        try:
            yield
            is_done = True
        finally:
            with self._lock:
                if step in self._steps:
                    del self._steps[self._steps.index(step) + is_done :]
                self.finish() if is_done else self._redraw()

    def _redraw(self) -> None:
        """Show what is under way; lines stay."""

    def _push(self, label: str, total: int, unit: str) -> _Step:
        now = self._clock()
        self._steps.append(_Step(label, total, unit, now, now))
        return self._steps[-1]

    def reveal(self) -> None:
        """Show the counted step that is at work, once it has lasted some seconds."""
        with self._lock:
            step, now = self._counted(), self._clock()
            if step is not None and step.is_quiet and now - step.started >= SILENCE_S:
                step.is_quiet, step.last_line = False, now
                self._show(step, now)

    def _show(self, step: _Step, now: float) -> None:
        self.say(step.describe(now, f"{format_duration(step.seconds_left(now))} left"))

    def advance(self, amount: int = 1, rows: int = 0, *, was_done: bool = False) -> None:
        """Count finished units, and say so when the last line is old enough."""
        with self._lock:
            step, now = self._counted(), self._clock()
            if step is None:
                return
            step.done += amount
            step.rows += rows
            if was_done:
                step.done_before += amount
                step.rows_before += rows
            if step.is_around and step.done < step.total:
                # Steps inside hide it, so that the heartbeat may have had no moment to show it.
                self.reveal()
            is_due = now - step.last_line >= self._pause_s and step.done < step.total
            if is_due and not step.is_quiet:
                step.last_line = now
                self._show(step, now)

    def finish(self) -> None:
        """Describe how long the step, or the wait inside it, took."""
        with self._lock:
            step = self._steps.pop() if self._steps else None
            if step is not None and not step.is_quiet:
                now = self._clock()
                self.say(step.describe(now, f"done in {format_duration(now - step.started)}"))

    def say(self, text: str) -> None:
        """Write a line, above what moves."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _counted(self) -> _Step | None:
        return next((step for step in reversed(self._steps) if step.total), None)


class BarProgress(LineProgress):
    """Draws a moving bar, or a spinner, between the first and the last line of a step."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on `stream`, a terminal."""
        super().__init__(stream, pause_s=math.inf)
        self._is_work_shown = False
        self._bar: Any = None
        self._task: Any = None

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a step of `total` units, or with none of them a wait."""
        with self._lock:
            self._stop()
            super().start(label, total, unit)
            self._draw(self._steps[-1])

    silence_s, sign_pause_s = SCREEN_SILENCE_S, 1.0

    def show_work(self, text: str) -> None:
        """Show the text on a line of its own, over which the next output is written."""
        with self._lock:
            if self._bar is None and not self.is_busy:
                self._is_work_shown = True
                self._stream.write(f"{_CLEAR_LINE}{text}{_LINE_START}")
                self._stream.flush()

    def clear_work(self) -> None:
        """Clear the line."""
        with self._lock:
            if self._is_work_shown:
                self._is_work_shown = False
                self._stream.write(_CLEAR_LINE)
                self._stream.flush()

    def _show(self, step: _Step, now: float) -> None:
        self._stop()
        super()._show(step, now)
        self._draw(self._steps[-1])

    def advance(self, amount: int = 1, rows: int = 0, *, was_done: bool = False) -> None:
        """Move the bar and show the rate."""
        with self._lock:
            super().advance(amount, rows, was_done=was_done)
            step = self._counted()
            if self._bar is not None and step is self._steps[-1] and not step.is_quiet:
                self._bar.update(self._task, completed=step.done, **self._estimates(step))

    def finish(self) -> None:
        """Take the bar away and say how long the step took; the step around it is drawn again."""
        with self._lock:
            is_hidden = bool(self._steps) and self._steps[-1].is_quiet
            if not is_hidden:
                self._stop()
            super().finish()
            if not is_hidden:
                self._redraw()

    def _redraw(self) -> None:
        self._stop()
        shown = [step for step in self._steps if not step.is_quiet]
        if shown:
            self._draw(shown[-1])

    def say(self, text: str) -> None:
        """Write a line, above the bar where there is one."""
        with self._lock:
            self.clear_work()
            if self._bar is None:
                super().say(text)
            else:
                self._bar.console.print(text)

    def _draw(self, step: _Step) -> None:
        from rich import progress
        from rich.console import Console

        text = progress.TextColumn("{task.description}", markup=False)
        counted = (
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[unit]}{task.fields[rate]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[left]}", markup=False),
        )
        waiting = (progress.SpinnerColumn(), text, progress.TimeElapsedColumn())
        self._bar = progress.Progress(
            *((text, *counted) if step.total else waiting),
            console=Console(file=self._stream, markup=False, highlight=False),
            transient=True,
        )
        self._task = self._bar.add_task(
            step.label, total=step.total or None, completed=step.done, unit=step.unit,
            **self._estimates(step),
        )  # fmt: skip
        # A bar that is drawn again goes on with the time of its step.
        shown = self._bar.tasks[-1]
        shown.start_time -= self._clock() - step.started
        self._bar.start()

    def _estimates(self, step: _Step) -> dict[str, str]:
        now = self._clock()
        left = step.seconds_left(now)
        is_known = left is not None
        return {
            "rate": step.rate(now), "left": f"{format_duration(left)} left" if is_known else "",
        }  # fmt: skip

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Heartbeat:
    """Says that a command is at work, while no step of it is shown (O6)."""

    def __init__(
        self, command: str, progress: LineProgress, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to count; nothing is said before `beat` is called, as `start` does."""
        self._command, self._progress, self._clock = command, progress, clock
        self._began = clock()
        self._next_line = self._began + progress.silence_s
        self._is_over, self._lock = threading.Event(), threading.Lock()

    def beat(self) -> None:
        """Say that the command is at work, if that was not to be seen for some seconds."""
        now = self._clock()
        self._progress.reveal()
        if self._progress.is_busy:
            self._next_line = now + self._progress.silence_s
        elif now >= self._next_line:
            self._next_line = now + self._progress.sign_pause_s
            self._progress.show_work(
                f"{self._command}: at work, {format_duration(now - self._began)}"
            )

    def start(self) -> Heartbeat:
        """Call `beat` again and again, in the background, until the end."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()
        return self

    def stop(self) -> None:
        """End it: nothing is said any more, and nothing that moves is left."""
        with self._lock:
            self._is_over.set()
            self._progress.clear_work()

    def _run(self) -> None:
        while not self._is_over.wait(_BEAT_S):
            with self._lock:
                if not self._is_over.is_set():
                    self.beat()


def row_rate_text(rows: int, seconds: float) -> str:
    """Describe the speed; nothing before there are rows and time to divide by."""
    return f", {rows / seconds:,.0f} rows/s" if rows and seconds > 0 else ""


def seconds_left(done: int, total: int, seconds: float) -> float | None:
    """Estimate from the units done so far; None before the first."""
    return seconds / done * (total - done) if done else None
