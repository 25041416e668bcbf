"""pause, unpause and cancel while another process stages the run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.planning.stages import StageKind, chunk_stages
from lakehouse_backfill.core.publication.publish import run_until_decision
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.notes import add_note
from lakehouse_backfill.core.staging.pause import chunk_preview, pause, preview_run, unpause
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord, RunState
from lakehouse_backfill.errors import (
    BackfillError,
    EnvironmentDown,
    IllegalMove,
    NotAllowed,
    RunMoved,
    RunPaused,
    Unsupported,
)
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import approved_run, state_of

SLOW_S = 30


class Interfering(FakeCompute):
    """An engine during whose `nth` chunk another process acts on the run."""

    act: Callable[[], object] = staticmethod(lambda: None)
    nth = 2

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        if len(self.staged) == self.nth:
            self.act()
        return super().stage(plan, chunk, epoch)


def _world(chunks: int = 3) -> tuple[FakeLake, Interfering, Context, Context, str]:
    where = lake()
    engine = Interfering(where)
    driver = context(where, engine, driver="one")
    other = context(
        where, engine, driver="two", runs=driver.runs, versions=driver.versions,
        evidence=driver.evidence,
    )  # fmt: skip
    run = approved_run(driver, declared("2020-01-01", f"2020-01-0{chunks + 1}"))
    return where, engine, driver, other, run


def _files(where: FakeLake, plan: Plan) -> dict[str, Any]:
    shadow = where.tables[plan.shadow_table]
    return dict(shadow.content(shadow.head))


@pytest.mark.req("X3", "V3")
def test_a_pause_lets_the_chunk_in_flight_land_and_no_further_one_start() -> None:
    where, engine, driver, other, run = _world()
    engine.act = lambda: pause(other, run, "bob", "the live job is late")
    with pytest.raises(RunPaused, match=r"bob paused .*: the live job is late") as stopped:
        stage(driver, run, "bob")
    assert f"unpause {run}" in stopped.value.fix
    # The load, the first chunk, and the one that was in flight.
    assert len(engine.staged) == 3
    assert state_of(driver, run) is RunState.PAUSED
    assert f"unpause {run}" in summarise_run_safety(driver, driver.runs.status(run)).next_command

    with pytest.raises(RunPaused):
        run_until_decision(other, run, "bob")
    unpause(other, run, "bob", "")
    engine.act = lambda: None
    status, numbers = stage(other, run, "bob")
    assert (status.state, numbers["chunks_done"]) == (RunState.STAGED, 3)
    # What was in flight was found in the shadow: nothing was computed twice.
    assert sorted(one for one in engine.staged if one != "load") == sorted(
        chunk.chunk_id for chunk in driver.runs.plan(run).resolved.chunks
    )

    apart = _world()
    stage(apart[2], apart[4], "bob")
    sums = lambda found, name: [one.checksum for one in found.runs.chunks(name)]  # noqa: E731
    assert sums(driver, run) == sums(apart[2], apart[4])
    assert _files(where, driver.runs.plan(run)) == _files(apart[0], apart[2].runs.plan(apart[4]))


@pytest.mark.req("X3")
@pytest.mark.parametrize(
    ("act", "is_cut_off"),
    [
        (lambda other, run: pause(other, run, "bob", ""), False),
        (lambda other, run: pause(other, run, "bob", "", now=True), True),
        (lambda other, run: _pause_now_with_a_note(other, run), True),
        (lambda other, run: _cancel(other, run), True),
    ],
    ids=["pause", "pause --now", "pause --now, and a note", "cancel"],
)
def test_the_chunk_in_flight_is_cut_off_where_that_was_asked(
    act: Callable[[Context, str], object],
    is_cut_off: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakehouse_backfill.core.runs.context.WATCH_S", 0.01)
    _, engine, driver, other, run = _world()
    looked = _Looks(driver)

    def interfere() -> None:
        act(other, run)
        looked.wait(3)
        if engine.interrupted:
            raise EnvironmentDown("the job was cancelled")

    engine.act = interfere
    with pytest.raises(BackfillError) as stopped:
        stage(looked.context, run, "bob")
    assert isinstance(stopped.value, RunMoved if "cancel" in str(stopped.value) else RunPaused)
    assert bool(engine.interrupted) is is_cut_off


def _pause_now_with_a_note(other: Context, run: str) -> None:
    pause(other, run, "bob", "", now=True)
    add_note(other, run, "bob", "the store was slow")


class _Looks:
    """A driver's context that counts how often its runs are looked at."""

    def __init__(self, driver: Context) -> None:
        self._looks = threading.Semaphore(0)
        looks, runs = self._looks, driver.runs

        class Counted:
            def __getattr__(self, name: str) -> Any:
                return getattr(runs, name)

            def events(self, run_id: str) -> Any:
                found = runs.events(run_id)
                looks.release()
                return found

        self.context = dataclasses.replace(driver, runs=Counted())  # type: ignore[arg-type]

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self._looks.acquire(timeout=SLOW_S)


def _cancel(other: Context, run: str) -> None:
    decisions.cancel(other, run, "bob", "wrong month")


@pytest.mark.req("X3")
def test_a_cancellation_is_decided_again_when_the_driver_moves_the_run_meanwhile() -> None:
    _, _, driver, other, run = _world()
    plan = driver.runs.plan(run)
    begun = driver.drive(driver.runs.status(run), plan, "begin staging", "bob")
    runs, moved = other.runs, []

    class Raced:
        def __getattr__(self, name: str) -> Any:
            return getattr(runs, name)

        def fence(self, run_id: str, epoch: int) -> None:
            if not moved:
                moved.append(driver.move(begun, plan, "fail", "bob"))
            runs.fence(run_id, epoch)

    raced = dataclasses.replace(other, runs=Raced())  # type: ignore[arg-type]
    assert decisions.cancel(raced, run, "bob", "wrong").state is RunState.CANCELLED
    assert moved


@pytest.mark.req("X3", "V3")
def test_what_cannot_be_paused_or_unpaused_says_what_is_possible() -> None:
    where = lake()
    driver = other = context(where)
    roles = {"approve": ["ana"], "publish": ["ana"]}
    run = approved_run(driver, declared(contract=contract(roles=roles)))
    with pytest.raises(IllegalMove, match="cannot unpause"):
        unpause(driver, run, "bob", "")
    assert pause(other, run, "bob", "").state is RunState.PAUSED
    assert pause(other, run, "bob", "again").seq == driver.runs.status(run).seq
    with pytest.raises(NotAllowed):
        unpause(other, run, "mallory", "")
    unpause(other, run, "bob", "")
    stage(driver, run, "bob")
    with pytest.raises(IllegalMove, match=r"is staged: it cannot pause; legal now: .*validate"):
        pause(other, run, "bob", "")


def test_a_shadow_that_another_engine_writes_is_not_paused() -> None:
    found = context(lake())
    external = {"file": "jobs/daily.sql", "writer": "external"}
    run = approved_run(found, declared(transform=external, validation={"edge_partitions": 0}))
    with pytest.raises(Unsupported, match="only that engine can stop it"):
        pause(found, run, "bob", "")
    _, chunks, then = preview_run(found, run)
    assert {one.act for one in chunks} == {"leave"}
    assert then.startswith("nothing: another engine writes the shadow")


@pytest.mark.req("X3")
def test_a_resume_lists_exactly_what_it_will_do() -> None:
    where, engine, driver, other, run = _world()
    before = {one.act for one in preview_run(driver, run)[1]}
    assert before == {"compute"}
    engine.act = lambda: pause(other, run, "bob", "")
    with pytest.raises(RunPaused):
        stage(driver, run, "bob")
    status, chunks, then = preview_run(other, run)
    assert (status.state, [one.act for one in chunks]) == (
        RunState.PAUSED, ["judge", "record", "compute"],
    )  # fmt: skip
    assert "unpause" in then
    unpause(other, run, "bob", "")
    computed = len(engine.staged)
    engine.act = lambda: None
    stage(other, run, "bob")
    assert [one for one in engine.staged[computed:] if one != "load"] == [chunks[2].chunk_id]
    assert {one.act for one in preview_run(other, run)[1]} == {"keep"}
    # The shadow's log decides, also against the ledger; but `run` stages nothing any more.
    shadow = where.tables[driver.runs.plan(run).shadow_table]
    shadow.contents.pop()
    shadow.summaries.pop()
    acts = [one.act for one in preview_run(other, run)[1]]
    assert acts == ["keep", "keep", "leave"]


@pytest.mark.req("X3")
@pytest.mark.parametrize(
    ("kind", "is_live", "is_there", "act"),
    [
        ("stage_chunk", True, False, "carry_over"),
        ("carry_chunk", False, False, "carry_over"),
        ("stage_chunk", True, True, "keep"),
        ("carry_chunk", False, True, "keep"),
        ("stage_chunk", False, False, "compute"),
    ],
)
def test_a_resume_lists_what_it_takes_over_instead_of_computing_it(
    kind: StageKind, is_live: bool, is_there: bool, act: str
) -> None:
    _, _, driver, _, run = _world()
    stage(driver, run, "bob")
    record = driver.runs.chunks(run)[0]
    each = chunk_stages(driver.runs.plan(run))[0].model_copy(update={"kind": kind})
    (commit, *_) = driver.shadows.chunks(driver.runs.plan(run).shadow_table)
    known = (commit, record) if is_there else (None, None)
    assert chunk_preview(each, *known, is_live=is_live).act == act
