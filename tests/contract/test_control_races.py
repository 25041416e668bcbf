"""Real processes that move the same pointers and runs at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.schemas import CONTROL_TABLES
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import RunMoved
from tests.support.examples.plans import a_first_event, a_plan, an_event
from tests.support.forks import FORKS
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import a_row, begun

PROCESSES, MOVES, PRODUCTS, ROUNDS = 8, 8, 4, 10


def control_tables(folder: Path) -> ControlTables:
    # Where other tests leave this one little of the machine, eight in turn take their time.
    return ControlTables(catalog_of(folder), "lakehouse_backfill", budget_s=180.0)


def race(worker: Callable[..., Any], folder: Path, processes: int) -> list[Any]:
    """Run `worker(folder, number, barrier)` in real processes; give what each returned."""
    control_tables(folder)  # PyIceberg 0.12 fails when two processes make the SQLite file at once
    with FORKS.Manager() as manager:
        barrier = manager.Barrier(processes, timeout=120)
        with FORKS.Pool(processes) as pool:
            jobs = [(folder, number, barrier) for number in range(processes)]
            return pool.starmap(worker, jobs, chunksize=1)


def publish(product: str, who: str) -> Callable[[Pointer], tuple[Publication, ...]]:
    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        version = pointer.last_version + 1
        before = pointer.accepted.version if pointer.accepted else None
        token = f"{product}-{version}-{who}"
        row = a_row(version, "publish", product, token=token, run_id=who, supersedes=before)
        return (row,)

    return decide


def make_tables(folder: Path, number: int, barrier: Any) -> None:
    tables = control_tables(folder)
    barrier.wait()
    tables.ensure()


@pytest.mark.req("C1")
def test_many_processes_may_make_the_tables_at_once(tmp_path: Path):
    assert race(make_tables, tmp_path, 4) == [None] * 4
    assert len(catalog_of(tmp_path).list_tables("lakehouse_backfill")) == len(CONTROL_TABLES)


@pytest.mark.req("C1", "T3")
def test_no_row_is_written_before_all_tables_are_there(tmp_path: Path):
    """Who makes them may be at work, or dead; beside rows a missing table counts as dropped."""
    first = control_tables(tmp_path)
    first.ensure()
    last = ("lakehouse_backfill", "pin_lease")
    catalog_of(tmp_path).drop_table(last)
    IcebergRuns(control_tables(tmp_path)).register(a_plan(), a_first_event(a_plan()))
    assert catalog_of(tmp_path).table_exists(last)
    assert IcebergRuns(control_tables(tmp_path)).status("bf-1").seq == 1


def move_pointers(folder: Path, number: int, barrier: Any) -> list[tuple[str, str]]:
    """Publish MOVES times: product and token of each."""
    versions = IcebergVersions(control_tables(folder))
    done = []
    # The first one loads libraries and races for making the tables.
    versions.move(f"silver.own{number}", publish(f"silver.own{number}", "first"))
    barrier.wait()
    for turn in range(MOVES):
        product = f"silver.p{(number + turn) % PRODUCTS}"
        pointer = versions.move(product, publish(product, f"{number}-{turn}"))
        done.append((product, pointer.accepted.token))
    return done


@pytest.mark.long
@pytest.mark.req("U12", "C1")
def test_moves_of_many_processes_are_neither_lost_nor_doubled(tmp_path: Path):
    results = [move for moves in race(move_pointers, tmp_path, PROCESSES) for move in moves]
    versions = IcebergVersions(control_tables(tmp_path))
    for index in range(PRODUCTS):
        product = f"silver.p{index}"
        history = versions.history(product)
        assert [row.version for row in history] == list(range(len(history), 0, -1))
        assert {row.token for row in history} == {one[1] for one in results if one[0] == product}
        assert versions.pointer(product).accepted == history[0]
        assert [row.supersedes for row in history[:-1]] == [row.version for row in history[1:]]
    assert len({token for _, token in results}) == PROCESSES * MOVES


def drive_one_run(folder: Path, number: int, barrier: Any) -> list[str]:
    """Note something on one run ROUNDS times, from the same status as the other process."""
    runs = IcebergRuns(control_tables(folder))
    outcomes = []
    for _ in range(ROUNDS):
        barrier.wait()
        status = runs.status("bf-1")
        event = an_event("bf-1", status.seq + 1, RunState.PLANNED, actor=f"process {number}")
        barrier.wait()
        try:
            runs.append(event)
            outcomes.append("won")
        except RunMoved as error:
            outcomes.append(error.problem)
    return outcomes


@pytest.mark.req("V3")
def test_of_two_processes_that_move_one_run_exactly_one_wins_each_round(tmp_path: Path):
    runs = IcebergRuns(control_tables(tmp_path))
    begun(runs)
    first, second = race(drive_one_run, tmp_path, 2)
    for mine, other in zip(first, second, strict=True):
        assert (mine == "won") != (other == "won")
    for number, outcomes in ((1, first), (0, second)):
        lost = [outcome for outcome in outcomes if outcome != "won"]
        assert all(f"process {number} was faster" in problem for problem in lost)
    assert [event.seq for event in runs.events("bf-1")] == list(range(1, ROUNDS + 2))


def register_one_run(folder: Path, number: int, barrier: Any) -> bool:
    runs = IcebergRuns(control_tables(folder))
    plan = a_plan()
    barrier.wait()
    try:
        runs.register(plan, a_first_event(plan, actor=f"process {number}"))
    except RunMoved:
        return False
    return True


@pytest.mark.req("V3")
def test_of_many_processes_that_register_one_run_exactly_one_wins(tmp_path: Path):
    assert sorted(race(register_one_run, tmp_path, 4)) == [False, False, False, True]
    runs = IcebergRuns(control_tables(tmp_path))
    assert len(runs.events("bf-1")) == 1
    assert runs.plan("bf-1") == a_plan()
