"""Suites are judged in a thread beside others: it is quiet, and they are heard."""

from __future__ import annotations

import logging
import sys
import warnings
from threading import Event, Thread

import pytest

from lakehouse_backfill.adapters.quality.quiet import quiet_thread

_LIBRARY = "a_library_that_talks"


def test_other_threads_are_heard_while_one_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    is_quiet, is_written = Event(), Event()

    def judge() -> None:
        with quiet_thread(_LIBRARY):
            print("of the library")  # noqa: T201 (what a library may do)
            sys.stderr.writelines(["of the library"])
            is_quiet.set()
            is_written.wait(30)

    thread = Thread(target=judge)
    thread.start()
    is_quiet.wait(30)
    print("of a transform")  # noqa: T201 (what job code may do)
    sys.stderr.write("the log cannot be written")
    is_written.set()
    thread.join()
    assert tuple(capsys.readouterr()) == ("of a transform\n", "the log cannot be written")


def test_threads_that_overlap_leave_the_process_as_it_was() -> None:
    """The one that began first ends first: what it found is not what the other one puts back."""
    streams, filters = (sys.stdout, sys.stderr), list(warnings.filters)
    both, is_first_done = Event(), Event()

    def first() -> None:
        with quiet_thread(_LIBRARY):
            second_thread.start()
            both.wait(30)
        is_first_done.set()

    def second() -> None:
        with quiet_thread(_LIBRARY), quiet_thread(_LIBRARY):
            both.set()
            is_first_done.wait(30)
            assert logging.getLogger(_LIBRARY).level == logging.CRITICAL

    second_thread, first_thread = Thread(target=second), Thread(target=first)
    first_thread.start()
    first_thread.join()
    second_thread.join()
    assert (sys.stdout, sys.stderr) == streams
    assert list(warnings.filters) == filters
    assert logging.getLogger(_LIBRARY).level == logging.NOTSET
