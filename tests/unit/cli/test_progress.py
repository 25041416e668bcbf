"""Progress says how far, how fast and how long still, and keeps quiet when told to."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.cli.progress import (
    BarProgress,
    Heartbeat,
    LineProgress,
    make_progress,
    row_rate_text,
    seconds_left,
)
from lakehouse_backfill.domain.run import format_duration
from tests.support.fakes.project import FakeProject
from tests.support.fakes.screen import Screen

REPOSITORY = Path(__file__).parents[3]
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


def test_what_was_done_before_says_nothing_of_the_speed_and_the_time_left() -> None:
    stream, clock = io.StringIO(), Ticks()
    progress = LineProgress(stream, clock)
    progress.start("stage", 100, "chunks")
    clock.now = 1.0
    progress.advance(90, 90_000, was_done=True)
    clock.now = 60.0
    progress.advance(1, 600)
    assert stream.getvalue().splitlines()[-1] == (
        "stage: 91 of 100 chunks, 90,600 rows, 10 rows/s, 9 min left"
    )


def test_what_has_no_rows_is_shown_with_the_rate_of_its_units_where_that_is_one_or_more() -> None:
    stream, clock = io.StringIO(), Ticks()
    progress = LineProgress(stream, clock)
    progress.start("replaying orders", 9_000, "events")
    clock.now = 10.0
    progress.advance(3_000)
    progress.start("validate", 5, "steps")
    clock.now = 20.0
    progress.advance(2)
    assert stream.getvalue().splitlines()[1::2] == [
        "replaying orders: 3,000 of 9,000 events, 300 events/s, 20 s left",
        "validate: 2 of 5 steps, 15 s left",
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


def test_a_wait_says_its_reason_at_once_and_the_step_around_it_goes_on() -> None:
    stream, clock = io.StringIO(), Ticks()
    progress = LineProgress(stream, clock)
    progress.start("validate", 2, "steps")
    progress.start("starting Spark: a JVM", 0, "")
    assert stream.getvalue().splitlines()[-1] == "starting Spark: a JVM …"
    clock.now = 12.0
    progress.finish()
    progress.advance()
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "validate: 2 steps",
        "starting Spark: a JVM …",
        "starting Spark: a JVM: done in 12 s",
        "validate: 1 of 2 steps, 12 s left",
        "validate: 1 of 2 steps, done in 12 s",
    ]


def test_a_terminal_gets_a_spinner_while_it_waits_and_its_bar_again_after_it() -> None:
    screen = Screen()
    progress = BarProgress(screen)
    progress.start("validate", 2, "steps")
    progress.start("starting Spark", 0, "")
    progress.advance()
    progress.finish()
    progress.advance()
    progress.finish()
    text = screen.getvalue()
    places = [text.index(each) for each in ("validate: 2 steps", "starting Spark …", "done in")]
    assert places == sorted(places)
    assert "validate: 2 of 2 steps" in text.rstrip().splitlines()[-1]
    assert not progress.is_busy


def test_a_command_that_shows_nothing_for_three_seconds_says_that_it_is_at_work() -> None:
    stream, clock = io.StringIO(), Ticks()
    progress = LineProgress(stream, clock)
    heart = Heartbeat("diff", progress, clock)
    for now in (1.0, 2.9, 3.0, 4.0, 7.9, 8.0):
        clock.now = now
        heart.beat()
    assert stream.getvalue().splitlines() == ["diff: at work, 3.0 s", "diff: at work, 8.0 s"]


def test_on_a_terminal_work_is_shown_within_a_second_on_a_line_that_goes_away() -> None:
    screen, clock = Screen(), Ticks()
    progress = BarProgress(screen)
    heart = Heartbeat("plan", progress, clock)
    for now in (0.4, 0.6, 0.9, 1.7):
        clock.now = now
        heart.beat()
    assert screen.getvalue() == "\r\x1b[Kplan: at work, 0.6 s\r\r\x1b[Kplan: at work, 1.7 s\r"
    progress.say("found")
    heart.stop()
    assert screen.getvalue().endswith("1.7 s\r\r\x1b[Kfound\n")


def test_work_is_not_shown_over_a_bar() -> None:
    screen, clock = Screen(), Ticks()
    progress = BarProgress(screen)
    heart = Heartbeat("run", progress, clock)
    clock.now = 1.0
    heart.beat()
    progress.start("stage", 4, "chunks")
    clock.now = 9.0
    heart.beat()
    progress.finish()
    heart.stop()
    assert screen.getvalue().count("at work") == 1


#: A command that takes some seconds, of which it says nothing; it notes when it begins.
SLOW = """
import sys, time
from tests.support.fakes.project import FakeProject
from lakehouse_backfill.cli.main import app
class Slow(FakeProject):
    def open(self, *args, **options):
        found = super().open(*args, **options)
        with open(sys.argv[1], "w") as file:
            file.write(str(time.time()))
        time.sleep(2.5)
        return found
app(["status"], obj=Slow().open, prog_name="x")
"""


def test_a_terminal_shows_within_a_second_what_is_at_work(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    began = tmp_path / "began"
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(began)], stdin=theirs, stdout=subprocess.PIPE,
        stderr=theirs, env={**os.environ, "TERM": "xterm"}, cwd=REPOSITORY,
    ) as command:  # fmt: skip
        os.close(theirs)
        shown = os.read(ours, 1000)
        waited = time.time() - float(began.read_text("ascii"))
        result, _ = command.communicate(timeout=60)
    assert b"status: at work" in shown
    # Half a second more, for a busy machine.
    assert waited < 1.5
    assert b"at work" not in result
    assert os.read(ours, 1000).endswith(b"\r\x1b[K")
    os.close(ours)


def test_nothing_is_said_beside_a_step_that_is_shown() -> None:
    stream, clock = io.StringIO(), Ticks()
    progress = LineProgress(stream, clock)
    heart = Heartbeat("run", progress, clock)
    progress.start("stage", 4, "chunks")
    for now in (3.0, 20.0):
        clock.now = now
        heart.beat()
    progress.finish()
    clock.now = 22.0
    heart.beat()
    assert "at work" not in stream.getvalue()
    clock.now = 23.0
    heart.beat()
    assert stream.getvalue().splitlines()[-1] == "run: at work, 23 s"


def test_a_counted_step_is_shown_once_it_has_lasted_three_seconds() -> None:
    stream, clock = io.StringIO(), Ticks()
    progress = LineProgress(stream, clock)
    heart = Heartbeat("diff", progress, clock)
    progress.count("diff", 2, "files")
    progress.finish()
    progress.count("diff", 4, "files")
    for now in (1.0, 2.9, 3.0, 8.0):
        clock.now = now
        heart.beat()
        progress.advance(1, 600)
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "diff: 2 of 4 files, 1,200 rows, 400 rows/s, 3.0 s left",
        "diff: 4 of 4 files, 2,400 rows, 300 rows/s, done in 8.0 s",
    ]


@pytest.mark.parametrize("seconds", [1.0, 4.0])
def test_a_counted_step_inside_another_leaves_it_as_it_was(seconds: float) -> None:
    screen, clock = Screen(), Ticks()
    progress = BarProgress(screen)
    progress._clock = clock
    progress.start("validate", 2, "steps")
    progress.count("diff", 3, "files")
    clock.now = seconds
    progress.reveal()
    progress.advance(3)
    progress.finish()
    progress.advance(2)
    progress.finish()
    text = screen.getvalue()
    assert ("diff: 3 of 3 files" in text) == (seconds > 3)
    assert "validate: 2 of 2 steps" in text.rstrip().splitlines()[-1]
    assert not progress.is_busy


@pytest.mark.parametrize("kind", [LineProgress, BarProgress])
def test_a_step_around_others_goes_on_after_each_and_says_how_long_all_take(
    kind: type[LineProgress],
) -> None:
    screen, clock = Screen(), Ticks()
    progress = kind(screen)
    progress._clock = clock
    with progress.within("run cx-1", 4, "products"):
        for now in (30.0, 60.0, 90.0):
            progress.start("stage", 2, "chunks")
            progress.advance(2, 600)
            progress.finish()
            clock.now = now
            progress.advance(1, 600)
        progress.start("stage", 2, "chunks")
        progress.finish()
        progress.advance(1, 600)
    text = screen.getvalue()
    assert "run cx-1: 1 of 4 products, 600 rows, 20 rows/s, 1 min 30 s left" in text
    assert (
        text.rstrip()
        .splitlines()[-1]
        .endswith("run cx-1: 4 of 4 products, 2,400 rows, 27 rows/s, done in 1 min 30 s")
    )
    assert not progress.is_busy


@pytest.mark.parametrize("kind", [LineProgress, BarProgress])
def test_what_fails_inside_a_step_leaves_nothing_that_moves(kind: type[LineProgress]) -> None:
    screen = Screen()
    progress = kind(screen)

    def fail() -> None:
        with progress.within("run cx-1", 4, "products"):
            progress.start("stage", 2, "chunks")
            progress.count("diff", 2, "files")
            raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        fail()
    assert not progress.is_busy
    assert "done in" not in screen.getvalue()
    progress.start("validate", 5, "steps")
    progress.finish()
    assert "validate: 0 of 5 steps, done in" in screen.getvalue()


def test_the_heart_of_a_command_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    stop = Heartbeat.stop
    monkeypatch.setattr(
        Heartbeat, "stop", lambda heart: (ended.append(heart._command), stop(heart))
    )
    for line in ("versions silver.a", "audit verify"):
        CliRunner().invoke(app, line.split(), obj=FakeProject().open, prog_name="x")
    CliRunner().invoke(app, ["status"], obj=FakeProject(ValueError("odd")).open, prog_name="x")
    CliRunner().invoke(app, ["--json", "status"], obj=FakeProject().open, prog_name="x")
    assert ended == ["versions", "audit", "status"]


def test_what_is_shown_follows_the_stream_and_the_wish_for_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    assert isinstance(make_progress(Screen(), is_silent=False), BarProgress)
    assert isinstance(make_progress(io.StringIO(), is_silent=False), LineProgress)
    assert isinstance(make_progress(Screen(), is_silent=True), NullProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_progress(Screen(), is_silent=False)) is LineProgress


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (format_duration(None), "unknown time"),
        (format_duration(0.42), "0.4 s"),
        (format_duration(59.4), "59 s"),
        (format_duration(40.2), "40 s"),
        (format_duration(200), "3 min 20 s"),
        (format_duration(300), "5 min"),
        (format_duration(12_000), "3 h 20 min"),
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
