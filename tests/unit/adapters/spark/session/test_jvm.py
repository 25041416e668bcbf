"""A JVM that is begun before its session is opened: who gets it, and that it never stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.session import jvm
from lakehouse_backfill.adapters.spark.session.class_archive import ArchiveUse
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings

SETTINGS = SparkSettings(
    "lake", {"spark.master": "local[2]", "spark.sql.catalog.lake.jdbc.password": "early"}
)


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[jvm.StartingJvm]]:
    """Begin processes that wait for their input to end, in place of JVMs; give those begun."""
    found: list[jvm.StartingJvm] = []

    def begin(settings: SparkSettings, *, may_archive: bool) -> jvm.StartingJvm:
        assert may_archive
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        answer = tmp_path / str(len(found)) / "answer"
        answer.parent.mkdir()
        found.append(jvm.StartingJvm(settings, process, ArchiveUse(), answer))
        return found[-1]

    monkeypatch.setattr(jvm, "begin_jvm", begin)
    yield found
    for one in found:
        one.end()
        one.process.wait(60)


def test_the_session_gets_it_with_its_own_secrets(begun: list[jvm.StartingJvm]) -> None:
    jvm.begin_early(SETTINGS, may_archive=True)
    jvm.begin_early(SETTINGS, may_archive=True)
    whole = replace(
        SETTINGS, options={**SETTINGS.options, "spark.sql.catalog.lake.jdbc.password": "late"}
    )
    taken = jvm.take_early(whole)
    assert taken is not None
    assert [taken.process] == [one.process for one in begun]
    assert taken.private == {"spark.sql.catalog.lake.jdbc.password": "late"}
    assert jvm.take_early(whole) is None


def test_a_session_with_another_command_line_ends_it(begun: list[jvm.StartingJvm]) -> None:
    jvm.begin_early(SETTINGS, may_archive=True)
    other = replace(SETTINGS, options={**SETTINGS.options, "spark.master": "local[1]"})
    assert jvm.take_early(other) is None
    assert begun[0].process.wait(60) == -signal.SIGKILL
    assert not begun[0]._answer.parent.exists()


def test_without_a_session_it_ends_with_the_command(begun: list[jvm.StartingJvm]) -> None:
    jvm.begin_early(SETTINGS, may_archive=True)
    jvm._end_early()
    assert begun[0].process.wait(60) == -signal.SIGKILL
    assert jvm.take_early(SETTINGS) is None


def test_one_that_has_died_is_not_waited_for(begun: list[jvm.StartingJvm]) -> None:
    jvm.begin_early(SETTINGS, may_archive=True)
    begun[0].process.kill()
    begun[0].process.wait(60)
    assert jvm.take_early(SETTINGS) is None
    with pytest.raises(ChildProcessError, match="Java ended with exit code -9"):
        begun[0].connect()
