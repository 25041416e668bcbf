"""The writer of a table follows from its metadata; a JVM starts only for a table that needs it."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg import table_writers
from lakehouse_backfill.adapters.iceberg.clock import ReferenceClock, require_right_clock
from lakehouse_backfill.adapters.iceberg.shadow.clone import FileCloneCommitter
from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import JvmState, TableFacts
from lakehouse_backfill.errors import WrongClock
from tests.support.fakes.lake import DAY

SCOPE = Scope(field=DAY, partitions=("2024-01-01",))
FACTS = {"old": TableFacts(format_version=2), "new": TableFacts(format_version=3)}


class World:
    """Writers over tables of two formats, which say what was surveyed and made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_connect: bool = False) -> None:
        self.surveyed: list[tuple[str, Scope | None]] = []
        self.made: list[str] = []
        monkeypatch.setattr(table_writers, "survey_table", self._survey)
        self.writers = TableWriters(
            None,  # type: ignore[arg-type]
            lambda: JvmState(is_connect=is_connect),
            lambda: self._make("java"),
            lambda: self._make("rows"),
        )

    def _survey(self, catalog: None, table: str, scope: Scope | None) -> TableFacts | None:
        self.surveyed.append((table, scope))
        return FACTS.get(table)

    def _make(self, name: str) -> Any:
        self.made.append(name)
        return name


def test_pyiceberg_writes_formats_1_and_2_without_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for table in ("old", "not there yet"):
        assert world.writers.swap_committer(table, SCOPE) is None
        assert world.writers.clone_committer(table) is None
    assert world.made == []


def test_a_swap_is_judged_by_the_scope_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.writers.swap_committer("new", SCOPE) == "java"
    assert world.writers.clone_committer("new") == "java"
    assert world.surveyed == [("new", SCOPE), ("new", None)]


def wrong_clock() -> ReferenceClock:
    clock = ReferenceClock()
    clock.note("a server", time.time() - 86_400, clock.uptime())
    return clock


@pytest.mark.parametrize("is_connect", [False, True])
def test_no_jvm_is_asked_to_commit_while_the_clock_is_wrong(
    monkeypatch: pytest.MonkeyPatch, *, is_connect: bool
) -> None:
    world = World(monkeypatch, is_connect=is_connect)
    catalog: Any = SimpleNamespace(reference_clock=wrong_clock())
    writers = replace(world.writers, catalog=catalog)
    for make in (writers.swap_committer, writers.clone_committer):
        with pytest.raises(WrongClock, match="86,400 s ahead"):
            make("new")
    session: Any = None
    tables = SparkTables(session, "lake", require_right_clock=partial(require_right_clock, catalog))
    with pytest.raises(WrongClock, match="86,400 s ahead"):
        tables.writer(session, "silver.t", None, {})
    assert world.made == []


@pytest.mark.req("U1")
def test_through_spark_connect_format_3_is_written_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, is_connect=True)
    assert world.writers.swap_committer("new", SCOPE) == "rows"
    assert isinstance(world.writers.clone_committer("new"), FileCloneCommitter)
    assert world.made == ["rows"]
