"""Progress says how far, how fast and how long still, and keeps quiet when told to."""

from __future__ import annotations

import io

import pytest

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.cli.progress import (
    BarProgress,
    LineProgress,
    format_duration,
    make_progress,
    row_rate_text,
    seconds_left,
)
from tests.support.fakes.screen import Screen

pytestmark = pytest.mark.req("O6")


class Ticks:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_file_gets_a_line_every_few_seconds_with_rate_and_time_left() -> None:
    stream, clock = io.StringIO(), Ticks()
    progress = LineProgress(stream, clock)
    progress.start("stage", 4, "chunks")
    for now in (1.0, 6.0, 7.0, 20.0):
        clock.now = now
        progress.advance(1, 600)
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "stage: 4 chunks",
        "stage: 2 of 4 chunks, 1,200 rows, 200 rows/s, 6.0 s left",
        "stage: 4 of 4 chunks, 2,400 rows, 120 rows/s, done in 20 s",
    ]


def test_a_terminal_gets_a_bar_that_is_gone_in_the_end() -> None:
    screen = Screen()
    progress = BarProgress(screen)
    progress.start("stage", 2, "chunks")
    progress.advance(1, 10)
    progress.advance(1, 10)
    progress.finish()
    text = screen.getvalue()
    assert "stage: 2 chunks" in text
    assert "stage: 2 of 2 chunks, 20 rows" in text.rstrip().splitlines()[-1]


def test_what_is_shown_follows_the_stream_and_the_wish_for_silence() -> None:
    assert isinstance(make_progress(Screen(), is_silent=False), BarProgress)
    assert isinstance(make_progress(io.StringIO(), is_silent=False), LineProgress)
    assert isinstance(make_progress(Screen(), is_silent=True), NullProgress)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (format_duration(None), "unknown time"),
        (format_duration(0.42), "0.4 s"),
        (format_duration(59.4), "59 s"),
        (format_duration(200), "3 min 20 s"),
        (format_duration(7500), "2 h 5 min"),
        (row_rate_text(0, 3), ""),
        (row_rate_text(10, 0), ""),
        (row_rate_text(10_000, 2), ", 5,000 rows/s"),
        (seconds_left(0, 4, 3), None),
        (seconds_left(1, 4, 3), 9.0),
    ],
)
def test_numbers_are_said_in_words(found: object, expected: object) -> None:
    assert found == expected
