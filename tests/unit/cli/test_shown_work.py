"""Long commands show how far they are on a terminal and in a log, and nothing in JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.cli import progress as shown
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.core.cascade import steps
from lakehouse_backfill.core.publication import rollback_content
from lakehouse_backfill.core.rehearsal.rehearse import RehearsalPlace, rehearse
from lakehouse_backfill.domain.publication import REHEARSAL_PROPERTY
from lakehouse_backfill.ports.system import Progress
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.project import FakeProject
from tests.support.fakes.screen import Screen
from tests.support.fakes.steps import published_run, roll_back
from tests.unit.core.cascade.test_cascades import World

pytestmark = pytest.mark.req("O6")
Work = Callable[[Progress], object]


class WorkingProject(FakeProject):
    """Does the work of a verb on a lake in memory, before it gives its fixed result."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def open(self, folder: Path, profile: str | None, progress: Progress) -> FakeProject:
        self.work(progress)
        return super().open(folder, profile, progress)


def rollback_by_rewriting() -> Work:
    where = lake()
    found = context(where)
    published_run(found)
    where.must_rewrite = {"2020-01-02", "2020-01-03"}
    return lambda progress: roll_back(replace(found, progress=progress))


def cascade(verb: Callable[..., None], state: str) -> Work:
    world = World("follow")
    found = getattr(world, state)()
    return lambda progress: verb(replace(world.context, progress=progress), found, "bob")


def cascade_plan() -> Work:
    world = World()

    def plan(progress: Progress) -> None:
        world.context = replace(world.context, progress=progress)
        world.make()

    return plan


def rehearsal() -> Work:
    def work(progress: Progress) -> None:
        copied = lake()
        real, other = context(lake(), progress=progress), context(copied, progress=progress)

        def copy(table: str) -> None:
            copied.tables[table].properties[REHEARSAL_PROPERTY] = "u"

        copies: Any = SimpleNamespace(require_other_lake=list, real_metadata=str, copy=copy)
        rehearse(real, RehearsalPlace(other, copies), declared(), "bob")

    return work


#: The command, what it does, and the line of each of its steps when it is over.
VERBS: dict[str, tuple[str, Callable[[], Work], tuple[str, ...]]] = {
    "rollback by rewriting": (
        "rollback s.t --reason wrong", rollback_by_rewriting,
        (
            "rollback, looking for deleted rows: 2 of 2 partitions",
            "rollback, rewriting: 2 of 2 partitions, ",
        ),
    ),
    "plan of a cascade": ("plan x.yaml --cascade", cascade_plan, ("plan: 3 of 3 downstream ",)),
    "run of a cascade": (
        "run cx-1", lambda: cascade(steps.run_cascade, "approved"),
        ("run cx-", "stage: ", "validate: ", ": 3 of 3 products, "),
    ),
    "publish a cascade": (
        "publish cx-1", lambda: cascade(steps.publish_cascade, "accepted"),
        ("publish cx-", ": 3 of 3 products"),
    ),
    "rehearse": (
        "rehearse x.yaml --in other", rehearsal,
        ("rehearse, copying: 2 of 2 tables", "stage: ", "rehearse: 9 of 9 steps"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_a_long_command_shows_its_steps_except_in_json(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, make, lines = VERBS[verb]
    monkeypatch.delenv("TERM", raising=False)
    monkeypatch.setattr(shown, "SILENCE_S", 0.0)
    monkeypatch.setattr(shown.LineProgress.__init__, "__defaults__", (time.monotonic, 0.0))
    monkeypatch.setattr(rollback_content, "_PARTITIONS_IN_CHUNK", 1)

    def said(stream: StringIO, *options: str) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        words = [*options, *command.split(), "--by", "bob"]
        with pytest.raises(SystemExit) as ended:
            app(words, obj=WorkingProject(make()).open, prog_name="x")
        assert ended.value.code == 0, stream.getvalue()
        return stream.getvalue()

    on_terminal, in_log = said(Screen()), said(StringIO())
    for line in lines:
        assert line in in_log
        assert line in on_terminal
    assert " s left" in in_log
    assert " s left" in on_terminal
    assert "━" in on_terminal
    assert "\x1b" not in in_log
    assert "done in" not in capsys.readouterr().out
    assert said(StringIO(), "--json") == ""
